"""The search spaces of conf/; test_config_files.py has those of every environment."""

import optuna
import pytest

from compo_pipeline.core.settings import SettingsError, parse, value_at, with_values
from compo_pipeline.methods.registry import METHODS, build
from compo_pipeline.tuning.space import read, searchable, suggest

SEARCHED = {
    "clic": {"contrastive", "s_neg", "unimodal", "lr", "positives"},
    "fsc_clip": {"global_hn", "local_hn", "gamma", "beta"},
    "sparcl": {"margin", "beta", "gamma", "m0", "alpha"},
    "c2lip": {"npc", "xac"},
    "ce_clip": {"ranking", "intra_modal", "most_threshold"},
    "cs_clip": {"units"},
    "dac_mil": {"s_neg", "instances", "instance_negatives"},
    "sneg": {"s_neg"},
    "svlc_r": {"s_neg", "positive"},
}


@pytest.fixture
def parameters(context):
    """Parameters of a session, with all settings of a method as tuning has them."""

    def load(env="base", method="clic", **runtime):
        params = context(env, method=method, **runtime).params
        return {**params, method: build(method, **params["method_settings"]).configuration}

    return load


def space_of(params, method):
    return read(params["spaces"][method], f"spaces.{method}", params, searchable(method))


@pytest.mark.parametrize("method", METHODS)
def test_what_shipped_spaces_suggest_parses(parameters, method):
    params = parameters(method=method)
    space = space_of(params, method)
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=0))
    names = set()
    for _ in range(3):
        values = suggest(space, study.ask())
        names |= {name.split(".")[-1] for name in values}
        for key, settings in searchable(method).items():
            parse(settings, value_at(with_values(params, values), key), key)
    assert names == SEARCHED.get(method, {"lr"})


def test_a_configured_value_outside_its_bounds_says_what_to_do(parameters):
    heavy = {"objective": {"weights": {"unimodal": 3.0}}}
    with pytest.raises(SettingsError) as error:
        space_of(parameters(clic=heavy), "clic")
    assert str(error.value).startswith(
        "spaces.clic: 'clic.objective.weights.unimodal': the configured value 3.0 is outside of"
    )


def test_an_environment_or_the_command_line_may_change_a_space(parameters):
    rate = "training.optimizer.lr"
    within = space_of(parameters("coco"), "clic")[rate]
    assert (within.low, within.high, within.log) == pytest.approx((1e-7, 4e-6, True))
    wide = {"clic": {rate: {"times": None, "log_float": [1e-7, 1e-5]}}}
    assert space_of(parameters("coco", spaces=wide), "clic")[rate].high == 1e-5


def test_a_space_of_no_method_is_refused(parameters):
    with pytest.raises(SettingsError, match=r"spaces\.klic.*did you mean 'clic'"):
        parameters(spaces={"klic": {}})
