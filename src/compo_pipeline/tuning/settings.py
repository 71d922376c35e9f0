"""How a study is run: kept where, by how many workers, sampled, pruned and confirmed how."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Literal

from annotated_types import Ge, Gt, Le

from compo_pipeline import compute

if TYPE_CHECKING:
    import torch

# Where StudySettings stand in the parameters, for messages.
KEY = "tuning.study"

# Each process holds a model and the features of all images.
_MOST_PROCESSES = 4

Direction = Literal["maximize", "minimize"]
Positive = Annotated[int, Ge(1)]
Natural = Annotated[int, Ge(0)]


@dataclass(frozen=True)
class StorageSettings:
    """Where the study is kept.

    Bounds are annotations: an error of `__post_init__` would show the whole mapping, and with it
    a password.

    Attributes:
        url: of a database, `sqlite:///<file>` or `postgresql://<user>@<host>/<database>`; null is
            a sqlite file in the study's folder. A password is better left to PGPASSWORD or
            ~/.pgpass; one in the URL is never logged.
        heartbeat: seconds between signs of life of a running trial.
        grace: seconds without one after which its worker counts as killed.
    """

    url: str | None = None
    heartbeat: Positive = 20
    grace: Positive = 90


@dataclass(frozen=True)
class SamplerSettings:
    """What proposes parameters.

    Attributes:
        name: tpe learns from finished trials; random never does.
        startup_trials: random ones before tpe begins to learn.
    """

    name: Literal["tpe", "random"] = "tpe"
    startup_trials: Natural = 8


@dataclass(frozen=True)
class PrunerSettings:
    """What stops a trial early; with two objectives nothing does.

    Attributes:
        name: median stops a trial that is worse than the median at the same look; hyperband and
            successive_halving give looks to the better part only; none stops nothing.
        startup_trials: of median: finished trials before any is stopped.
        first_look: of median: the first look, counted from 1, after which one may be stopped.
        min_resource: of the others: looks that every trial gets.
        reduction_factor: of the others: one in so many goes on.
    """

    name: Literal["median", "hyperband", "successive_halving", "none"] = "median"
    startup_trials: Natural = 4
    first_look: Positive = 1
    min_resource: Positive = 1
    reduction_factor: Annotated[int, Ge(2)] = 3


@dataclass(frozen=True)
class WarmStartSettings:
    """The best trials of an earlier study are tried again, after the configured values.

    Attributes:
        study: its name; null starts cold.
        url: its storage; null is that of the new study.
        trials: how many at most; those outside the new space are left out.
    """

    study: str | None = None
    url: str | None = None
    trials: Positive = 5


@dataclass(frozen=True)
class StudySettings:
    """One study.

    Attributes:
        name: workers that give the same name and storage share one study, and a study that was
            interrupted goes on.
        trials: that finish, all workers together. A killed trial and its retries count as one.
        workers: processes of this machine; further ones may be started elsewhere. Null is
            what `processes` says.
        retries: of a trial whose worker was killed.
        storage: where the study is kept.
        sampler: what proposes parameters.
        pruner: what stops a trial early.
        warm_start: an earlier study to begin from.
    """

    name: str
    trials: Positive = 30
    workers: Positive | None = None
    retries: Natural = 2
    storage: StorageSettings = field(default_factory=StorageSettings)
    sampler: SamplerSettings = field(default_factory=SamplerSettings)
    pruner: PrunerSettings = field(default_factory=PrunerSettings)
    warm_start: WarmStartSettings = field(default_factory=WarmStartSettings)

    def processes(self, device: torch.device) -> int:
        """`workers`; unless given, one where a GPU trains, else one a core, at most four."""
        if self.workers is not None:
            return self.workers
        return 1 if device.type == "cuda" else min(_MOST_PROCESSES, compute.cores())


@dataclass(frozen=True)
class TrialSettings:
    """How a trial is trained, where that differs from the recipe (`training`); null is the same.

    Attributes:
        share: of the recipe's epochs, in (0, 1].
        batch_size: rows a step.
        max_steps: ends it early.
        looks: at the model, evenly over the steps, the last one at the end; after each of the
            others it may be stopped. With two objectives there is the last one alone.
    """

    share: Annotated[float, Gt(0), Le(1)] = 1.0
    batch_size: Positive | None = None
    max_steps: Positive | None = None
    looks: Positive = 4


@dataclass(frozen=True)
class ConfirmationSettings:
    """What the best values are worth, asked of questions that no trial has seen.

    Attributes:
        seeds: that the best and the configured values are trained with, each on views of its own;
            none of them is the study's. 0 leaves it out.
    """

    seeds: Natural = 3
