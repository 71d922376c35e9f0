"""Settings of a study: the YAML key `tuning`."""

from __future__ import annotations

import logging
from collections.abc import Container
from dataclasses import field, replace
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveInt

from compo_pipeline.benchmarks.foils import NAME as FOILS
from compo_pipeline.benchmarks.settings import BenchmarksSettings
from compo_pipeline.configuration.settings import Title, settings
from compo_pipeline.run import compute

if TYPE_CHECKING:
    import torch

log = logging.getLogger(__name__)

# YAML keys of StudySettings and ObjectiveSettings, for messages.
STUDY, OBJECTIVE = "tuning.study", "tuning.objective"

# Each process holds a model and the features of all images.
_MOST_PROCESSES = 4


@settings
class StorageSettings:
    """Settings of a study's Optuna database."""

    url: str | None = None
    """`sqlite:///<file>` or `postgresql://<user>@<host>/<database>`; null is a sqlite file in the
    study's folder. A password belongs in PGPASSWORD or ~/.pgpass; one in the URL is never logged.
    """
    heartbeat: PositiveInt = 20
    """Seconds between heartbeats of a running trial."""
    grace: PositiveInt = 90
    """Seconds without a heartbeat after which a trial's worker counts as killed."""

    def __post_init__(self) -> None:
        """Check that a heartbeat fits into the grace period."""
        if self.grace <= self.heartbeat:
            raise ValueError(
                f"grace: expected more than the heartbeat's {self.heartbeat} s, got {self.grace} s"
            )


@settings
class SamplerSettings:
    """Settings of the Optuna sampler."""

    name: Literal["tpe", "random"] = "tpe"
    """tpe learns from finished trials; random does not."""
    startup_trials: NonNegativeInt = 8
    """Random trials before tpe begins to learn."""


@settings
class PrunerSettings:
    """Settings of the Optuna pruner, which stops trials early; none with two objectives."""

    name: Literal["median", "hyperband", "successive_halving", "none"] = "median"
    """median stops a trial that is worse than the median at the same look; hyperband and
    successive_halving continue the better part of the trials only; none stops no trial.
    """
    startup_trials: NonNegativeInt = 4
    """Of median: finished trials before any is stopped."""
    first_look: PositiveInt = 1
    """Of median: the first look, counted from 1, after which a trial may be stopped."""
    min_resource: PositiveInt = 1
    """Of the others: looks that every trial gets."""
    reduction_factor: Annotated[int, Field(ge=2)] = 3
    """Of the others: one trial in this many continues."""


@settings
class WarmStartSettings:
    """Settings of a warm start: an earlier study whose best trials are run again."""

    study: Title | None = None
    """Name of the earlier study; null: no warm start."""
    url: str | None = None
    """Its storage; null is that of the new study."""
    trials: PositiveInt = 5
    """How many trials at most; those outside the new space are left out."""


@settings
class StudySettings:
    """Settings of one Optuna study: trials, workers, database, sampler and pruner."""

    name: Title
    """Workers with the same name and storage share one study; an interrupted study is continued."""
    trials: PositiveInt = 30
    """Trials to finish, by all workers together. A killed trial and its retries count as one."""
    workers: PositiveInt | None = None
    """Processes on this machine; more may be started elsewhere. Null: one where a GPU trains, else
    one per core, four at most.
    """
    retries: NonNegativeInt = 2
    """Retries of a trial whose worker was killed."""
    storage: StorageSettings = field(default_factory=StorageSettings)
    """Database of the study."""
    sampler: SamplerSettings = field(default_factory=SamplerSettings)
    """Sampler of parameters."""
    pruner: PrunerSettings = field(default_factory=PrunerSettings)
    """Pruner, which stops trials early."""
    warm_start: WarmStartSettings = field(default_factory=WarmStartSettings)
    """Earlier study whose best trials are run again."""

    def processes(self, device: torch.device) -> int:
        """Number of worker processes: the setting `workers`, or 1 on a GPU, up to 4 on a CPU."""
        if self.workers is not None:
            return self.workers
        return 1 if device.type == "cuda" else min(_MOST_PROCESSES, compute.cores())


@settings
class GuardedFigures:
    """Settings of a constraint: metrics whose mean may fall at most `drop` below the base's."""

    figures: tuple[str, ...] = ()
    """Each as `benchmark/metric/name`; none: no constraint."""
    drop: NonNegativeFloat = 1.0
    """Points by which their mean may fall."""


@settings
class ObjectiveSettings:
    """Settings of a study's objective and constraints, as metrics of the validation items."""

    maximise: Annotated[tuple[str, ...], Field(min_length=1)] = (
        "sugar_crepe_pp/itt/average",
        "sugar_crepe_pp/tot/average",
    )
    """Figures whose mean is the score, each as `benchmark/metric/name`."""
    second: tuple[str, ...] = ()
    """Figures of a second objective; the study then has a Pareto front, no constraints and no
    pruning.
    """
    retrieval: GuardedFigures = field(default_factory=GuardedFigures)
    """Constraint on retrieval."""
    zero_shot: GuardedFigures = field(default_factory=GuardedFigures)
    """Constraint on zero-shot accuracy."""
    penalty: NonNegativeFloat = 1.0
    """Points of score per point of constraint violation. Training may win back by its end what it
    loses on its way: a high penalty prunes trials that would have been the best.
    """
    without_foils: tuple[str, ...] = ()
    """Figures whose mean is the score where `maximise` names foils and no kind of them is used, as
    of few captions; those among them guard nothing then. None: such a study is refused.
    """

    def of_items(self, benchmarks: Container[str]) -> ObjectiveSettings:
        """These settings; without a foil benchmark, `without_foils` are the metrics to maximise."""
        named = [name for name in self.maximise if name.startswith(f"{FOILS}/")]
        if not (named and self.without_foils) or FOILS in benchmarks:
            return self
        log.warning(
            "No kind of foils is used: the study maximises %s in place of %s.",
            ", ".join(self.without_foils),
            ", ".join(self.maximise),
        )
        guarded = set(self.retrieval.figures) - set(self.without_foils)
        guard = replace(self.retrieval, figures=tuple(sorted(guarded)))
        return replace(self, maximise=self.without_foils, retrieval=guard)


@settings
class TrialSettings:
    """Settings by which a trial's training differs from the recipe; null: no difference."""

    share: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Share of the recipe's epochs."""
    batch_size: PositiveInt | None = None
    """Rows per step."""
    max_steps: PositiveInt | None = None
    """Ends the training early."""
    looks: PositiveInt = 4
    """Evaluations, evenly over the steps, the last one at the end; a trial may be pruned after each
    of the others. With two objectives there is the last one only.
    """


@settings
class ConfirmationSettings:
    """Settings of the comparison of best and configured values on the reported items."""

    seeds: NonNegativeInt = 3
    """Seeds that both are trained with, each with views of its own and none the study's. 0: no
    confirmation.
    """


@settings
class TuningSettings:
    """Settings of hyperparameter tuning (YAML key `tuning`)."""

    study: StudySettings
    """Storage, number of trials, sampler and pruner."""
    benchmarks: BenchmarksSettings
    """Validation items; none of them is among the reported ones."""
    objective: ObjectiveSettings = field(default_factory=ObjectiveSettings)
    """What is maximised under which constraints."""
    trial: TrialSettings = field(default_factory=TrialSettings)
    """Differences of a trial's training from the recipe."""
    confirmation: ConfirmationSettings = field(default_factory=ConfirmationSettings)
    """Comparison of the best with the configured values."""
