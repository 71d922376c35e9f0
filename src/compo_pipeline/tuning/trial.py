"""The objective of a study: train the recipe with a trial's values and score the model."""

from __future__ import annotations

import json
import logging
import math
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import optuna
from optuna.exceptions import UpdateFinishedTrialError

from compo_pipeline.benchmarks.items import Subtask
from compo_pipeline.configuration.settings import (
    SettingsError,
    nearest,
    parse,
    speed_paths,
    with_values,
)
from compo_pipeline.evaluation.contamination import items_fingerprint
from compo_pipeline.evaluation.settings import EvaluationSettings
from compo_pipeline.methods.contract import Method
from compo_pipeline.methods.registry import build, method_type
from compo_pipeline.methods.views import EpochViews
from compo_pipeline.models.loading import LoadedModel, load
from compo_pipeline.run import compute
from compo_pipeline.training import fingerprint
from compo_pipeline.training.checkpoint import Point, TrainingError
from compo_pipeline.training.inputs import TrainingInputs
from compo_pipeline.training.run import Trainer
from compo_pipeline.training.settings import TrainingSettings
from compo_pipeline.tuning.record import UNLOGGED, TuningRecord
from compo_pipeline.tuning.retries import first_attempt
from compo_pipeline.tuning.selection import ItemMetrics
from compo_pipeline.tuning.settings import (
    OBJECTIVE,
    ObjectiveSettings,
    StudySettings,
    TrialSettings,
)
from compo_pipeline.tuning.space import Space
from compo_pipeline.tuning.study import RUN_ID, StudyPlan, connect
from compo_pipeline.tuning.workers import OnProgress, run

# Attributes of a trial: its score without penalty, the steps it was trained for, all its metrics.
SCORE, STEPS, METRICS = "score", "steps", "figures"
# Settings of a training that change no result.
_NOT_FINGERPRINTED = frozenset(speed_paths(TrainingSettings)) - {"save_every"}  # a look is there
# Loggers that are silenced during a trial.
_LOGGERS = [
    logging.getLogger(f"compo_pipeline.{name}")
    for name in ("evaluation", "models", "run.progress", "training")
]
# Where Optuna stores constraints. `Trial.set_constraint` refuses to replace a value, but later
# evaluations of the same trial are new measurements.
_CONSTRAINT = "constraints:{}"


@dataclass(frozen=True)
class TrialInputs:
    """Inputs that all trials and the confirming trainings share: method, parameters, data."""

    method: str
    parameters: Mapping[str, Any]
    """`training` and the method's own parameters, as configured."""
    training: TrainingInputs
    """Of a training; each trial replaces its settings and the folder of its state."""
    evaluation: EvaluationSettings

    def build(self, values: Mapping[str, Any] | None = None) -> tuple[Method, TrainingSettings]:
        """Build the method and the training settings with other values at dotted keys."""
        parameters = with_values(self.parameters, values or {})
        own = parameters[self.method]
        recipe = parse(TrainingSettings, parameters["training"], "training")
        return build(self.method, own["views"], own["objective"]), recipe

    def for_trials(self, settings: TrialSettings) -> TrialInputs:
        """The inputs with a trial's shorter recipe, which saves its state at each evaluation.

        It overwrites a state of another fingerprint: such a state is an earlier study's.
        """
        recipe = {**self.parameters["training"], "overwrite": True}
        recipe["epochs"] = max(1, round(settings.share * recipe["epochs"]))
        for name in ("batch_size", "max_steps"):
            if (value := getattr(settings, name)) is not None:
                recipe[name] = value
        # A trial is scored by the study's objective, at its last step.
        recipe |= {"validation": {}, "keep": "last", "early_stopping": {}}
        recipe["save_every"] = math.ceil(_steps(self.training.views, recipe) / settings.looks)
        return replace(self, parameters={**self.parameters, "training": recipe})


@dataclass(frozen=True, slots=True)
class TrialScore:
    """A model's scores in a trial: objective values, constraint violations and all metrics."""

    values: tuple[float, ...]
    """One for each objective."""
    constraints: Mapping[str, float]
    """Points by which each constraint is violated; feasible at 0 or below."""
    metrics: Mapping[str, float]
    """By `benchmark/metric/name`."""


class Scorer:
    """Callable from a model to its TrialScore on the validation items, relative to the base.

    Args:
        items: validation items.
        evaluation: how models are scored.
        objective: metrics of the score and the constraints.
        base: the model that trials start from.

    Raises:
        SettingsError: a figure of the objective is no metric of the items.
    """

    def __init__(
        self,
        items: Sequence[Subtask],
        evaluation: EvaluationSettings,
        objective: ObjectiveSettings,
        base: LoadedModel,
    ) -> None:
        self._metrics = ItemMetrics(items, evaluation)
        self.base = self._metrics(base)
        self._objectives = [names for names in (objective.maximise, objective.second) if names]
        guarded = {"retrieval": objective.retrieval, "zero_shot": objective.zero_shot}
        # Two objectives have no constraints.
        self._guarded = {
            name: one for name, one in guarded.items() if one.figures and not objective.second
        }
        named = {
            "maximise": objective.maximise,
            "second": objective.second,
            "retrieval.figures": objective.retrieval.figures,
            "zero_shot.figures": objective.zero_shot.figures,
        }
        for key, names in named.items():
            for name in names:
                if name not in self.base:
                    raise SettingsError(
                        f"{OBJECTIVE}.{key}: '{name}' is no figure of the validation items"
                        f"{nearest(name, self.base)} (known: {', '.join(self.base)})"
                    )

    def __call__(self, model: LoadedModel) -> TrialScore:
        """Score a model, in eval mode."""
        found = self._metrics(model)
        constraints = {
            name: _mean(self.base, one.figures) - _mean(found, one.figures) - one.drop
            for name, one in self._guarded.items()
        }
        values = tuple(_mean(found, names) for names in self._objectives)
        return TrialScore(values, constraints, found)


@dataclass
class TrialObjective:
    """Optuna objective that trains with a trial's values and scores the model; can be pickled."""

    inputs: TrialInputs
    """From `TrialInputs.for_trials`."""
    space: Space
    settings: ObjectiveSettings
    items: Sequence[Subtask]
    """Validation items."""
    folder: Path
    """Folder of the trials' states and checkpoints; a finished trial's are deleted."""
    recorder: TuningRecord
    """Of the training curves."""

    def __getstate__(self) -> dict[str, Any]:
        """Without the scorer, which holds a model's embeddings."""
        return {name: value for name, value in self.__dict__.items() if name != "scorer"}

    def __call__(self, trial: optuna.Trial) -> float | list[float]:
        """Train and score a trial; its value, or its values, for the study.

        Raises:
            optuna.TrialPruned: the pruner has stopped the trial.
            TrainingError: its loss is not finite.
            SettingsError: its values cannot be used.
        """
        method, recipe = self.inputs.build(self.space.suggest(trial))
        number = first_attempt(trial.storage.get_trial(trial._trial_id))
        folder = self.folder / f"trial={number}"
        trainer = Trainer(replace(self.inputs.training, settings=recipe, resume=folder))
        try:
            with _silenced():
                found = self._train(trial, trainer, method, folder / "checkpoint")
        except (KeyboardInterrupt, UpdateFinishedTrialError):
            raise  # the next attempt continues from the state on disk
        except BaseException as error:
            shutil.rmtree(folder, ignore_errors=True)
            if isinstance(error, TrainingError):
                raise TrainingError(error.problem) from None  # its advice names a deleted state
            raise
        trial.set_user_attr(METRICS, dict(found.metrics))
        shutil.rmtree(folder)
        set_constraints(trial, found.constraints)
        if self.settings.second:
            return list(found.values)
        return self._penalised(trial, found)

    @cached_property
    def scorer(self) -> Scorer:
        """Scorer of models relative to the base, which is scored when this is first read."""
        training = self.inputs.training
        base = load(training.model, Trainer(training).device)
        return Scorer(self.items, self.inputs.evaluation, self.settings, base)

    def score_base(self) -> None:
        """Score the base model, unless this process has done so.

        Raises:
            SettingsError: a figure of the objective is no metric of the items.
        """
        _ = self.scorer

    def plan(
        self, settings: StudySettings, configured: Mapping[str, Any], folder: Path
    ) -> StudyPlan:
        """Build the StudyPlan of this objective.

        Args:
            settings: of the study.
            configured: configured values of the searched settings.
            folder: of the study's sqlite file.
        """
        count = settings.processes(Trainer(self.inputs.training).device)
        return StudyPlan(
            settings=replace(settings, workers=count),
            folder=folder,
            space=self.space,
            configured=configured,
            directions=("maximize", "maximize") if self.settings.second else ("maximize",),
            fingerprint=self._fingerprint(),
            seed=self.inputs.training.seed,
        )

    def _fingerprint(self) -> dict[str, str]:
        """Settings and hashes, by name, that determine a trial's value for its parameters."""
        inputs, training = self.inputs, self.inputs.training
        recipe = {
            key: value
            for key, value in inputs.parameters["training"].items()
            if key not in _NOT_FINGERPRINTED
        }
        recipe["precision"] = Trainer(training).compute.precision
        precisions = (inputs.evaluation.image_precision, inputs.evaluation.text_precision)
        return {
            "method": inputs.method,
            "configuration of the method": json.dumps(
                inputs.parameters[inputs.method], sort_keys=True
            ),
            "recipe": json.dumps(recipe, sort_keys=True),
            "space": str(self.space.parameters),
            "objective": json.dumps(asdict(self.settings)),
            "validation items": items_fingerprint(self.items),
            "scoring": " ".join(precisions),
            "data": training.data_hash,
            "views": fingerprint.folder_fingerprint(training.views),
            "base model": load(training.model).fingerprint,
            "code": fingerprint.code_version(method_type(inputs.method)),
            "seed": str(training.seed),
        }

    def _train(
        self, trial: optuna.Trial, trainer: Trainer, method: Method, checkpoint: Path
    ) -> TrialScore:
        """Train a trial with scores at each saved step for pruning; returns the final score."""
        scorer, views, recipe = self.scorer, trainer.inputs.views, trainer.inputs.settings
        last, every = _steps(views, asdict(recipe)), recipe.save_every
        before = trainer.steps_done(method, self.inputs.method)

        def look(step: int, model: LoadedModel) -> None:
            # The exported model is scored after the last step; pruning there would save nothing.
            if step == last:
                return
            found = scorer(model)
            excess = {f"excess/{name}": value for name, value in found.constraints.items()}
            self._record(trial, step, {"score": found.values[0], **excess})
            trial.set_user_attr(STEPS, step - before)
            # Pruners and samplers read constraints: they are set before the value is reported.
            set_constraints(trial, found.constraints)
            trial.report(self._penalised(trial, found), step // every)
            if trial.should_prune():
                raise optuna.TrialPruned(f"at step {step}, score {found.values[0]:.4g}")

        def report(point: Point) -> None:
            self._record(trial, int(point["step"]), point)

        # With two objectives Optuna does not prune.
        callback = None if self.settings.second else look
        done = trainer.train(method, self.inputs.method, checkpoint, report, callback)
        trial.set_user_attr(STEPS, done.step - before)
        return scorer(load(checkpoint, trainer.device))

    def _penalised(self, trial: optuna.Trial, found: TrialScore) -> float:
        """The trial's score minus the penalty for violated constraints."""
        trial.set_user_attr(SCORE, found.values[0])
        excess = sum(max(0.0, value) for value in found.constraints.values())
        return found.values[0] - self.settings.penalty * excess

    def _record(self, trial: optuna.Trial, step: int, figures: Mapping[str, float]) -> None:
        """Log a point of the trial's curves to MLflow, or store it with the trial until later."""
        attributes = trial.user_attrs
        run_id = attributes.get(RUN_ID)
        if run_id is None or not self.recorder.point(run_id, step, figures):
            unlogged = [*attributes.get(UNLOGGED, ()), {**figures, "step": step}]
            trial.set_user_attr(UNLOGGED, unlogged)


def search(
    objective: TrialObjective,
    plan: StudyPlan,
    recorder: TuningRecord,
    on_progress: OnProgress | None = None,
) -> optuna.Study:
    """Score the base and store the image features for all workers, then run the study.

    Args:
        objective: of the study.
        plan: from `TrialObjective.plan`.
        recorder: of the study.
        on_progress: called with the study from time to time.

    Raises:
        SettingsError: the storage cannot be used, it holds another study of this name, a figure
            of the objective is not scored, or every trial ends with a configuration error.
        KeyboardInterrupt: interrupted; the same call continues the study.
    """
    # Embedding takes minutes; a storage that cannot be used is reported before.
    connect(plan.settings.storage, plan.folder).engine.dispose()
    # A figure that the items do not have would fail every trial.
    objective.score_base()
    method, recipe = objective.inputs.build()
    Trainer(replace(objective.inputs.training, settings=recipe)).store_features(method)
    prepare = partial(compute.use_cores, plan.settings.workers or 1)
    return run(plan, objective, recorder, prepare, on_progress)


def set_constraints(trial: optuna.Trial, constraints: Mapping[str, float]) -> None:
    """Set the constraint values of a running trial; earlier values are replaced."""
    for name, value in constraints.items():
        if not math.isfinite(value):
            raise ValueError(f"constraint '{name}': expected a finite number, got {value}")
        trial.storage.set_trial_system_attr(trial._trial_id, _CONSTRAINT.format(name), value)


def _mean(metrics: Mapping[str, float], names: Sequence[str]) -> float:
    """Mean of the named metrics."""
    return sum(metrics[name] for name in names) / len(names)


def _steps(views: Path, recipe: Mapping[str, Any]) -> int:
    """Number of steps of a training with a recipe on views."""
    rows = len(EpochViews(views).epoch(0))
    steps: int = recipe["epochs"] * (rows // min(recipe["batch_size"], rows))
    return steps if recipe["max_steps"] is None else min(steps, recipe["max_steps"])


@contextmanager
def _silenced() -> Iterator[None]:
    """Context manager: log only warnings of training and scoring."""
    levels = [logger.level for logger in _LOGGERS]
    for logger in _LOGGERS:
        logger.setLevel(logging.WARNING)
    try:
        yield
    finally:
        for logger, level in zip(_LOGGERS, levels, strict=True):
            logger.setLevel(level)
