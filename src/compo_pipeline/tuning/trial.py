"""One trial: the recipe with a trial's values, trained, looked at now and then, and judged."""

from __future__ import annotations

import logging
import math
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import optuna
from optuna.exceptions import UpdateFinishedTrialError

from compo_pipeline.configuration import parse
from compo_pipeline.evaluation.benchmarks import Subtask
from compo_pipeline.evaluation.settings import EvaluationSettings
from compo_pipeline.methods.contract import Method
from compo_pipeline.methods.registry import build
from compo_pipeline.methods.view_tables import EpochViews
from compo_pipeline.models.loading import LoadedModel, load
from compo_pipeline.training.finite import TrainingError
from compo_pipeline.training.progress import Point
from compo_pipeline.training.run import Plan, Runner
from compo_pipeline.training.settings import TrainingSettings
from compo_pipeline.tuning import constraints, recording
from compo_pipeline.tuning.attempts import first
from compo_pipeline.tuning.constraints import Constraint
from compo_pipeline.tuning.judging import Judge, Judgement, ObjectiveSettings
from compo_pipeline.tuning.outcome import STEPS
from compo_pipeline.tuning.recording import Recorder
from compo_pipeline.tuning.settings import TrialSettings
from compo_pipeline.tuning.space import Space, applied

# The trial's attribute that holds every figure of its model.
FIGURES = "figures"
# What a trial's training says of itself is of no use beside the study's own lines.
_TALKATIVE = tuple(
    f"compo_pipeline.{name}" for name in ("evaluation", "models", "progress", "training")
)


@dataclass(frozen=True)
class Material:
    """What trials, and the trainings that confirm the best of them, have in common.

    Attributes:
        method: its name.
        parameters: `training` and the method's own, as configured.
        plan: of a training; its recipe and the place of its state are each trial's own.
        evaluation: how models are scored.
    """

    method: str
    parameters: Mapping[str, Any]
    plan: Plan
    evaluation: EvaluationSettings

    def built(self, parameters: Mapping[str, Any]) -> tuple[Method, TrainingSettings]:
        """The method and the recipe under changed parameters."""
        own = parameters[self.method]
        recipe = parse(TrainingSettings, parameters["training"], "training")
        return build(self.method, own["views"], own["objective"]), recipe

    def as_trial(self, settings: TrialSettings) -> Material:
        """The same for trials.

        A state that lies where a trial wants its own is of an earlier study.
        """
        recipe = {**self.parameters["training"], "overwrite": True}
        recipe["epochs"] = max(1, round(settings.share * recipe["epochs"]))
        for name in ("batch_size", "max_steps"):
            if (value := getattr(settings, name)) is not None:
                recipe[name] = value
        steps = _steps(self.plan.views, recipe)
        # A trial is judged by the study's own objective, at its last step.
        recipe |= {"validation": {}, "keep": "last", "early_stopping": {}}
        recipe["save_every"] = math.ceil(steps / settings.looks)
        return replace(self, parameters={**self.parameters, "training": recipe})


@dataclass
class Trials:
    """The objective of a study. It is pickled to worker processes, each of which judges the base.

    Attributes:
        material: of trials (`as_trial`).
        space: what is searched.
        wanted: what is looked for.
        questions: that judge, none of them among the reported ones.
        folder: for the states and checkpoints of trials; a finished one leaves nothing.
        recorder: of the curves.
    """

    material: Material
    space: Space
    wanted: ObjectiveSettings
    questions: Sequence[Subtask]
    folder: Path
    recorder: Recorder

    def __getstate__(self) -> dict[str, Any]:
        """Without the judge, who holds a model's embeddings."""
        return {name: value for name, value in self.__dict__.items() if name != "_judge"}

    def __call__(self, trial: optuna.Trial) -> float | list[float]:
        """Train and judge; the value, or the values, for the study.

        Raises:
            optuna.TrialPruned: the trial is not worth going on with.
            TrainingError: its loss is not finite.
            SettingsError: its values cannot be used.
        """
        values = self.space.suggest(trial)
        method, recipe = self.material.built(applied(self.material.parameters, values))
        folder = self.folder / f"trial={first(trial.storage.get_trial(trial._trial_id))}"
        runner = Runner(replace(self.material.plan, settings=recipe, resume=folder))
        try:
            with _hushed():
                judgement = self._trained(trial, runner, method, folder / "checkpoint")
        except (KeyboardInterrupt, UpdateFinishedTrialError):
            raise  # its state is where the next attempt goes on, or is going on already
        except BaseException as error:
            shutil.rmtree(folder, ignore_errors=True)
            if isinstance(error, TrainingError):
                raise TrainingError(error.problem) from None  # no state of it is kept
            raise
        trial.set_user_attr(FIGURES, dict(judgement.figures))
        shutil.rmtree(folder)
        score = judgement.scores if self.wanted.second else judgement.scores[0]
        return constraints.finish(trial, score, _constraints(judgement), self.wanted.penalty)

    def _trained(
        self, trial: optuna.Trial, runner: Runner, method: Method, checkpoint: Path
    ) -> Judgement:
        judge, plan = self._judge, runner.plan
        last, every = _steps(plan.views, asdict(plan.settings)), plan.settings.save_every
        before = runner.done(method, self.material.method)
        run = trial.user_attrs.get(recording.RUN)

        def look(step: int, model: LoadedModel) -> None:
            # The last look is at what was exported, and nothing is to be saved by stopping then.
            if step == last:
                return
            judgement = judge(model)
            excess = {f"excess/{name}": value for name, value in judgement.excess.items()}
            figures = {"score": judgement.scores[0], **excess}
            recording.point(self.recorder, run, step, figures)
            trial.set_user_attr(STEPS, step - before)
            broken, penalty = _constraints(judgement), self.wanted.penalty
            constraints.report(trial, step // every, judgement.scores[0], broken, penalty)

        def log_point(point: Point) -> None:
            recording.point(self.recorder, run, int(point["step"]), point)

        # Nothing is stopped where there are two objectives, so nobody needs to look.
        watch = None if self.wanted.second else look
        done = runner.train(method, self.material.method, checkpoint, log_point, watch)
        trial.set_user_attr(STEPS, done.step - before)
        return judge(load(checkpoint, runner.device))

    @cached_property
    def _judge(self) -> Judge:
        plan = self.material.plan
        base = load(plan.model, Runner(plan).device)
        return Judge.begin(self.questions, self.material.evaluation, self.wanted, base)


def _steps(views: Path, recipe: Mapping[str, Any]) -> int:
    """Steps of a training on views."""
    rows = len(EpochViews(views).epoch(0))
    steps: int = recipe["epochs"] * (rows // min(recipe["batch_size"], rows))
    return steps if recipe["max_steps"] is None else min(steps, recipe["max_steps"])


def _constraints(judgement: Judgement) -> list[Constraint]:
    return [Constraint(name, value) for name, value in judgement.excess.items()]


@contextmanager
def _hushed() -> Iterator[None]:
    """Within the block, training and scoring are heard only where something is wrong."""
    loggers = [logging.getLogger(name) for name in _TALKATIVE]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.WARNING)
    try:
        yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
