"""Every session checks its configuration first, in the project itself."""

import os
from pathlib import Path

import pytest
from kedro.framework.cli.utils import _split_params
from kedro.framework.session import KedroSession
from kedro.framework.startup import bootstrap_project

from compo_pipeline.configuration import SettingsError


@pytest.fixture
def parameters(project, monkeypatch):
    """Parameters of a session, as its nodes would get them."""
    monkeypatch.chdir(project)
    for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"):
        # Set, then deleted: the test's end restores what stood there, also where nothing did.
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    bootstrap_project(project)

    def load(env="base", **runtime):
        with KedroSession.create(project, env=env, runtime_params=runtime) as session:
            return session.load_context().params

    return load


def test_one_nested_override_keeps_its_siblings(parameters):
    plain = parameters()
    changed = parameters(data={"columns": {"caption": "text"}})
    assert changed["data"]["columns"] == {**plain["data"]["columns"], "caption": "text"}
    # `command` says what was typed, for commands that are shown to the user.
    assert {**changed, "data": None, "command": None} == {**plain, "data": None, "command": None}
    assert changed["command"]["params"] == {"data": {"columns": {"caption": "text"}}}


def test_an_environment_keeps_the_siblings_of_what_it_overrides(parameters):
    base, coco = parameters(), parameters("coco")
    assert coco["model"] == {
        **base["model"],
        "name": "ViT-B-32-quickgelu",
        "pretrained": "openai",
    }


def test_null_takes_a_split_away(parameters):
    assert parameters("coco")["data"]["splits"] == {"train": "train2017", "test": "val2017"}


def test_null_takes_a_rule_away_as_a_refusal_advises(parameters):
    # What `--params validation.rules.width=null` gives.
    left = parameters(**_split_params(None, None, "validation.rules.width=null"))
    plain = parameters()["validation"]["rules"]
    assert left["validation"]["rules"].keys() == plain.keys() - {"width"}


def test_runtime_values_beat_the_environment_and_null_means_none(parameters):
    coco = parameters("coco", model={"name": "scenes-base", "pretrained": None}, seed=3)
    assert coco["model"]["name"] == "scenes-base"
    assert coco["model"]["pretrained"] is None
    assert coco["paths"]["checkpoint"].endswith("coco/clic/default/seed=3/checkpoint")


@pytest.mark.parametrize("env", ["base", "coco", "smoke"])
def test_an_unknown_runtime_key_is_refused_in_every_environment(parameters, env):
    with pytest.raises(SettingsError, match="--params: unknown key 'model.nmae'.*'name'"):
        parameters(env, model={"nmae": "x"})


@pytest.mark.parametrize("name", ["../elsewhere", "a/b", "", ".."])
def test_names_that_would_leave_their_folder_are_refused(parameters, name):
    with pytest.raises(SettingsError, match="variant: .* names a folder"):
        parameters(variant=name)


def test_relative_paths_start_from_the_project_wherever_the_command_was_typed(
    parameters, project, tmp_path
):
    os.chdir(tmp_path)
    parameters()
    assert Path.cwd() == project


@pytest.mark.parametrize(
    ("model", "offline"),
    [
        ({"name": "scenes-base", "pretrained": None}, "1"),
        ({"name": "ViT-B-32", "pretrained": None}, "1"),
        ({"name": "ViT-B-32", "pretrained": "openai"}, "0"),
        ({"name": "hf-hub:somebody/model"}, "0"),
    ],
)
def test_hub_is_reached_only_for_weights_that_live_there(parameters, model, offline):
    parameters(model=model)
    assert os.environ["HF_HUB_OFFLINE"] == offline


def test_what_the_user_set_in_the_environment_stays(parameters, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    parameters(model={"name": "hf-hub:somebody/model"})
    assert os.environ["HF_HUB_OFFLINE"] == "1"
