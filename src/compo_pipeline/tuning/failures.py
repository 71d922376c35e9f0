"""Why trials fail: every failed trial says so in two attributes, a kind and a sentence.

Attributes of a finished trial cannot be changed, so they are written before its state is.
"""

from __future__ import annotations

import gc
import logging
import math
import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from enum import StrEnum

import optuna
from optuna.exceptions import UpdateFinishedTrialError
from optuna.trial import FrozenTrial, TrialState

from compo_pipeline.configuration import SettingsError

Objective = Callable[[optuna.Trial], float | Sequence[float]]
Interruptible = AbstractContextManager[None]

FAILURE = "failure"
REASON = "reason"
KILLED_REPEATEDLY = "killed repeatedly"
# A reason is a line of a table; the log has the rest.
_LENGTH = 500

log = logging.getLogger(__name__)


class Failure(StrEnum):
    """The kinds of failure. Killed and interrupted trials are tried again, the others are not."""

    KILLED = "killed"
    INTERRUPTED = "interrupted"
    SETTINGS = "settings"
    MEMORY = "out of memory"
    VALUE = "value"
    ERROR = "error"


class TrialFailed(Exception):
    """A trial failed and has said why."""


def failure(trial: FrozenTrial) -> Failure | None:
    """The kind of a failed trial's failure; None for one that has not failed."""
    if trial.state != TrialState.FAIL:
        return None
    return Failure(trial.user_attrs.get(FAILURE, Failure.ERROR))


def reason(trial: FrozenTrial) -> str | None:
    """Why a trial failed; None for one that has not."""
    if trial.state != TrialState.FAIL:
        return None
    return str(trial.user_attrs.get(REASON, "unknown"))


def evaluate(
    objective: Objective, trial: optuna.Trial, interruptible: Callable[[], Interruptible]
) -> float | list[float]:
    """The objective's finite value or values; a failure is noted in the trial.

    Args:
        objective: of the study.
        trial: running.
        interruptible: a block within which KeyboardInterrupt may be raised.

    Raises:
        TrialFailed: the objective raised, ran out of memory or returned something else than one
            finite number for each direction.
        KeyboardInterrupt: it was interrupted, which is noted too.
        optuna.TrialPruned: passed on.
        UpdateFinishedTrialError: the trial was taken for lost meanwhile, and somebody retries it.
    """
    try:
        with interruptible():
            value = objective(trial)
        return _checked(value, len(trial.study.directions))
    except (optuna.TrialPruned, UpdateFinishedTrialError):
        raise
    except KeyboardInterrupt:
        note(trial, Failure.INTERRUPTED, "interrupted")
        raise
    except Exception as error:
        kind, why = _classify(error)
        # Not the cause of what is raised: its frames hold the tensors of the failed trial.
        log.warning("trial %d failed: %s", trial.number, why, exc_info=_traced(kind, error))
    note(trial, kind, why)
    if kind is Failure.MEMORY:
        _free()
    raise TrialFailed(why)


def note(trial: optuna.Trial, kind: Failure, why: str) -> None:
    """Write into a running trial why it is about to fail."""
    trial.set_user_attr(FAILURE, kind.value)
    trial.set_user_attr(REASON, why[:_LENGTH])


def _checked(got: float | Sequence[float], count: int) -> float | list[float]:
    values = list(got) if isinstance(got, Sequence) else [got]
    if len(values) != count:
        raise _ValueProblem(f"expected {count} value(s) of the objective, got {got!r}")
    return _finite(values) if count > 1 else _finite(values)[0]


def _finite(values: Sequence[float]) -> list[float]:
    try:
        numbers = [float(value) for value in values]
    except (TypeError, ValueError):
        numbers = [math.nan]
    if not all(map(math.isfinite, numbers)):
        raise _ValueProblem(f"expected finite values of the objective, got {values!r}")
    return numbers


class _ValueProblem(ValueError):
    """What an objective returned cannot be used."""


def _classify(error: Exception) -> tuple[Failure, str]:
    why = " ".join(str(error).split())
    if isinstance(error, SettingsError):
        return Failure.SETTINGS, f"configuration: {why}"
    if isinstance(error, _ValueProblem):
        return Failure.VALUE, why
    # torch.OutOfMemoryError is a RuntimeError; so is what its CPU allocator raises, whose words
    # are "can't allocate memory".
    out = isinstance(error, RuntimeError) and any(
        words in why.lower() for words in ("out of memory", "can't allocate memory")
    )
    if isinstance(error, MemoryError) or out:
        return Failure.MEMORY, f"out of memory: {why}".removesuffix(": ")
    return Failure.ERROR, f"{type(error).__name__}: {why}".removesuffix(": ")


def _traced(kind: Failure, error: Exception) -> Exception | None:
    """The error where its traceback helps; the others are explained by their message."""
    return error if kind is Failure.ERROR else None


def _free() -> None:
    gc.collect()
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available():
        torch.cuda.empty_cache()
