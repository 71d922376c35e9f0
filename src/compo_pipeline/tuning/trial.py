"""The objective of a study: train the recipe with a trial's values and score the model.

The best trial is written as a configuration file.
"""

from __future__ import annotations

import json
import math
import multiprocessing
import shutil
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import optuna
import yaml
from optuna import Study
from optuna.trial import FrozenTrial

from compo_pipeline.benchmarks.items import Subtask
from compo_pipeline.core import compute, variants
from compo_pipeline.core.files import write_text
from compo_pipeline.core.provenance import kedro_run
from compo_pipeline.core.settings import SettingsError, nearest, parse, with_values
from compo_pipeline.evaluation.contamination import items_hash
from compo_pipeline.evaluation.scoring import SCORING, figures_of
from compo_pipeline.evaluation.settings import EvaluationSettings
from compo_pipeline.methods.contract import Method
from compo_pipeline.methods.registry import build
from compo_pipeline.methods.views import EpochViews
from compo_pipeline.models.loading import LoadedModel, load
from compo_pipeline.training.inputs import TrainingInputs, fingerprint_of
from compo_pipeline.training.loop import Job, train
from compo_pipeline.training.settings import TrainingSettings
from compo_pipeline.tuning.selection import ItemMetrics
from compo_pipeline.tuning.settings import ObjectiveSettings, TrialSettings, TuningSettings
from compo_pipeline.tuning.space import Space, Value, configured_values, suggest
from compo_pipeline.tuning.study import EARLIER, StudyPlan, work

# Attributes of a trial: its score without penalty, the steps it was trained for, all its metrics.
SCORE, STEPS, METRICS = "score", "steps", "figures"


@dataclass(frozen=True)
class TrialInputs:
    """Inputs that all trials share: method, parameters, data."""

    method: str
    parameters: Mapping[str, Any]
    """`training` and the method's own parameters, as configured."""
    training: TrainingInputs
    """Inputs of a training. Each trial replaces its settings and the folder of its state."""
    evaluation: EvaluationSettings

    def build(self, values: Mapping[str, Any] | None = None) -> tuple[Method, TrainingSettings]:
        """Build the method and the training settings with other values at dotted keys."""
        parameters = with_values(self.parameters, values or {})
        own = parameters[self.method]
        recipe = parse(TrainingSettings, parameters["training"], "training")
        return build(self.method, own["views"], own["objective"]), recipe

    def of(self, recipe: TrainingSettings, resume: Path | None = None) -> TrainingInputs:
        """Inputs of a training by a recipe, whose state is stored in the folder `resume`."""
        return replace(self.training, settings=recipe, resume=resume or self.training.resume)

    def for_trials(self, settings: TrialSettings) -> TrialInputs:
        """The inputs with a trial's shorter recipe, which saves its state at each evaluation.

        It overwrites a state of another fingerprint: such a state is an earlier study's. A trial is
        scored by the study's objective, at its last step.
        """
        recipe = {**self.parameters["training"], "overwrite": True}
        recipe |= {"validation": {}, "keep": "last", "early_stopping": {}}
        recipe["epochs"] = max(1, round(settings.share * recipe["epochs"]))
        recipe["save_every"] = math.ceil(_steps(self.training.views, recipe) / settings.looks)
        return replace(self, parameters={**self.parameters, "training": recipe})


@dataclass(frozen=True, slots=True)
class TrialScore:
    """A model's score in a trial, its constraint violations and all metrics."""

    value: float
    constraints: Mapping[str, float]
    """Points by which each constraint is violated; feasible at 0 or below."""
    metrics: Mapping[str, float]
    """Metrics by `benchmark/metric/name`."""

    @property
    def penalised(self) -> float:
        """The score minus the points of constraint violations, which pruners do not know of."""
        return self.value - sum(max(0.0, excess) for excess in self.constraints.values())


class Scorer:
    """Callable from a model to its TrialScore on the validation items, relative to the base.

    Args:
        items: validation items.
        evaluation: settings of how models are scored.
        objective: metrics of the score and the constraints.
        base: the model that trials start from.
    """

    def __init__(
        self,
        items: Sequence[Subtask],
        evaluation: EvaluationSettings,
        objective: ObjectiveSettings,
        base: LoadedModel,
    ) -> None:
        self._metrics, self._objective = ItemMetrics(items, evaluation), objective
        self.base = self._metrics(base)

    def __call__(self, model: LoadedModel) -> TrialScore:
        """Score a model, in eval mode."""
        found, objective = self._metrics(model), self._objective
        guarded = {"retrieval": objective.retrieval, "zero_shot": objective.zero_shot}
        constraints = {
            name: _mean(self.base, one.figures) - _mean(found, one.figures) - one.drop
            for name, one in guarded.items()
            if one.figures
        }
        return TrialScore(_mean(found, objective.maximise), constraints, found)


@dataclass
class TrialObjective:
    """Optuna objective that trains with a trial's values and scores the model.

    It can be pickled.
    """

    inputs: TrialInputs
    """Inputs that `TrialInputs.for_trials` returns."""
    space: Space
    settings: ObjectiveSettings
    items: Sequence[Subtask]
    """Validation items."""
    folder: Path
    """Folder of the trials' states and checkpoints; a finished trial's are deleted."""

    def __call__(self, trial: optuna.Trial) -> float:
        """Train and score a trial, and return its penalised score.

        Raises:
            optuna.TrialPruned: the pruner has stopped the trial.
            TrainingError: its loss is not finite.
            SettingsError: its values cannot be used.
        """
        method, recipe = self.inputs.build(suggest(self.space, trial))
        first = [*trial.user_attrs.get(EARLIER, ()), trial.number][0]
        folder = self.folder / f"trial={first}"
        training = self.inputs.of(recipe, folder)
        job = Job(method, self.inputs.method, folder / "checkpoint")
        last, every = _steps(training.views, asdict(recipe)), recipe.save_every

        def look(step: int, model: LoadedModel) -> None:
            # The exported model is scored after the last step; pruning there would save nothing.
            if step < last:
                found = self.scorer(model)
                trial.report(found.penalised, step // every)
                if trial.should_prune():
                    _describe(trial, found, step)
                    raise optuna.TrialPruned(f"at step {step}, score {found.value:.4g}")

        try:
            done = train(training, job, lambda _: None, look)
            found = self.scorer(load(job.folder, training.compute.device))
        except Exception:
            # An interrupted trial's next attempt continues from its state instead.
            shutil.rmtree(folder, ignore_errors=True)
            raise
        _describe(trial, found, done.step)
        shutil.rmtree(folder)
        return found.penalised

    @cached_property
    def scorer(self) -> Scorer:
        """Scorer of models relative to the base, which is scored when this is first read."""
        training = self.inputs.training
        base = load(training.model, training.compute.device)
        return Scorer(self.items, self.inputs.evaluation, self.settings, base)

    def plan(self, tuning: TuningSettings, folder: Path) -> StudyPlan:
        """Build the StudyPlan of this objective.

        Args:
            tuning: settings of the study and its trials.
            folder: folder of the study's sqlite file.

        Raises:
            SettingsError: a figure of the objective is no metric of the items.
        """
        named, known = asdict(self.settings), figures_of(self.items)
        for key in ("maximise", "retrieval", "zero_shot"):
            for name in named[key] if key == "maximise" else named[key]["figures"]:
                if name not in known:
                    raise SettingsError(
                        f"tuning.objective.{key}: '{name}' is no figure of the validation items"
                        f"{nearest(name, known)} (known: {', '.join(known)})"
                    )
        method, recipe = self.inputs.build()
        evaluation = self.inputs.evaluation
        fingerprint = {
            **fingerprint_of(self.inputs.of(recipe), method),
            "space": str(self.space),
            "scored": named,
            "validation items": items_hash(self.items),
            "scoring": f"{SCORING} {evaluation.precision}",
        }
        return StudyPlan(
            settings=tuning.study,
            folder=folder,
            configured=configured_values(self.space, self.inputs.parameters),
            fingerprint=json.loads(json.dumps(fingerprint)),
            seed=self.inputs.training.seed,
            first_look=tuning.trial.first_look,
        )


def search(objective: TrialObjective, plan: StudyPlan) -> None:
    """Run a study, or the rest of it, in processes of its own.

    Raises:
        SettingsError: the storage cannot be used, it holds another study of this name, or a worker
            was killed; the same call continues the study.
    """
    workers = plan.settings.workers
    # Forked processes would share CUDA, threads and database connections with this one.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, context, compute.use_cores, (workers,)) as pool:
        try:
            for done in [pool.submit(_work, plan, objective) for _ in range(workers)]:
                done.result()
        except BrokenProcessPool:
            raise SettingsError(
                "tuning.study: a worker was killed; is there memory for "
                f"{workers} of them? The same command continues the study"
            ) from None


def _work(plan: StudyPlan, objective: TrialObjective) -> None:
    """Main function of a worker process.

    Its study is not sent back.
    """
    work(plan, objective)


def _describe(trial: optuna.Trial, found: TrialScore, step: int) -> None:
    """Store a trial's last score and steps, before it ends."""
    for name, excess in found.constraints.items():
        trial.set_constraint(name, excess)
    trial.set_user_attr(SCORE, found.value)
    trial.set_user_attr(STEPS, step)
    trial.set_user_attr(METRICS, dict(found.metrics))


def _mean(metrics: Mapping[str, float], names: Sequence[str]) -> float:
    """Mean of the named metrics."""
    return sum(metrics[name] for name in names) / len(names)


def _steps(views: Path, recipe: Mapping[str, Any]) -> int:
    """Number of steps of a training with a recipe on views."""
    rows = len(EpochViews(views).epoch(0))
    steps: int = recipe["epochs"] * (rows // min(recipe["batch_size"], rows))
    return steps if recipe["max_steps"] is None else min(steps, recipe["max_steps"])


BEST = "best_params.yml"
# Environments without a recipe of their own, whose variants are those of conf/base.
_PLAIN = (None, "base", "local")


@dataclass(frozen=True, slots=True)
class TunedRun:
    """Kedro environment, parameters and method with which `train_eval` uses the tuned values."""

    env: str | None
    """Kedro's environment; None is its default."""
    given: Mapping[str, Value]
    """Other parameters by dotted key. The `variant` is the study's with the label of tuned values:
    it keeps the values of the study's, and separates the run's folders from the study's own.
    """
    method: str

    def command(self, values: Mapping[str, Value]) -> str:
        """Command line of `train_eval` with the given values by dotted key."""
        return kedro_run("train_eval", self.env, {**self.given, **values})

    def write(self, study: Study, best: FrozenTrial, file: Path) -> None:
        """Write the best values as an entry of `variants`, with the commands that use them."""
        plain = self.env in _PLAIN
        place = "conf/base/parameters_variants.yml" if plain else f"conf/{self.env}/parameters.yml"
        # A key that is searched is not on this command line, where it would override the file's.
        given = {key: value for key, value in self.given.items() if key not in best.params}
        lines = [
            f"Tuned values: trial {best.number} of {len(study.trials)} in the study "
            f"'{study.study_name}', score {best.user_attrs[SCORE]:.4g}. Run them with",
            f"  {self.command(best.params)}",
            f"or add this entry to `variants` in {place} and run",
            f"  {kedro_run('train_eval', self.env, given)}",
        ]
        entry = {variants.KEY: {self.method: {self.given["variant"]: dict(best.params)}}}
        values = yaml.safe_dump(entry, sort_keys=False, allow_unicode=True)
        write_text(file, "".join(f"# {line}\n" for line in lines) + values)


def best_trial(study: Study) -> FrozenTrial | None:
    """The best trial of a study that meets every constraint, or None if there is none."""
    try:
        return study.best_trial
    except ValueError:
        return None


def summary(study: Study) -> dict[str, Any]:
    """Number of trials by state, with the steps and seconds of all trials."""
    trials = study.get_trials(deepcopy=False)
    return {
        "trials": dict(Counter(trial.state.name.lower() for trial in trials)),
        "steps": sum(int(trial.user_attrs.get(STEPS, 0)) for trial in trials),
        "seconds": sum(trial.duration.total_seconds() for trial in trials if trial.duration),
    }
