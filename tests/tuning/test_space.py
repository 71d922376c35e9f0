"""Search spaces are held against the settings that they become, and trials stay inside."""

from dataclasses import dataclass, field
from typing import Literal

import optuna
import pytest
from optuna.distributions import FloatDistribution

from compo_pipeline.core.settings import SettingsError, parse, value_at, with_values
from compo_pipeline.methods.registry import METHODS, build
from compo_pipeline.project.settings import all_values, loader_of
from compo_pipeline.tuning.space import configured_values, read, searchable, suggest

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
LOW, LR = "mine.objective.margins.low", "training.lr"


def space_of(values):
    return read(values, "spaces.mine", CONFIGURED, SETTINGS)


def refusal(values):
    with pytest.raises(SettingsError) as error:
        space_of(values)
    return str(error.value)


def suggested(space, seed=0, count=1):
    """What a space gives a study's trials."""
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=seed))
    return [suggest(space, study.ask()) for _ in range(count)]


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


def test_the_configured_values_are_those_of_the_searched_settings():
    space = space_of({LOW: {"float": [-2, 0]}, POSITIVES: {"int": [1, 5]}})
    assert configured_values(space, CONFIGURED) == {LOW: -1.0, POSITIVES: 2}


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"mine.objective.positivs": {"int": [1, 2]}}, f"did you mean '{POSITIVES}'?"),
        ({"mine.views.swap": {"categorical": ["a", "b"]}}, "settings of mine.objective and train"),
        ({LOW: {"flaot": [-2, 0]}}, "expected exactly one of float, log_float, times, int, cat"),
        ({POSITIVES: {"float": [1, 4]}}, "positives: Input should be a valid integer"),
        ({POSITIVES: {"int": [0, 5]}}, "positives: expected 1 to 5"),
        ({LR: {"times": [2, 4]}}, "the configured value 0.001 is outside of {'times': [2, 4]}"),
        ({NORM: {"categorical": ["squared", "cubed"]}}, "'squared' or 'plain' (got 'cubed')"),
    ],
)
def test_what_cannot_be_searched_is_refused_by_its_key(values, words):
    message = refusal(values)
    assert message.startswith("spaces.mine: ")
    assert words in message and "\n" not in message


def test_times_are_of_the_configured_value():
    space = space_of({LR: {"times": [0.1, 4]}})
    assert space == {LR: FloatDistribution(0.001 * 0.1, 0.001 * 4, log=True)}


def test_null_takes_a_kind_away():
    """Environments are merged into what conf/base says."""
    assert not space_of({LR: {"log_float": None, "float": [1e-4, 1e-2]}})[LR].log


@pytest.fixture(scope="module")
def base(bootstrapped):
    """Parameters of conf/base with the settings of all methods."""
    return all_values(loader_of(bootstrapped / "conf", "base", {}))


def shipped_space(params, method):
    return read(params["spaces"][method], f"spaces.{method}", params, searchable(method))


@pytest.mark.parametrize("method", METHODS)
def test_what_shipped_spaces_suggest_parses(base, method):
    space = shipped_space(base, method)
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
    assert shipped_space(own, "clic")[rate].high == 1e-5


def test_a_space_of_no_method_is_refused(context):
    with pytest.raises(SettingsError, match=r"spaces\.klic.*did you mean 'clic'"):
        _ = context(spaces={"klic": {}}).params
