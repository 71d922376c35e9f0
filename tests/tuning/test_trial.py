"""A trial is the recipe with the trial's values: trained, looked at, judged, and gone."""

import copy
import logging
import math
import os
import signal
from collections.abc import Mapping
from dataclasses import replace
from itertools import chain
from multiprocessing.context import ForkServerContext
from pathlib import Path
from typing import Any

import optuna
import pytest
from optuna.exceptions import UpdateFinishedTrialError
from optuna.trial import FrozenTrial, TrialState

from compo_pipeline.models.loading import load
from compo_pipeline.training.run import Runner
from compo_pipeline.tuning import study as studies
from compo_pipeline.tuning.recording import NoRecorder
from compo_pipeline.tuning.settings import TrialSettings
from compo_pipeline.tuning.space import applied
from compo_pipeline.tuning.study import read
from compo_pipeline.tuning.workers import run

LR = "training.optimizer.lr"
PAIRS, KNOWN = "play/accuracy/pairs", "play/accuracy/known"
GENTLE, RUINOUS, ABSURD = 1e-6, 0.5, 1e30


class Notes(NoRecorder):
    """Keeps the curves: run, step, figures."""

    def __init__(self) -> None:
        self.points: list[tuple[str, int, dict[str, float]]] = []

    def open_trial(self, study: str, number: int) -> str:
        return f"trial {number}"

    def point(self, trial: str, step: int, figures: Mapping[str, float]) -> None:
        self.points.append((trial, step, dict(figures)))

    def curve(self, trial: int, of: str) -> list[tuple[int, float]]:
        """The points of one figure."""
        return [
            (step, figures[of])
            for run, step, figures in self.points
            if run == f"trial {trial}" and of in figures
        ]


class Watchful(optuna.pruners.BasePruner):
    """Stops the trials it is told, at the first look; notes what it sees of each."""

    def __init__(self, *stopped: int) -> None:
        self.stopped = stopped
        self.seen: list[tuple[int, int, dict[str, float], float]] = []

    def prune(self, study: optuna.Study, trial: FrozenTrial) -> bool:
        assert trial.last_step is not None
        value = trial.intermediate_values[trial.last_step]
        self.seen.append((trial.number, trial.last_step, dict(trial.constraints), value))
        return trial.number in self.stopped


def left(folder: Path) -> list[str]:
    return [path.name for path in (folder / "trials").iterdir()]


def states(study: optuna.Study) -> list[str]:
    return [trial.state.name for trial in study.trials]


def test_the_value_is_the_score_less_ten_for_each_point_too_many(
    world: Any, tmp_path: Path
) -> None:
    trials = world.trials(tmp_path)
    study = run(world.study(trials, tmp_path, GENTLE, RUINOUS), trials)
    for trial in study.trials:
        figures = trial.user_attrs["figures"]
        excess = 100 - figures[KNOWN] - 1  # the base has 100, and one point is free
        assert trial.constraints == {"retrieval": pytest.approx(excess)}
        assert trial.value == pytest.approx(figures[PAIRS] - 10 * max(0, excess))
        assert trial.user_attrs["score"] == pytest.approx(figures[PAIRS])
        assert trial.user_attrs["steps"] == 6
    gentle, ruinous = study.trials
    assert gentle.constraints["retrieval"] <= 0 < ruinous.constraints["retrieval"]
    assert left(tmp_path) == []

    # What trains is the configured recipe with the trial's values, and nothing else.
    method, recipe = world.material.built(applied(world.material.parameters, {LR: RUINOUS}))
    runner = Runner(replace(world.material.plan, settings=recipe, resume=tmp_path / "alone"))
    runner.train(method, "alone", tmp_path / "checkpoint", lambda _: None)
    alone = trials._judge(load(tmp_path / "checkpoint"))
    assert dict(alone.figures) == ruinous.user_attrs["figures"]


def test_looks_are_reported_with_their_constraints_and_end_a_trial(
    world: Any, tmp_path: Path, steps: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    watchful, notes = Watchful(1), Notes()
    monkeypatch.setattr(studies, "pruner", lambda settings: watchful)
    trials = world.trials(tmp_path, notes)
    study = run(world.study(trials, tmp_path, RUINOUS, RUINOUS / 2), trials, notes)

    assert [seen[:2] for seen in watchful.seen] == [(0, 1), (0, 2), (1, 1)]
    score, excess = ([notes.curve(n, of) for n in (0, 1)] for of in ("score", "excess/retrieval"))
    assert [step for curve in score for step, _ in curve] == [2, 4, 2]
    told = zip(chain(*score), chain(*excess), strict=True)
    for (*_, constraints, value), ((_, got), (_, lost)) in zip(watchful.seen, told, strict=True):
        assert constraints == {"retrieval": lost}
        assert value == pytest.approx(got - 10 * max(0, lost))
    assert max(lost for curve in excess for _, lost in curve) > 0

    whole, stopped = study.trials
    assert (whole.state, stopped.state) == (TrialState.COMPLETE, TrialState.PRUNED)
    assert [trial.user_attrs["steps"] for trial in study.trials] == [6, 2] and len(steps) == 8
    assert [[step for step, _ in notes.curve(n, "loss")] for n in (0, 1)] == [
        [1, 2, 3, 4, 5, 6],
        [1, 2],
    ]
    assert left(tmp_path) == []


@pytest.mark.parametrize(
    ("looks", "at"),
    [
        (1, []),
        (4, [2, 4]),  # six steps are three looks of two
        (6, [1, 2, 3, 4, 5]),
    ],
)
def test_nobody_looks_at_the_last_step_to_stop_it(
    world: Any, tmp_path: Path, looks: int, at: list[int]
) -> None:
    """What was exported is judged anyway, and nothing is left to be saved."""
    notes = Notes()
    material = world.material.as_trial(TrialSettings(looks=looks))
    trials = world.trials(tmp_path, notes, material=material)
    study = run(world.study(trials, tmp_path, GENTLE), trials, notes)
    assert [step for step, _ in notes.curve(0, "score")] == at
    assert states(study) == ["COMPLETE"]


def test_an_interrupted_trial_goes_on_from_its_state(
    world: Any, tmp_path: Path, steps: list[int]
) -> None:
    class Impatient(Notes):
        told = False

        def point(self, trial: str, step: int, figures: Mapping[str, float]) -> None:
            super().point(trial, step, figures)
            if "score" in figures and step == 4 and not self.told:
                self.told = True
                os.kill(os.getpid(), signal.SIGTERM)

    notes = Impatient()
    trials = world.trials(tmp_path, notes)
    plan = world.study(trials, tmp_path, RUINOUS)
    with pytest.raises(KeyboardInterrupt):
        run(plan, trials, notes)
    assert left(tmp_path) == ["trial=0"] and len(steps) == 4

    study = run(plan, trials, notes)
    assert states(study) == ["FAIL", "COMPLETE"] and len(steps) == 6
    assert [step for step, _ in notes.curve(1, "loss")] == [5, 6]
    assert left(tmp_path) == []
    whole = world.trials(tmp_path / "whole")
    (undisturbed,) = run(world.study(whole, tmp_path / "whole", RUINOUS), whole).trials
    assert study.trials[1].user_attrs["figures"] == undisturbed.user_attrs["figures"]


def test_a_trial_taken_for_lost_leaves_its_state_to_its_retry(world: Any, tmp_path: Path) -> None:
    study = optuna.create_study(direction="maximize")
    study.enqueue_trial({LR: GENTLE})
    trial = study.ask()
    trial.set_user_attr("run_id", "trial 0")

    class Slow(Notes):
        def point(self, run: str, step: int, figures: Mapping[str, float]) -> None:
            if "score" in figures:
                # Meanwhile somebody else looks after the study.
                trial.storage.set_trial_state_values(trial._trial_id, TrialState.FAIL)

    with pytest.raises(UpdateFinishedTrialError):
        world.trials(tmp_path, Slow())(trial)
    assert left(tmp_path) == ["trial=0"]


def test_failing_trials_leave_nothing_and_the_study_goes_on(
    world: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrong = {"trial=1": MemoryError(), "trial=2": RuntimeError("mps: out of memory, 2 GiB")}
    train = Runner.train

    def failing(self: Runner, method: Any, name: str, folder: Path, report: Any, watch: Any) -> Any:
        def look(step: int, model: Any) -> None:
            assert left(tmp_path) == [self.plan.resume.name]
            if self.plan.resume.name in wrong:
                raise wrong[self.plan.resume.name]
            watch(step, model)

        return train(self, method, name, folder, report, look)

    monkeypatch.setattr(Runner, "train", failing)
    trials = world.trials(tmp_path)
    study = run(world.study(trials, tmp_path, ABSURD, GENTLE, GENTLE, GENTLE), trials)
    assert states(study) == ["FAIL", "FAIL", "FAIL", "COMPLETE"]
    nan, *memory = (trial.user_attrs["reason"] for trial in study.trials[:3])
    assert nan.startswith("TrainingError: step ") and "is not finite" in nan and "kept" not in nan
    assert memory == ["out of memory", "out of memory: mps: out of memory, 2 GiB"]
    assert left(tmp_path) == []


def test_it_goes_to_a_worker_process_without_its_judge(
    world: Any, tmp_path: Path, imported: ForkServerContext
) -> None:
    trials = world.trials(tmp_path)
    plan = world.study(trials, tmp_path, GENTLE)
    judge = trials._judge
    assert "_judge" not in copy.copy(trials).__dict__ and trials._judge is judge
    process = imported.Process(target=run, args=(plan, trials))
    process.start()
    process.join()
    assert process.exitcode == 0
    (trial,) = read(plan.settings, plan.folder).trials
    assert trial.state == TrialState.COMPLETE
    assert trial.user_attrs["figures"].keys() == judge.base.keys()


def test_two_objectives_have_two_values_and_nobody_looks(world: Any, tmp_path: Path) -> None:
    notes = Notes()
    wanted = replace(world.trials(tmp_path).wanted, second=(KNOWN,))
    trials = world.trials(tmp_path, notes, wanted=wanted)
    (trial,) = run(world.study(trials, tmp_path, RUINOUS), trials, notes).trials
    figures = trial.user_attrs["figures"]
    assert trial.values == [figures[PAIRS], figures[KNOWN]]
    assert (trial.constraints, trial.intermediate_values) == ({}, {})
    assert notes.curve(0, "score") == [] and len(notes.curve(0, "loss")) == 6


def test_a_record_that_cannot_be_written_fails_no_trial(
    world: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    class Broken(Notes):
        def point(self, trial: str, step: int, figures: Mapping[str, float]) -> None:
            raise OSError("no store")

    trials = world.trials(tmp_path, Broken())
    study = run(world.study(trials, tmp_path, GENTLE), trials, Broken())
    assert states(study) == ["COMPLETE"] and set(study.trials[0].intermediate_values) == {1, 2}
    missing = [line for line in caplog.messages if "is missing from the curves of" in line]
    assert len(missing) == 6 + 2


def test_training_is_silent_within_a_trial_and_not_after_it(
    world: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    trials = world.trials(tmp_path)
    plan = world.study(trials, tmp_path, GENTLE)
    before = len(caplog.records)
    run(plan, trials)
    heard = {record.name for record in caplog.records[before:]}
    assert heard and not {name for name in heard if ".training" in name or ".progress" in name}
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
def test_a_trial_is_shorter_and_looked_at_evenly(
    world: Any, settings: TrialSettings, epochs: int, batch: int, every: int
) -> None:
    before = copy.deepcopy(world.material.parameters)
    recipe = world.material.as_trial(settings).parameters["training"]
    assert (recipe["epochs"], recipe["batch_size"], recipe["save_every"]) == (epochs, batch, every)
    assert recipe["max_steps"] == settings.max_steps and recipe["overwrite"] is True
    assert world.material.parameters == before


def test_what_lies_there_from_an_earlier_study_is_not_gone_on_with(
    world: Any, tmp_path: Path, steps: list[int]
) -> None:
    trials = world.trials(tmp_path)
    method, recipe = world.material.built(applied(world.material.parameters, {LR: RUINOUS}))
    plan = replace(world.material.plan, settings=recipe, resume=tmp_path / "trials" / "trial=0")
    Runner(plan).train(method, "negclip", tmp_path / "out", lambda _: None)
    (trial,) = run(world.study(trials, tmp_path, GENTLE), trials).trials
    assert len(steps) == 12 and trial.user_attrs["figures"][KNOWN] == pytest.approx(100)
    assert math.isfinite(trial.value)
