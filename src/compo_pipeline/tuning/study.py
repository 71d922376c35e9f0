"""A study: begun or joined, its first trials, its sampler and pruner."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import optuna
from optuna.trial import TrialState

from compo_pipeline.configuration import SettingsError
from compo_pipeline.seeding import digest
from compo_pipeline.tuning.attempts import ORIGIN
from compo_pipeline.tuning.settings import (
    KEY,
    Direction,
    PrunerSettings,
    SamplerSettings,
    StorageSettings,
    StudySettings,
)
from compo_pipeline.tuning.storage import Lock, Storage, connect

Values = Mapping[str, Any]

CONFIGURED = "configured"
WARM_START = "warm start"
# Attributes of the study.
_IDENTITY = "identity"
RUN = "run_id"

log = logging.getLogger(__name__)


def _anything(values: Values) -> bool:
    return True


@dataclass(frozen=True)
class Plan:
    """What every worker of a study has to know. It is pickled to worker processes: no lambdas.

    Attributes:
        settings: of the study.
        folder: for its sqlite file, where the settings name no database.
        directions: of its objectives.
        configured: what the configuration says of the searched parameters: always trial 0.
        identity: what makes trials comparable (method, data, space, steps, ...), as plain values;
            a study of another identity is not joined.
        fits: whether parameters of an earlier study lie in the space; needed by a warm start.
        seed: of the proposals.
    """

    settings: StudySettings
    folder: Path
    directions: tuple[Direction, ...]
    configured: Values
    identity: Values = field(default_factory=dict)
    fits: Callable[[Values], bool] = _anything
    seed: int = 0


@dataclass(frozen=True)
class Opened:
    """A study, its storage and its lock."""

    study: optuna.Study
    storage: Storage
    lock: Lock


def open_study(plan: Plan) -> Opened:
    """Begin the study or join it; the first to come puts the first trials into its queue.

    Raises:
        SettingsError: the storage cannot be used, or holds a study of this name and another
            identity.
    """
    # Optuna has a log of its own, with a second line for all that this one says.
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    settings = plan.settings
    storage = connect(settings.storage, plan.folder)
    lock = Lock(storage, settings.name)
    with lock:
        study = optuna.create_study(
            study_name=settings.name,
            storage=storage,
            directions=list(plan.directions),
            pruner=pruner(settings.pruner),
            load_if_exists=True,
        )
        _identify(study, plan)
        _enqueue_first(study, storage, plan)
    return Opened(study, storage, lock)


def read(settings: StudySettings, folder: Path) -> optuna.Study:
    """A study that there is, as far as it has come.

    Args:
        settings: its name and storage.
        folder: of its file, where the settings name no database.
    """
    storage = connect(settings.storage, folder)
    return optuna.load_study(study_name=settings.name, storage=storage)


def sampler(settings: SamplerSettings, seed: int, begun: int) -> optuna.samplers.BaseSampler:
    """What proposes the next trial.

    It is made anew for each trial, from the number of trials before it: workers never propose the
    same, and a study of one worker goes on after an interruption as it would have without.
    """
    drawn = digest(seed, "sampler", begun) % 2**32
    if settings.name == "random":
        return optuna.samplers.RandomSampler(seed=drawn)
    return optuna.samplers.TPESampler(seed=drawn, n_startup_trials=settings.startup_trials)


def pruner(settings: PrunerSettings) -> optuna.pruners.BasePruner:
    """What stops a trial early."""
    if settings.name == "median":
        return optuna.pruners.MedianPruner(settings.startup_trials, settings.first_look)
    steps = {
        "min_resource": settings.min_resource,
        "reduction_factor": settings.reduction_factor,
    }
    if settings.name == "hyperband":
        return optuna.pruners.HyperbandPruner(**steps)
    if settings.name == "successive_halving":
        return optuna.pruners.SuccessiveHalvingPruner(**steps)
    return optuna.pruners.NopPruner()


def best_of(study: optuna.Study, count: int, fits: Callable[[Values], bool]) -> list[Values]:
    """Parameters of the best feasible trials that fit, the best first.

    Of several objectives it is the front, in the order of the trials.
    """
    if len(study.directions) > 1:
        ranked = study.best_trials
    else:
        done = study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))
        feasible = [t for t in done if all(value <= 0 for value in t.constraints.values())]
        sign = -1 if study.direction == optuna.study.StudyDirection.MAXIMIZE else 1
        ranked = sorted(feasible, key=lambda trial: sign * float(trial.value or 0.0))
    fitting = [trial.params for trial in ranked if fits(trial.params)]
    if len(fitting) < len(ranked):
        log.info("%d trials of '%s' do not fit", len(ranked) - len(fitting), study.study_name)
    return list(fitting[:count])


def _identify(study: optuna.Study, plan: Plan) -> None:
    ours = {key: str(value) for key, value in plan.identity.items()}
    ours["directions"] = ", ".join(plan.directions)
    theirs = study.user_attrs.get(_IDENTITY)
    if theirs is None:
        study.set_user_attr(_IDENTITY, ours)
        theirs = ours
    other = sorted(k for k in {*ours, *theirs} if ours.get(k) != theirs.get(k))
    if other:
        raise SettingsError(
            f"{KEY}.name: a study '{study.study_name}' exists that differs in {', '.join(other)}; "
            "its trials cannot be compared with new ones: choose another name"
        )


def _enqueue_first(study: optuna.Study, storage: Storage, plan: Plan) -> None:
    """Queue the configured values and those of the warm start; a part may be queued already.

    Nobody takes a trial before all of them are, so one that was taken says that they are.
    """
    trials = study.get_trials(deepcopy=False)
    if any(trial.state != TrialState.WAITING for trial in trials):
        return
    first: list[tuple[str, Values]] = [(CONFIGURED, plan.configured)]
    first += [(WARM_START, values) for values in _warm(storage, plan)]
    for origin, values in first[len(trials) : plan.settings.trials]:
        study.enqueue_trial(dict(values), user_attrs={ORIGIN: origin})


def _warm(storage: Storage, plan: Plan) -> list[Values]:
    warm = plan.settings.warm_start
    if warm.study is None:
        return []
    earlier = storage
    if warm.url is not None:
        times = plan.settings.storage
        earlier = connect(StorageSettings(warm.url, times.heartbeat, times.grace), plan.folder)
    try:
        previous = optuna.load_study(study_name=warm.study, storage=earlier)
    except KeyError:
        known = ", ".join(optuna.get_all_study_names(earlier)) or "none"
        raise SettingsError(
            f"{KEY}.warm_start.study: no study '{warm.study}' there (known: {known})"
        ) from None
    best = best_of(previous, warm.trials, plan.fits)
    log.info("warm start with %d trials of '%s'", len(best), warm.study)
    return [values for values in best if dict(values) != dict(plan.configured)]
