"""A search: what it is, and what it does before its first trial."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from compo_pipeline import compute
from compo_pipeline.configuration import SettingsError
from compo_pipeline.training import fingerprint
from compo_pipeline.tuning.recording import NoRecorder
from compo_pipeline.tuning.search import plan_of, search
from compo_pipeline.tuning.settings import StudySettings, TrialSettings
from compo_pipeline.tuning.space import Space
from compo_pipeline.tuning.trial import Trials

Change = Callable[[Trials], Trials]


def planned(trials: Trials, **changes: Any) -> Trials:
    plan = replace(trials.material.plan, **changes)
    return replace(trials, material=replace(trials.material, plan=plan))


def told(trials: Trials, key: str, **changes: Any) -> Trials:
    """With other parameters."""
    parameters = trials.material.parameters
    parameters = {**parameters, key: {**parameters[key], **changes}}
    return replace(trials, material=replace(trials.material, parameters=parameters))


def test_images_are_embedded_once_before_the_first_trial(
    world: Any, tmp_path: Path, embedded: list[str]
) -> None:
    trials = planned(world.trials(tmp_path), features=tmp_path / "features")
    study = search(trials, world.study(trials, tmp_path, 1e-6, 1e-3), NoRecorder())
    assert [trial.state.name for trial in study.trials] == ["COMPLETE"] * 2
    assert embedded == ["embedded", "negclip", "negclip"]


def test_a_storage_that_cannot_be_used_says_so_before_images_are_embedded(
    world: Any, tmp_path: Path, embedded: list[str]
) -> None:
    trials = planned(world.trials(tmp_path), features=tmp_path / "features")
    plan = world.study(trials, tmp_path, 1e-6, 1e-3)
    storage = replace(plan.settings.storage, url="mysql://nobody@nowhere/db")
    plan = replace(plan, settings=replace(plan.settings, storage=storage))
    with pytest.raises(SettingsError, match=r"tuning\.study\.storage\.url"):
        search(trials, plan, NoRecorder())
    assert embedded == []


@pytest.mark.parametrize(
    ("change", "differs"),
    [
        (
            lambda trials: replace(
                trials, material=trials.material.as_trial(TrialSettings(max_steps=4, looks=2))
            ),
            "recipe",
        ),
        (lambda trials: replace(trials, questions=trials.questions[:1]), "validation questions"),
        (lambda trials: replace(trials, space=Space(())), "space"),
        (
            lambda trials: replace(trials, wanted=replace(trials.wanted, second=("a/m/x",))),
            "directions, objective",
        ),
        (
            lambda trials: told(trials, "negclip", views={"careful": True}),
            "configuration of the method",
        ),
        (lambda trials: planned(trials, data="other data"), "data"),
        (lambda trials: planned(trials, seed=1), "seed"),
        (lambda trials: planned(trials, views=trials.material.plan.root), "views"),
    ],
)
def test_a_study_of_other_trials_is_not_joined(
    world: Any, tmp_path: Path, change: Change, differs: str
) -> None:
    trials = world.trials(tmp_path)
    world.study(trials, tmp_path, 1e-3)
    with pytest.raises(SettingsError, match=f"'toy' exists that differs in {differs}; its"):
        world.study(change(trials), tmp_path, 1e-3)


def test_nor_is_one_of_another_base_or_code(
    world: Any, tmp_path: Path, tiny_model: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    trials = world.trials(tmp_path)
    world.study(trials, tmp_path, 1e-3)
    monkeypatch.setattr(fingerprint, "of_code", lambda: "other code")
    model = replace(trials.material.plan.model, name=f"local-dir:{tiny_model(1)}")
    with pytest.raises(SettingsError, match="differs in base model, training code; its"):
        world.study(planned(trials, model=model), tmp_path, 1e-3)


def test_what_changes_no_value_keeps_no_one_out(world: Any, tmp_path: Path) -> None:
    trials = world.trials(tmp_path)
    world.study(trials, tmp_path, 1e-3)
    other = told(trials, "training", workers=3, log_every=7, device="cuda", overwrite=False)
    plan = world.study(replace(other, folder=tmp_path / "elsewhere"), tmp_path, 1e-3)
    assert plan.directions == ("maximize",)


@pytest.mark.parametrize(("count", "workers"), [(1, 1), (2, 2), (64, 4)])
def test_there_are_as_many_workers_as_the_machine_has_use_for(
    world: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, count: int, workers: int
) -> None:
    monkeypatch.setattr(compute, "cores", lambda: count)
    trials = world.trials(tmp_path)
    for given, expected in ((None, workers), (3, 3)):
        settings = StudySettings("toy", 1, workers=given)
        assert plan_of(trials, settings, {}, tmp_path).settings.workers == expected
    assert StudySettings("toy").processes(torch.device("cuda")) == 1
