"""Settings of a study: the YAML key `tuning`."""

from __future__ import annotations

import logging
from collections.abc import Container
from dataclasses import field, replace
from typing import Annotated

from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveInt

from compo_pipeline.benchmarks.foils import NAME as FOILS
from compo_pipeline.benchmarks.settings import BenchmarksSettings
from compo_pipeline.core.settings import Title, settings

_DatabaseUrl = Annotated[str, Field(pattern=r"^(sqlite:///.|postgresql(\+psycopg)?://)")]

log = logging.getLogger(__name__)


@settings
class StudySettings:
    """Settings of one Optuna study: its database, trials and workers."""

    name: Title
    """Name of the study. Workers with the same name and storage share it, and an interrupted study
    is continued."""
    trials: PositiveInt = 30
    """Trials to finish, by all workers together. A killed trial and its retries count as one."""
    workers: PositiveInt = 1
    """Number of processes on this machine. You can start more elsewhere."""
    storage: _DatabaseUrl | None = None
    """Database, `sqlite:///<file>` or `postgresql://<user>@<host>/<database>`. Null is a sqlite
    file in the study's folder. Put a password into PGPASSWORD or ~/.pgpass; one in the URL is never
    logged."""


@settings
class GuardedFigures:
    """Settings of a constraint: metrics whose mean may fall at most `drop` below the base's."""

    figures: tuple[str, ...] = ()
    """Figures to protect, as `benchmark/metric/name`. Empty sets no constraint."""
    drop: NonNegativeFloat = 1.0
    """Points by which the mean of the figures may fall."""


@settings
class ObjectiveSettings:
    """Settings of a study's objective and constraints, as metrics of the validation items."""

    maximise: Annotated[tuple[str, ...], Field(min_length=1)] = (
        "sugar_crepe_pp/itt/average",
        "sugar_crepe_pp/tot/average",
    )
    """Figures whose mean is the score, each as `benchmark/metric/name`."""
    retrieval: GuardedFigures = field(default_factory=GuardedFigures)
    """Constraint on retrieval."""
    zero_shot: GuardedFigures = field(default_factory=GuardedFigures)
    """Constraint on zero-shot accuracy."""
    without_foils: tuple[str, ...] = ()
    """Figures whose mean is the score if `maximise` names foils and no kind of foils is used, for
    example with few captions. Figures listed here guard nothing then. Null refuses such a study."""

    def of_items(self, benchmarks: Container[str]) -> ObjectiveSettings:
        """These settings, with `without_foils` as metrics to maximise without a foil benchmark."""
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
    """Settings by which a trial's training differs from the recipe."""

    share: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Share of the recipe's epochs."""
    looks: PositiveInt = 4
    """Number of evaluations, evenly spaced over the steps, the last one at the end. A trial may be
    pruned after each of the others."""
    first_look: PositiveInt = 1
    """First evaluation, counted from 1, after which a trial may be pruned. It is pruned if it is
    worse than the median of the earlier trials."""


@settings
class TuningSettings:
    """Settings of hyperparameter tuning: study, objective, trials and confirmation."""

    study: StudySettings
    """Name, database, number of trials and workers."""
    benchmarks: BenchmarksSettings
    """Validation items. None of them is among the reported ones."""
    objective: ObjectiveSettings = field(default_factory=ObjectiveSettings)
    """Figures to maximise, and constraints."""
    trial: TrialSettings = field(default_factory=TrialSettings)
    """Differences of a trial's training from the recipe."""
    confirmation: NonNegativeInt = 3
    """Number of seeds with which the best and the configured values are trained, to compare them on
    the reported items. Each has its own views, and none is the study's. 0 compares nothing."""
