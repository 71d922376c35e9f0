"""A trial: the recipe with its values, trained, scored at looks and at the end, and pruned."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import optuna
import pytest
from optuna.trial import FrozenTrial, TrialState
from tests.tuning.conftest import KNOWN, LR, PAIRS

from compo_pipeline.core.settings import SettingsError
from compo_pipeline.models.loading import load
from compo_pipeline.training.loop import Job, train
from compo_pipeline.tuning import trial as trials
from compo_pipeline.tuning.settings import GuardedFigures, ObjectiveSettings, TrialSettings
from compo_pipeline.tuning.study import StudyPlan, load_study, work
from compo_pipeline.tuning.trial import Scorer, TrialObjective, search

GENTLE, RUINOUS, ABSURD = 1e-6, 0.5, 1e30
Change = Callable[[TrialObjective], TrialObjective]


class NotingPruner(optuna.pruners.BasePruner):
    """Prunes some trials at their first look; notes which looks it sees."""

    def __init__(self, *pruned: int) -> None:
        self.pruned = pruned
        self.seen: list[tuple[int, int | None]] = []

    def prune(self, study: optuna.Study, trial: FrozenTrial) -> bool:
        self.seen.append((trial.number, trial.last_step))
        return trial.number in self.pruned


@pytest.fixture
def pruner(monkeypatch: pytest.MonkeyPatch) -> NotingPruner:
    noting = NotingPruner(1)
    monkeypatch.setattr(optuna.pruners, "MedianPruner", lambda *given: noting)
    return noting


def left(folder: Path) -> list[str]:
    return [path.name for path in (folder / "trials").iterdir()]


def states(study: optuna.Study) -> list[str]:
    return [trial.state.name for trial in study.trials]


def test_the_value_is_the_score_less_the_violation(world: Any, tmp_path: Path) -> None:
    objective = world.objective(tmp_path)
    study = work(world.plan(objective, tmp_path, GENTLE, RUINOUS), objective)
    for trial in study.trials:
        metrics = trial.user_attrs["figures"]
        excess = 100 - metrics[KNOWN] - 1  # the base has 100, and may lose one point
        assert trial.constraints == {"retrieval": pytest.approx(excess)}
        assert trial.value == pytest.approx(metrics[PAIRS] - max(0, excess))
        assert trial.user_attrs["score"] == pytest.approx(metrics[PAIRS])
        assert trial.user_attrs["steps"] == 6
    gentle, ruinous = study.trials
    assert gentle.constraints["retrieval"] <= 0 < ruinous.constraints["retrieval"]
    assert study.best_trial.number == 0
    assert left(tmp_path) == []

    # What trains is the configured recipe with the trial's values, and nothing else.
    method, recipe = world.inputs.build({LR: RUINOUS})
    job = Job(method, "alone", tmp_path / "checkpoint")
    train(world.inputs.of(recipe, tmp_path / "alone"), job, lambda _: None)
    alone = objective.scorer(load(tmp_path / "checkpoint"))
    assert dict(alone.metrics) == ruinous.user_attrs["figures"]


def test_looks_report_scores_and_may_prune(
    world: Any, tmp_path: Path, pruner: NotingPruner, steps: list[int]
) -> None:
    objective = world.objective(tmp_path)
    study = work(world.plan(objective, tmp_path, RUINOUS, RUINOUS / 2), objective)
    assert pruner.seen == [(0, 1), (0, 2), (1, 1)]
    whole, pruned = study.trials
    assert (whole.state, pruned.state) == (TrialState.COMPLETE, TrialState.PRUNED)
    assert [trial.user_attrs["steps"] for trial in study.trials] == [6, 2]
    assert len(steps) == 8
    for trial in study.trials:
        metrics = trial.user_attrs["figures"]
        assert trial.constraints["retrieval"] == 100 - metrics[KNOWN] - 1
    found = pruned.user_attrs["score"] - max(0, pruned.constraints["retrieval"])
    assert pruned.intermediate_values == {1: pytest.approx(found)}
    assert left(tmp_path) == []


def test_an_interrupted_trial_continues_from_its_state(
    world: Any, tmp_path: Path, steps: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    report = optuna.Trial.report

    def interrupting(self: optuna.Trial, value: float, step: int) -> None:
        report(self, value, step)
        if step == 2:
            raise KeyboardInterrupt

    objective = world.objective(tmp_path)
    plan = world.plan(objective, tmp_path, RUINOUS)
    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(optuna.Trial, "report", interrupting)
        work(plan, objective)
    assert left(tmp_path) == ["trial=0"] and len(steps) == 4

    study = work(plan, objective)
    assert states(study) == ["FAIL", "COMPLETE"] and len(steps) == 6
    assert left(tmp_path) == []
    other = world.objective(tmp_path / "whole")
    (undisturbed,) = work(world.plan(other, tmp_path / "whole", RUINOUS), other).trials
    assert study.trials[1].user_attrs["figures"] == undisturbed.user_attrs["figures"]


def test_failing_trials_leave_no_files_and_the_study_continues(world: Any, tmp_path: Path) -> None:
    objective = world.objective(tmp_path)
    study = work(world.plan(objective, tmp_path, GENTLE, ABSURD, GENTLE), objective)
    assert states(study) == ["COMPLETE", "FAIL", "COMPLETE"]
    assert "is not finite" in study.trials[1].user_attrs["reason"]
    assert left(tmp_path) == []


@pytest.mark.slow
def test_trials_run_in_processes_and_embed_their_images_once(world: Any, tmp_path: Path) -> None:
    objective = with_training(world.objective(tmp_path), features=tmp_path / "features")
    plan = world.plan(objective, tmp_path, GENTLE, GENTLE, RUINOUS)
    plan = replace(plan, settings=replace(plan.settings, workers=2))
    search(objective, plan)
    assert states(load_study(plan.settings, tmp_path)) == ["COMPLETE"] * 3
    assert len(list((tmp_path / "features").rglob("*.safetensors"))) == 1


@pytest.mark.parametrize(
    ("settings", "epochs", "every"),
    [
        (TrialSettings(), 2, 2),
        (TrialSettings(share=0.5, looks=2), 1, 2),
        (TrialSettings(share=0.01, looks=1), 1, 3),
    ],
)
def test_a_trials_recipe_is_shorter_with_looks_at_equal_distances(
    world: Any, settings: TrialSettings, epochs: int, every: int
) -> None:
    recipe = world.inputs.for_trials(settings).parameters["training"]
    assert (recipe["epochs"], recipe["save_every"]) == (epochs, every)
    assert recipe["overwrite"] is True


def test_the_state_of_an_earlier_study_is_overwritten(
    world: Any, tmp_path: Path, steps: list[int]
) -> None:
    method, recipe = world.inputs.build({LR: RUINOUS})
    job = Job(method, "negclip", tmp_path / "out")
    train(world.inputs.of(recipe, tmp_path / "trials" / "trial=0"), job, lambda _: None)
    objective = world.objective(tmp_path)
    (trial,) = work(world.plan(objective, tmp_path, GENTLE), objective).trials
    assert len(steps) == 12 and trial.user_attrs["figures"][KNOWN] == pytest.approx(100)


BASE = {"a/m/x": 60.0, "a/m/y": 50.0, "r/m/i": 40.0, "r/m/t": 30.0, "z/m/c": 80.0}
FOUND = {"a/m/x": 70.0, "a/m/y": 65.0, "r/m/i": 39.0, "r/m/t": 26.0, "z/m/c": 79.5}
RETRIEVAL, ZERO_SHOT = GuardedFigures(("r/m/i", "r/m/t"), 2.0), GuardedFigures(("z/m/c",), 1.0)


@pytest.mark.parametrize(
    ("objective", "value", "constraints"),
    [
        # From (40 + 30) / 2 to (39 + 26) / 2 it is 2.5 down, of which 2 are allowed.
        (
            (("a/m/x", "a/m/y"), RETRIEVAL, ZERO_SHOT),
            67.5,
            {"retrieval": 0.5, "zero_shot": -0.5},
        ),
        ((("a/m/x",), GuardedFigures()), 70.0, {}),
    ],
)
def test_scores_and_constraints_by_hand(
    monkeypatch: pytest.MonkeyPatch, objective: Any, value: float, constraints: Any
) -> None:
    monkeypatch.setattr(trials, "ItemMetrics", lambda items, evaluation: lambda model: model)
    any_: Any = None
    model: Any = FOUND
    found = Scorer([], any_, ObjectiveSettings(*objective), BASE)(model)  # type: ignore[arg-type]
    assert (found.value, found.constraints, found.metrics) == (value, constraints, FOUND)
    assert found.penalised == value - sum(max(0, each) for each in constraints.values())


def test_an_unknown_figure_is_refused_by_its_key(world: Any, tmp_path: Path) -> None:
    guarded = ObjectiveSettings((PAIRS,), GuardedFigures(("play/accuracy/pair",)))
    wrong = world.objective(tmp_path, settings=guarded)
    words = rf"^tuning\.objective\.retrieval: 'play/accuracy/pair'.*did you mean '{PAIRS}'\?"
    with pytest.raises(SettingsError, match=words):
        world.plan(wrong, tmp_path, GENTLE)


def with_training(objective: TrialObjective, **changes: Any) -> TrialObjective:
    training = replace(objective.inputs.training, **changes)
    return replace(objective, inputs=replace(objective.inputs, training=training))


def with_parameters(objective: TrialObjective, key: str, **changes: Any) -> TrialObjective:
    parameters = objective.inputs.parameters
    parameters = {**parameters, key: {**parameters[key], **changes}}
    return replace(objective, inputs=replace(objective.inputs, parameters=parameters))


@pytest.mark.parametrize(
    ("change", "differs"),
    [
        (lambda one: with_parameters(one, "training", epochs=1), r"training\.epochs"),
        (lambda one: replace(one, items=one.items[::-1]), "validation items"),
        (
            lambda one: replace(
                one, settings=ObjectiveSettings((KNOWN,), GuardedFigures((KNOWN,)))
            ),
            r"scored\.maximise",
        ),
    ],
)
def test_a_study_of_other_trials_is_not_joined(
    world: Any, tmp_path: Path, change: Change, differs: str
) -> None:
    objective = world.objective(tmp_path)
    world.plan(objective, tmp_path, 1e-3)
    with pytest.raises(SettingsError, match=f"'toy' exists that differs in {differs}; its"):
        world.plan(change(objective), tmp_path, 1e-3)


def test_a_study_is_joined_where_no_value_is_changed(world: Any, tmp_path: Path) -> None:
    objective = world.objective(tmp_path)
    world.plan(objective, tmp_path, 1e-3)
    other = with_parameters(objective, "training", workers=3, log_every=7, overwrite=False)
    plan = world.plan(replace(other, folder=tmp_path / "elsewhere"), tmp_path, 1e-3)
    assert isinstance(plan, StudyPlan)
