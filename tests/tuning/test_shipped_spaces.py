"""The search spaces of conf/; test_config_files.py has those of every environment."""

import optuna
import pytest

from compo_pipeline.core.settings import SettingsError, parse, value_at, with_values
from compo_pipeline.methods.registry import METHODS, build
from compo_pipeline.project.settings import all_values, loader_of
from compo_pipeline.tuning.space import read, searchable, suggest


@pytest.fixture(scope="module")
def base(bootstrapped):
    """Parameters of conf/base with the settings of all methods."""
    return all_values(loader_of(bootstrapped / "conf", "base", {}))


def space_of(params, method):
    return read(params["spaces"][method], f"spaces.{method}", params, searchable(method))


@pytest.mark.parametrize("method", METHODS)
def test_what_shipped_spaces_suggest_parses(base, method):
    space = space_of(base, method)
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=0))
    for _ in range(3):
        values = suggest(space, study.ask())
        assert values
        for key, settings in searchable(method).items():
            parse(settings, value_at(with_values(base, values), key), key)


def test_an_environment_or_the_command_line_may_change_a_space(context):
    rate = "training.optimizer.lr"
    wide = {"clic": {rate: {"times": None, "log_float": [1e-7, 1e-5]}}}
    params = context("coco", spaces=wide).params
    own = {**params, "clic": build("clic", **params["method_settings"]).configuration}
    assert space_of(own, "clic")[rate].high == 1e-5


def test_a_space_of_no_method_is_refused(context):
    with pytest.raises(SettingsError, match=r"spaces\.klic.*did you mean 'clic'"):
        _ = context(spaces={"klic": {}}).params
