"""Search spaces are held against the settings that they become, and trials stay inside."""

from dataclasses import dataclass, field
from typing import Literal

import optuna
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from optuna.distributions import FloatDistribution

from compo_pipeline.configuration.settings import SettingsError, overlay, parse, with_values
from compo_pipeline.tuning.space import configured_value, read

optuna.logging.set_verbosity(optuna.logging.WARNING)


@dataclass(frozen=True)
class Margins:
    low: float = -1.0
    high: float = 0.5

    def __post_init__(self):
        if self.low >= self.high:
            raise ValueError(f"low: expected less than high, got {self.low}")


@dataclass(frozen=True)
class Objective:
    positives: int = 2
    norm: Literal["squared", "plain"] = "squared"
    steps: bool = True
    margins: Margins = field(default_factory=Margins)
    trains: tuple[str, ...] = ("text",)

    def __post_init__(self):
        if not 1 <= self.positives <= 5:
            raise ValueError(f"positives: expected 1 to 5, got {self.positives}")


@dataclass(frozen=True)
class Training:
    lr: float = 1e-3
    clip_norm: float | None = None


SETTINGS = {"mine.objective": Objective, "training": Training}
CONFIGURED = {
    "mine": {
        "views": {"swap": "across"},
        "objective": {
            "positives": 2,
            "norm": "squared",
            "steps": True,
            "margins": {"low": -1, "high": 0.5},
            "trains": ["text"],
        },
    },
    "training": {"lr": 1e-3, "clip_norm": None},
    "seed": 0,
}
POSITIVES, NORM = "mine.objective.positives", "mine.objective.norm"
LOW, HIGH, LR = "mine.objective.margins.low", "mine.objective.margins.high", "training.lr"


def space_of(values, conf="nowhere", tmp=None):
    from pathlib import Path

    return read(values, "spaces.mine", CONFIGURED, SETTINGS, Path(conf))


def refusal(values, **given_):
    with pytest.raises(SettingsError) as error:
        space_of(values, **given_)
    return str(error.value)


def suggested(space, seed=0, count=1, **values):
    """What a space gives a study's trials; `values` is the first one's."""
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=seed))
    if values:
        study.enqueue_trial(values)
    got = []

    def objective(trial):
        got.append(space.suggest(trial))
        assert trial.params == got[-1]
        return 0.0

    study.optimize(objective, n_trials=count)
    return got


def test_every_kind_suggests_values_of_its_own():
    space = space_of(
        {
            POSITIVES: {"int": [1, 3]},
            NORM: {"categorical": ["squared", "plain"]},
            LOW: {"float": [-2, 0]},
            LR: {"log_float": [1e-4, 1]},
        }
    )
    drawn = suggested(space, count=60)
    assert {values[POSITIVES] for values in drawn} == {1, 2, 3}
    assert {values[NORM] for values in drawn} == {"squared", "plain"}
    assert all(isinstance(values[LOW], float) and -2 <= values[LOW] <= 0 for values in drawn)
    # Even in the logarithm: half of the values lie below the geometric mean of the ends.
    below = sum(values[LR] < 1e-2 for values in drawn)
    assert 18 <= below <= 42


def test_a_conditional_parameter_is_searched_beside_its_values_alone():
    space = space_of(
        {
            NORM: {"categorical": ["squared", "plain"]},
            POSITIVES: {"int": [1, 5], "when": {NORM: ["squared"]}},
            LR: {"log_float": [1e-4, 1e-2], "when": {POSITIVES: [1, 2, 3]}},
        }
    )
    for values in suggested(space, count=60):
        assert (POSITIVES in values) == (values[NORM] == "squared")
        assert (LR in values) == (values.get(POSITIVES) in (1, 2, 3))
    assert set(space.configured(CONFIGURED)) == {NORM, POSITIVES, LR}
    plain = with_values(CONFIGURED, {NORM: "plain"})
    assert space.configured(plain) == {NORM: "plain"}


def test_the_configured_values_make_the_first_trial():
    space = space_of({LOW: {"float": [-2, 0]}, POSITIVES: {"int": [1, 5]}})
    configured = space.configured(CONFIGURED)
    assert configured == {LOW: -1.0, POSITIVES: 2} and isinstance(configured[LOW], float)
    assert suggested(space, **configured) == [configured]
    assert space.fits(configured)


def test_values_of_another_space_do_not_fit():
    space = space_of({LOW: {"float": [-2, 0]}, POSITIVES: {"int": [1, 5]}})
    assert not space.fits({LOW: -1.0})
    assert not space.fits({LOW: -3.0, POSITIVES: 2})
    assert not space.fits({LOW: -1.0, POSITIVES: 2, LR: 1.0})
    assert not space.fits({LOW: -1.0, POSITIVES: 2.5})
    assert not space.fits({LOW: -1.0, POSITIVES: True})


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"mine.objective.positivs": {"int": [1, 2]}}, f"did you mean '{POSITIVES}'?"),
        ({"mine.views.swap": {"categorical": ["a", "b"]}}, "settings of mine.objective and train"),
        ({"mine.objective.trains": {"categorical": ["text", "image"]}}, "holds several values"),
        ({LOW: [-2, 0]}, "expected exactly one of float, log_float, times, int, categorical"),
        ({LOW: None}, "got None"),
        ({LOW: {"flaot": [-2, 0]}}, "got flaot; did you mean 'float'?"),
        ({LOW: {}}, "expected exactly one of"),
        ({LOW: {"float": [-2, 0], "int": [1, 2]}}, "got float, int"),
        ({POSITIVES: {"float": [1, 4]}}, "positives: Input should be a valid integer"),
        ({POSITIVES: {"float": [1, 4], "when": {}}}, "is refused by the settings"),
        ({"mine.objective.steps": {"int": [0, 1]}}, "expected categorical true or false"),
        ({LOW: {"float": [0, -2]}}, "expected low < high, got [0, -2]"),
        ({LOW: {"float": [0, 0]}}, "expected low < high"),
        ({LOW: {"float": [0]}}, "expected float with two or more values, got [0]"),
        ({LOW: {"float": [0, 1, 2]}}, "expected float: [low, high], two numbers, got [0, 1, 2]"),
        ({LOW: {"float": ["1e-4", 1]}}, "two numbers, got ['1e-4', 1]"),
        ({LOW: {"float": [float("-inf"), 0]}}, "got [-inf, 0]"),
        ({POSITIVES: {"int": [1, 2.5]}}, "two whole numbers, got [1, 2.5]"),
        ({POSITIVES: {"int": [True, 3]}}, "got [True, 3]"),
        ({LR: {"log_float": [0, 1]}}, "log_float needs a lower bound above 0, got 0"),
        ({LR: {"times": [0, 4]}}, "times needs a lower bound above 0, got 0"),
        ({LR: {"times": [2, 4]}}, "training.lr: 0.001 is outside the search space, 0.002 to"),
        ({LOW: {"times": [0.1, 4]}}, "times needs a configured value above 0, got -1"),
        ({"training.clip_norm": {"times": [1, 4]}}, "configured value above 0, got None"),
        ({POSITIVES: {"times": [1, 2]}}, "positives: Input should be a valid integer"),
        ({NORM: {"categorical": ["squared", "cubed"]}}, "'squared' or 'plain' (got 'cubed')"),
        ({NORM: {"categorical": ["squared"]}}, "two or more values"),
        (
            {NORM: {"categorical": ["plain", "plain"]}},
            "expected different values, got ['pl",
        ),
        ({"mine.objective.steps": {"categorical": [0, 1]}}, "expected categorical true or false"),
        (
            {POSITIVES: {"int": [0, 5]}},
            "positives = 0 is refused by the settings: mine.obj",
        ),
        ({POSITIVES: {"categorical": [2, 6]}}, "positives = 6 is refused by the settings"),
        ({POSITIVES: {"int": [1, 5], "when": {"x": [1]}}}, "'x' is not searched before it"),
        (
            {POSITIVES: {"int": [1, 5], "when": {NORM: ["plain"]}}, NORM: {}},
            "before it: nothing)",
        ),
        ({}, "expected settings to search, got {}"),
        (None, "expected settings to search, got None"),
    ],
)
def test_what_cannot_be_searched_is_refused_by_its_key(values, words):
    message = refusal(values)
    assert message.startswith("spaces.mine: ")
    assert words in message


@pytest.mark.parametrize(
    ("when", "words"),
    [
        ({NORM: ["cubed"]}, f"'{NORM}' is never 'cubed'; it is searched over squared, plain"),
        ({NORM: "plain"}, "expected when: "),
        ({NORM: []}, "expected when: "),
        ([NORM], "expected when: "),
        ({LOW: [-1.0]}, f"'{LOW}' is searched over a continuous range"),
        ({POSITIVES: [9]}, f"'{POSITIVES}' is never 9"),
    ],
)
def test_a_condition_that_cannot_be_met_is_refused(when, words):
    values = {
        NORM: {"categorical": ["squared", "plain"]},
        LOW: {"float": [-2, 0]},
        POSITIVES: {"int": [1, 5]},
        LR: {"log_float": [1e-4, 1], "when": when},
    }
    assert f"'{LR}': " in refusal(values) and words in refusal(values)


def test_two_settings_that_exclude_each_other_are_refused():
    message = refusal({LOW: {"float": [-1, 0.4]}, HIGH: {"float": [0.2, 1]}})
    assert f"{LOW} = 0.4 with {HIGH} = 0.2 is refused by the settings: {LOW}: expect" in message
    # A condition may keep them apart.
    assert space_of(
        {
            NORM: {"categorical": ["squared", "plain"]},
            LOW: {"float": [-1, 0.4], "when": {NORM: ["squared"]}},
            HIGH: {"float": [0.2, 1], "when": {NORM: ["plain"]}},
        }
    )


def test_a_configured_value_outside_is_refused_with_both():
    message = refusal({LR: {"log_float": [1e-2, 1]}})
    assert "training.lr: 0.001 is outside the search space, 0.01 to 1" in message
    assert "widen the bounds" in message
    assert "None is outside the search space" in refusal(
        {"training.clip_norm": {"float": [0.5, 2]}}
    )
    assert space_of({"training.clip_norm": {"categorical": [None, 1.0]}})


def test_times_are_of_the_configured_value():
    (parameter,) = space_of({LR: {"times": [0.1, 4]}}).parameters
    assert parameter.distribution == FloatDistribution(0.001 * 0.1, 0.001 * 4, log=True)


def test_a_setting_that_is_not_configured_is_refused():
    with pytest.raises(SettingsError, match="training.lr: searched, but not configured"):
        configured_value({"training": {"epochs": 1}}, LR)


def test_null_takes_a_kind_away():
    """Environments are merged into what conf/base says."""
    space = space_of({LR: {"log_float": None, "float": [1e-4, 1e-2]}})
    assert not space.parameters[0].distribution.log


def test_the_file_of_a_mistake_is_named(tmp_path):
    conf = tmp_path / "conf"
    wrong = {"mine.objective.positivs": {"int": [1, 2]}}
    for name, values in (
        ("base/parameters_spaces/mine.yml", {LR: {"float": [1e-4, 1]}}),
        ("coco/parameters.yml", {"training": {}, "spaces": {"mine": wrong}}),
    ):
        path = conf / name
        path.parent.mkdir(parents=True)
        content = values if "spaces" in values else {"spaces": {"mine": values}}
        path.write_text(yaml.safe_dump(content))
    assert refusal(wrong, conf=conf).startswith(
        "conf/coco/parameters.yml: spaces.mine: unknown key 'mine.objective.positivs'"
    )
    both = refusal({LR: {"float": [1, 2]}}, conf=conf)
    assert both.startswith("conf/base/parameters_spaces/mine.yml: spaces.mine: training.lr: ")


FLOATS = st.floats(allow_nan=False, allow_infinity=False, width=32)
NAMES = st.lists(st.sampled_from("abc"), min_size=1, max_size=3).map(".".join)


@given(st.dictionaries(NAMES, FLOATS))
def test_overlays_hold_exactly_the_values(values):
    leaves = {name for name in values if not any(o.startswith(f"{name}.") for o in values)}
    values = {name: values[name] for name in leaves}
    nested = overlay(values)
    assert {name: configured_value(nested, name) for name in values} == values
    zeros = overlay(dict.fromkeys(values, 0.0))
    assert with_values(zeros, values) == nested
    assert zeros == overlay(dict.fromkeys(values, 0.0)), "what was given has changed"


@given(
    lows=st.tuples(st.floats(-5, -1), st.floats(-1, 0.4)),
    lrs=st.tuples(st.floats(1e-6, 1e-3), st.floats(1e-3, 1)),
    most=st.integers(2, 5),
    conditional=st.booleans(),
    seed=st.integers(0, 2**16),
)
def test_whatever_is_suggested_is_inside_and_parses(lows, lrs, most, conditional, seed):
    if lows[0] == lows[1] or lrs[0] == lrs[1]:
        return
    when = {"when": {NORM: ["plain"]}} if conditional else {}
    space = space_of(
        {
            NORM: {"categorical": ["plain", "squared"]},
            LOW: {"float": list(lows), **when},
            LR: {"log_float": list(lrs)},
            POSITIVES: {"int": [1, most]},
        }
    )
    for values in suggested(space, seed=seed, count=3):
        assert space.fits(values)
        params = with_values(CONFIGURED, values)
        got = parse(Objective, params["mine"]["objective"], "mine.objective")
        assert got.positives == values[POSITIVES] and got.norm == values[NORM]
        assert got.margins.low == values.get(LOW, -1.0)
        assert parse(Training, params["training"], "training").lr == values[LR]
        assert space.configured(params) == values
