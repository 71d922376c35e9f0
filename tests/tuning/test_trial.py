"""A trial: the recipe with its values, trained, scored at looks and at the end, and pruned."""

import copy
import logging
import os
import signal
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import optuna
import pytest
import torch
from optuna.exceptions import UpdateFinishedTrialError
from optuna.trial import FrozenTrial, TrialState

from compo_pipeline.configuration.settings import SettingsError
from compo_pipeline.models.loading import load
from compo_pipeline.run import compute
from compo_pipeline.training import fingerprint
from compo_pipeline.training.run import Trainer
from compo_pipeline.tuning import study as studies
from compo_pipeline.tuning import trial as trials
from compo_pipeline.tuning.settings import (
    GuardedFigures,
    ObjectiveSettings,
    StudySettings,
    TrialSettings,
)
from compo_pipeline.tuning.space import Space
from compo_pipeline.tuning.trial import Scorer, TrialObjective, search, set_constraints
from compo_pipeline.tuning.workers import run

LR = "training.optimizer.lr"
PAIRS, KNOWN = "play/accuracy/pairs", "play/accuracy/known"
GENTLE, RUINOUS, ABSURD = 1e-6, 0.5, 1e30
Change = Callable[[TrialObjective], TrialObjective]


class NotingPruner(optuna.pruners.BasePruner):
    """Prunes some trials at their first look; notes what it sees of each."""

    def __init__(self, *pruned: int) -> None:
        self.pruned = pruned
        self.seen: list[tuple[int, int, dict[str, float], float]] = []

    def prune(self, study: optuna.Study, trial: FrozenTrial) -> bool:
        assert trial.last_step is not None
        value = trial.intermediate_values[trial.last_step]
        self.seen.append((trial.number, trial.last_step, dict(trial.constraints), value))
        return trial.number in self.pruned


def left(folder: Path) -> list[str]:
    return [path.name for path in (folder / "trials").iterdir()]


def states(study: optuna.Study) -> list[str]:
    return [trial.state.name for trial in study.trials]


def test_the_value_is_the_score_less_the_penalty(world: Any, tmp_path: Path, recorder: Any) -> None:
    objective = world.objective(tmp_path)
    study = run(world.plan(objective, tmp_path, GENTLE, RUINOUS), objective, recorder)
    for trial in study.trials:
        metrics = trial.user_attrs["figures"]
        excess = 100 - metrics[KNOWN] - 1  # the base has 100, and may lose one point
        assert trial.constraints == {"retrieval": pytest.approx(excess)}
        assert trial.value == pytest.approx(metrics[PAIRS] - 10 * max(0, excess))
        assert trial.user_attrs["score"] == pytest.approx(metrics[PAIRS])
        assert trial.user_attrs["steps"] == 6
    gentle, ruinous = study.trials
    assert gentle.constraints["retrieval"] <= 0 < ruinous.constraints["retrieval"]
    assert left(tmp_path) == []

    # What trains is the configured recipe with the trial's values, and nothing else.
    method, recipe = world.inputs.build({LR: RUINOUS})
    trainer = Trainer(replace(world.inputs.training, settings=recipe, resume=tmp_path / "alone"))
    trainer.train(method, "alone", tmp_path / "checkpoint", lambda _: None)
    alone = objective.scorer(load(tmp_path / "checkpoint"))
    assert dict(alone.metrics) == ruinous.user_attrs["figures"]


def test_looks_report_scores_after_their_constraints_and_may_prune(
    world: Any, tmp_path: Path, recorder: Any, steps: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    pruner = NotingPruner(1)
    monkeypatch.setattr(studies, "pruner", lambda settings: pruner)
    objective = world.objective(tmp_path, recorder)
    plan = world.plan(objective, tmp_path, RUINOUS, RUINOUS / 2)
    study = run(plan, objective, recorder)

    assert [seen[:2] for seen in pruner.seen] == [(0, 1), (0, 2), (1, 1)]
    scores, excesses = (
        [point for number in (0, 1) for point in recorder.curve(number, of)]
        for of in ("score", "excess/retrieval")
    )
    assert [step for step, _ in scores] == [2, 4, 2]
    for seen, (_, score), (_, excess) in zip(pruner.seen, scores, excesses, strict=True):
        assert seen[2] == {"retrieval": excess}
        assert seen[3] == pytest.approx(score - 10 * max(0, excess))
    assert max(excess for _, excess in excesses) > 0

    whole, pruned = study.trials
    assert (whole.state, pruned.state) == (TrialState.COMPLETE, TrialState.PRUNED)
    assert [trial.user_attrs["steps"] for trial in study.trials] == [6, 2]
    assert len(steps) == 8
    # The final constraints replace those of the looks.
    assert whole.constraints["retrieval"] == 100 - whole.user_attrs["figures"][KNOWN] - 1
    assert [[step for step, _ in recorder.curve(number, "loss")] for number in (0, 1)] == [
        [1, 2, 3, 4, 5, 6],
        [1, 2],
    ]
    assert left(tmp_path) == []


@pytest.mark.parametrize(("looks", "at"), [(1, []), (4, [2, 4]), (6, [1, 2, 3, 4, 5])])
def test_the_last_step_is_no_look(
    world: Any, tmp_path: Path, recorder: Any, looks: int, at: list[int]
) -> None:
    inputs = world.inputs.for_trials(TrialSettings(looks=looks))
    objective = world.objective(tmp_path, recorder, inputs=inputs)
    study = run(world.plan(objective, tmp_path, GENTLE), objective, recorder)
    assert [step for step, _ in recorder.curve(0, "score")] == at
    assert states(study) == ["COMPLETE"]


def test_an_interrupted_trial_continues_from_its_state(
    world: Any, tmp_path: Path, recorder: Any, steps: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    point = recorder.point

    def interrupting(run_id: str, step: int, figures: Mapping[str, float]) -> None:
        point(run_id, step, figures)
        if "score" in figures and step == 4:
            os.kill(os.getpid(), signal.SIGTERM)

    objective = world.objective(tmp_path, recorder)
    plan = world.plan(objective, tmp_path, RUINOUS)
    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(recorder, "point", interrupting)
        run(plan, objective, recorder)
    assert left(tmp_path) == ["trial=0"] and len(steps) == 4

    study = run(plan, objective, recorder)
    assert states(study) == ["FAIL", "COMPLETE"] and len(steps) == 6
    assert [step for step, _ in recorder.curve(1, "loss")] == [5, 6]
    assert left(tmp_path) == []
    other = world.objective(tmp_path / "whole")
    plan = world.plan(other, tmp_path / "whole", RUINOUS)
    (undisturbed,) = run(plan, other, type(recorder)()).trials
    assert study.trials[1].user_attrs["figures"] == undisturbed.user_attrs["figures"]


def test_a_trial_failed_as_stale_leaves_its_state_to_its_retry(
    world: Any, tmp_path: Path, recorder: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    study = optuna.create_study(direction="maximize")
    study.enqueue_trial({LR: GENTLE})
    trial = study.ask()
    trial.set_user_attr("run_id", "trial 0")

    def failing(run_id: str, step: int, figures: Mapping[str, float]) -> None:
        if "score" in figures:  # meanwhile another worker recovers the study
            trial.storage.set_trial_state_values(trial._trial_id, TrialState.FAIL)

    monkeypatch.setattr(recorder, "point", failing)
    with pytest.raises(UpdateFinishedTrialError):
        world.objective(tmp_path, recorder)(trial)
    assert left(tmp_path) == ["trial=0"]


def test_failing_trials_leave_no_files_and_the_study_continues(
    world: Any, tmp_path: Path, recorder: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    errors = {"trial=1": MemoryError(), "trial=2": RuntimeError("mps: out of memory, 2 GiB")}
    train = Trainer.train

    def failing(self: Trainer, method: Any, name: str, folder: Path, report: Any, call: Any) -> Any:
        def look(step: int, model: Any) -> None:
            assert left(tmp_path) == [self.inputs.resume.name]
            if self.inputs.resume.name in errors:
                raise errors[self.inputs.resume.name]
            call(step, model)

        return train(self, method, name, folder, report, look)

    monkeypatch.setattr(Trainer, "train", failing)
    objective = world.objective(tmp_path)
    plan = world.plan(objective, tmp_path, ABSURD, GENTLE, GENTLE, GENTLE)
    study = run(plan, objective, recorder)
    assert states(study) == ["FAIL", "FAIL", "FAIL", "COMPLETE"]
    nan, *memory = (trial.user_attrs["reason"] for trial in study.trials[:3])
    assert nan.startswith("TrainingError: step ") and "is not finite" in nan and "kept" not in nan
    assert memory == ["out of memory", "out of memory: mps: out of memory, 2 GiB"]
    assert left(tmp_path) == []


def test_the_objective_is_pickled_without_its_scorer(world: Any, tmp_path: Path) -> None:
    objective = world.objective(tmp_path)
    before = objective.scorer
    other = copy.copy(objective)  # by the same protocol as a pickle
    assert "scorer" not in other.__dict__ and objective.scorer is before
    assert other.scorer.base == before.base


def test_two_objectives_have_two_values_and_no_looks(
    world: Any, tmp_path: Path, recorder: Any
) -> None:
    settings = replace(world.objective(tmp_path).settings, second=(KNOWN,))
    objective = world.objective(tmp_path, recorder, settings=settings)
    (trial,) = run(world.plan(objective, tmp_path, RUINOUS), objective, recorder).trials
    metrics = trial.user_attrs["figures"]
    assert trial.values == [metrics[PAIRS], metrics[KNOWN]]
    assert (trial.constraints, trial.intermediate_values) == ({}, {})
    assert recorder.curve(0, "score") == [] and len(recorder.curve(0, "loss")) == 6


def test_points_that_are_not_recorded_are_stored_with_the_trial(
    world: Any,
    tmp_path: Path,
    recorder: Any,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    monkeypatch.setattr(recorder, "point", lambda run, step, figures: False)
    objective = world.objective(tmp_path, recorder)
    plan = world.plan(objective, tmp_path, GENTLE)
    before = len(caplog.records)
    study = run(plan, objective, recorder)
    assert states(study) == ["COMPLETE"] and set(study.trials[0].intermediate_values) == {1, 2}
    unlogged = study.trials[0].user_attrs["unlogged"]
    assert [point["step"] for point in unlogged if "loss" in point] == [1, 2, 3, 4, 5, 6]
    assert [point["step"] for point in unlogged if "score" in point] == [2, 4]
    # Training itself logs nothing within a trial.
    names = {record.name for record in caplog.records[before:]}
    assert names and not {name for name in names if ".training" in name or ".progress" in name}
    assert logging.getLogger("compo_pipeline.training.run").isEnabledFor(logging.INFO)


@pytest.mark.parametrize(
    ("settings", "epochs", "batch", "every"),
    [
        (TrialSettings(), 2, 4, 2),
        (TrialSettings(share=0.5, looks=2), 1, 4, 2),
        (TrialSettings(share=0.01, looks=1), 1, 4, 3),
        (TrialSettings(batch_size=6, looks=4), 2, 6, 1),
        (TrialSettings(max_steps=5, looks=2), 2, 4, 3),
        (TrialSettings(batch_size=50, looks=2), 2, 50, 1),
    ],
)
def test_a_trials_recipe_is_shorter_with_looks_at_equal_distances(
    world: Any, settings: TrialSettings, epochs: int, batch: int, every: int
) -> None:
    before = copy.deepcopy(world.inputs.parameters)
    recipe = world.inputs.for_trials(settings).parameters["training"]
    assert (recipe["epochs"], recipe["batch_size"], recipe["save_every"]) == (epochs, batch, every)
    assert recipe["max_steps"] == settings.max_steps and recipe["overwrite"] is True
    assert world.inputs.parameters == before


def test_the_state_of_an_earlier_study_is_overwritten(
    world: Any, tmp_path: Path, recorder: Any, steps: list[int]
) -> None:
    method, recipe = world.inputs.build({LR: RUINOUS})
    folder = tmp_path / "trials" / "trial=0"
    plan = replace(world.inputs.training, settings=recipe, resume=folder)
    Trainer(plan).train(method, "negclip", tmp_path / "out", lambda _: None)
    objective = world.objective(tmp_path)
    (trial,) = run(world.plan(objective, tmp_path, GENTLE), objective, recorder).trials
    assert len(steps) == 12 and trial.user_attrs["figures"][KNOWN] == pytest.approx(100)


@pytest.mark.parametrize("wrong", [float("nan"), float("inf")])
def test_a_constraint_that_is_not_finite_is_refused(wrong: float) -> None:
    with pytest.raises(ValueError, match="constraint 'drop': expected a finite number, got"):
        set_constraints(optuna.create_study().ask(), {"drop": wrong})


BASE = {"a/m/x": 60.0, "a/m/y": 50.0, "r/m/i": 40.0, "r/m/t": 30.0, "z/m/c": 80.0}
FOUND = {"a/m/x": 70.0, "a/m/y": 65.0, "r/m/i": 39.0, "r/m/t": 26.0, "z/m/c": 79.5}
RETRIEVAL, ZERO_SHOT = GuardedFigures(("r/m/i", "r/m/t"), 2.0), GuardedFigures(("z/m/c",), 1.0)
NONE = GuardedFigures()


@pytest.fixture
def score(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Scores a model that is the dictionary of its metrics."""
    monkeypatch.setattr(trials, "ItemMetrics", lambda items, evaluation: lambda model: model)

    def scored(*objective: Any, model: Any = FOUND) -> Any:
        any_: Any = None
        return Scorer([], any_, ObjectiveSettings(*objective), BASE)(model)  # type: ignore[arg-type]

    return scored


@pytest.mark.parametrize(
    ("objective", "values", "constraints"),
    [
        # From (40 + 30) / 2 to (39 + 26) / 2 it is 2.5 down, of which 2 are allowed.
        (
            (("a/m/x", "a/m/y"), (), RETRIEVAL, ZERO_SHOT),
            (67.5,),
            {"retrieval": 0.5, "zero_shot": -0.5},
        ),
        ((("a/m/x",), (), NONE, GuardedFigures(("z/m/c",), 0.0)), (70.0,), {"zero_shot": 0.5}),
        (
            (("a/m/x", "a/m/y"), ("r/m/i", "z/m/c"), RETRIEVAL, ZERO_SHOT),
            (67.5, 59.25),
            {},
        ),
    ],
)
def test_scores_and_constraints_by_hand(
    score: Any, objective: Any, values: Any, constraints: Any
) -> None:
    found = score(*objective)
    assert (found.values, found.constraints, found.metrics) == (values, constraints, FOUND)


@pytest.mark.parametrize(
    ("objective", "key"),
    [
        ((("a/m/x", "a/m/yy"), (), NONE, NONE), "maximise"),
        ((("a/m/x",), ("a/m/yy",), NONE, NONE), "second"),
        ((("a/m/x",), (), GuardedFigures(("a/m/yy",)), NONE), "retrieval.figures"),
        ((("a/m/x",), (), NONE, GuardedFigures(("a/m/yy",))), "zero_shot.figures"),
    ],
)
def test_an_unknown_figure_is_refused_by_its_key(score: Any, objective: Any, key: str) -> None:
    with pytest.raises(SettingsError) as error:
        score(*objective)
    message = str(error.value.message)
    assert message.startswith(f"tuning.objective.{key}: 'a/m/yy'")
    assert "did you mean 'a/m/y'?" in message and "a/m/x, a/m/y, r/m/i" in message


def test_metrics_are_those_of_the_items(world: Any) -> None:
    plan, evaluation = world.inputs.training, world.inputs.evaluation
    base = load(plan.model)
    settings = ObjectiveSettings((KNOWN,), (), NONE, NONE)
    scorer = Scorer(world.items, evaluation, settings, base)
    assert scorer.base.keys() == {PAIRS, KNOWN}
    assert scorer(base).values == (100.0,)
    # With all texts reversed, a model that was always right is always wrong.
    base.model.text_projection.data.neg_()
    assert scorer(base).values == (0.0,)


def with_training(objective: TrialObjective, **changes: Any) -> TrialObjective:
    training = replace(objective.inputs.training, **changes)
    return replace(objective, inputs=replace(objective.inputs, training=training))


def with_parameters(objective: TrialObjective, key: str, **changes: Any) -> TrialObjective:
    parameters = objective.inputs.parameters
    parameters = {**parameters, key: {**parameters[key], **changes}}
    return replace(objective, inputs=replace(objective.inputs, parameters=parameters))


def test_images_are_embedded_once_before_the_first_trial(
    world: Any, tmp_path: Path, recorder: Any, embedded: list[str]
) -> None:
    objective = with_training(world.objective(tmp_path), features=tmp_path / "features")
    plan = world.plan(objective, tmp_path, 1e-6, 1e-3)
    broken = replace(plan.settings.storage, url="mysql://nobody@nowhere/db")
    with pytest.raises(SettingsError, match=r"tuning\.study\.storage\.url"):
        search(objective, replace(plan, settings=replace(plan.settings, storage=broken)), recorder)
    assert embedded == []
    assert states(search(objective, plan, recorder)) == ["COMPLETE"] * 2
    assert embedded == ["embedded", "negclip", "negclip"]


def test_an_unknown_figure_ends_a_study_before_its_first_trial(
    world: Any, tmp_path: Path, recorder: Any
) -> None:
    objective = world.objective(tmp_path)
    wrong = replace(objective, settings=ObjectiveSettings(("a/m/yy",), (), NONE, NONE))
    with pytest.raises(SettingsError, match=r"^tuning\.objective\.maximise: 'a/m/yy'"):
        search(wrong, world.plan(wrong, tmp_path, 1e-6, 1e-3), recorder)
    assert recorder.runs == {}


@pytest.mark.parametrize(
    ("change", "differs"),
    [
        (
            lambda one: replace(
                one, inputs=one.inputs.for_trials(TrialSettings(max_steps=4, looks=2))
            ),
            "recipe",
        ),
        (lambda one: replace(one, items=one.items[:1]), "validation items"),
        (lambda one: replace(one, space=Space(())), "space"),
        (
            lambda one: replace(one, settings=replace(one.settings, second=("a/m/x",))),
            "directions, objective",
        ),
        (
            lambda one: with_parameters(one, "negclip", views={"careful": True}),
            "configuration of the method",
        ),
        (lambda one: with_training(one, data_hash="other data"), "data"),
        (lambda one: with_training(one, seed=1), "seed"),
        (lambda one: with_training(one, views=one.inputs.training.root), "views"),
    ],
)
def test_a_study_of_other_trials_is_not_joined(
    world: Any, tmp_path: Path, change: Change, differs: str
) -> None:
    objective = world.objective(tmp_path)
    world.plan(objective, tmp_path, 1e-3)
    with pytest.raises(SettingsError, match=f"'toy' exists that differs in {differs}; its"):
        world.plan(change(objective), tmp_path, 1e-3)


def test_a_study_of_another_base_or_code_is_not_joined(
    world: Any, tmp_path: Path, tiny_model: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    objective = world.objective(tmp_path)
    world.plan(objective, tmp_path, 1e-3)
    monkeypatch.setattr(fingerprint, "TRAINING", fingerprint.TRAINING + 1)
    model = replace(objective.inputs.training.model, name=f"local-dir:{tiny_model(1)}")
    with pytest.raises(SettingsError, match="differs in base model, code; its"):
        world.plan(with_training(objective, model=model), tmp_path, 1e-3)


def test_a_study_is_joined_where_no_value_is_changed(world: Any, tmp_path: Path) -> None:
    objective = world.objective(tmp_path)
    world.plan(objective, tmp_path, 1e-3)
    other = with_parameters(
        objective, "training", workers=3, log_every=7, device="cuda", overwrite=False
    )
    plan = world.plan(replace(other, folder=tmp_path / "elsewhere"), tmp_path, 1e-3)
    assert plan.directions == ("maximize",)


@pytest.mark.parametrize(("cores", "workers"), [(1, 1), (2, 2), (64, 4)])
def test_there_is_one_worker_per_core_up_to_four(
    world: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cores: int, workers: int
) -> None:
    monkeypatch.setattr(compute, "cores", lambda: cores)
    objective = world.objective(tmp_path)
    for given, expected in ((None, workers), (3, 3)):
        settings = StudySettings("toy", 1, workers=given)
        assert objective.plan(settings, {}, tmp_path).settings.workers == expected
    assert StudySettings("toy").processes(torch.device("cuda")) == 1
