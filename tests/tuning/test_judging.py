"""Scores and what they cost, from the figures of a model and of the base."""

from typing import Any

import pytest

from compo_pipeline.configuration import SettingsError
from compo_pipeline.models.loading import load
from compo_pipeline.tuning import judging
from compo_pipeline.tuning.judging import Guarded, Judge, ObjectiveSettings

BASE = {"a/m/x": 60.0, "a/m/y": 50.0, "r/m/i": 40.0, "r/m/t": 30.0, "z/m/c": 80.0}
FOUND = {"a/m/x": 70.0, "a/m/y": 65.0, "r/m/i": 39.0, "r/m/t": 26.0, "z/m/c": 79.5}
WANTED = ObjectiveSettings(
    ("a/m/x", "a/m/y"), (), Guarded(("r/m/i", "r/m/t"), 2.0), Guarded(("z/m/c",), 1.0)
)


@pytest.fixture
def judge(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Makes a judge; a model is the dictionary of its figures."""
    monkeypatch.setattr(judging, "model_metrics", lambda embedder, model: model)

    def make(wanted: ObjectiveSettings) -> Judge:
        nothing: Any = None
        base: Any = BASE
        return Judge.begin([], nothing, wanted, base)

    return make


def test_score_and_excess_by_hand(judge: Any) -> None:
    found = judge(WANTED)(FOUND)
    assert found.scores == (67.5,)
    # From (40 + 30) / 2 to (39 + 26) / 2 it is 2.5 down, of which 2 are free.
    assert found.excess == {"retrieval": 0.5, "zero_shot": -0.5}
    assert found.figures == FOUND
    assert judge(WANTED)(BASE).excess == {"retrieval": -2.0, "zero_shot": -1.0}


def test_what_guards_no_figure_is_no_constraint(judge: Any) -> None:
    wanted = ObjectiveSettings(("a/m/x",), (), Guarded(), Guarded(("z/m/c",), 0.0))
    assert judge(wanted)(FOUND).excess == {"zero_shot": 0.5}


def test_two_objectives_guard_nothing(judge: Any) -> None:
    wanted = ObjectiveSettings(
        ("a/m/x", "a/m/y"), ("r/m/i", "z/m/c"), WANTED.retrieval, WANTED.zero_shot
    )
    found = judge(wanted)(FOUND)
    assert (found.scores, found.excess) == ((67.5, 59.25), {})


@pytest.mark.parametrize(
    ("change", "key"),
    [
        ({"maximise": ("a/m/x", "a/m/yy")}, "maximise"),
        ({"second": ("a/m/yy",)}, "second"),
        ({"retrieval": Guarded(("a/m/yy",))}, "retrieval.figures"),
        ({"zero_shot": Guarded(("a/m/yy",))}, "zero_shot.figures"),
    ],
)
def test_an_unknown_figure_is_refused_by_its_key(judge: Any, change: Any, key: str) -> None:
    known = {
        "maximise": ("a/m/x",),
        "second": (),
        "retrieval": Guarded(),
        "zero_shot": Guarded(),
    }
    with pytest.raises(SettingsError) as error:
        judge(ObjectiveSettings(**{**known, **change}))
    told = str(error.value.message)
    assert told.startswith(f"tuning.objective.{key}: 'a/m/yy' is no figure of the validation")
    assert "did you mean 'a/m/y'?" in told and "(there are: a/m/x, a/m/y, r/m/i" in told


def test_what_cannot_be_wanted() -> None:
    with pytest.raises(ValueError, match="maximise: expected one figure at least"):
        ObjectiveSettings(maximise=())
    with pytest.raises(ValueError, match=r"drop: expected at least 0 points, got -1"):
        Guarded(("a",), -1.0)


def test_figures_are_those_of_the_questions(world: Any) -> None:
    plan, settings = world.material.plan, world.material.evaluation
    base = load(plan.model)
    wanted = ObjectiveSettings(("play/accuracy/known",), (), Guarded(), Guarded())
    judge = Judge.begin(world.questions, settings, wanted, base)
    assert judge.base.keys() == {"play/accuracy/pairs", "play/accuracy/known"}
    assert judge(base).scores == (100.0,)
    # Told that all is the other way round, a model that knew all of it knows nothing.
    base.model.text_projection.data.neg_()
    assert judge(base).scores == (0.0,)
