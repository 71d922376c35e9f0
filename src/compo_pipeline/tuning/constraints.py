"""What a trial must not give up for its score, told to sampler and pruner in the right order.

Optuna takes a trial without constraint values for feasible and its pruners ignore constraints: so
they are set before each report, and what is reported is the score minus a penalty.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import optuna

SCORE = "score"

# Where Optuna keeps them. `Trial.set_constraint` refuses to replace a value, but what was measured
# at an intermediate step is out of date at the next one.
_OPTUNA_KEY = "constraints:{}"


@dataclass(frozen=True, slots=True)
class Constraint:
    """`value` <= 0 is feasible; above that it is by how much the constraint is violated."""

    name: str
    value: float


def report(
    trial: optuna.Trial,
    step: int,
    score: float,
    constraints: Iterable[Constraint],
    penalty: float,
) -> None:
    """Tell an intermediate score, and end the trial where its pruner says so.

    With two objectives there is no pruning: only the constraints are set.

    Args:
        trial: the running trial.
        step: of the training, at least 0, another one at each report.
        score: without any penalty; kept as the trial's attribute `score`.
        constraints: as measured at this step; they replace those of an earlier one.
        penalty: per unit of violation.

    Raises:
        ValueError: a score or constraint is not a finite number.
        optuna.TrialPruned: the trial is not worth going on with.
    """
    measured = list(constraints)
    _set(trial, measured)
    if len(trial.study.directions) > 1:
        return
    trial.set_user_attr(SCORE, _finite(SCORE, score))
    trial.report(_penalised(trial, score, measured, penalty), step)
    if trial.should_prune():
        raise optuna.TrialPruned(f"at step {step}, score {score:.4g}")


def finish(
    trial: optuna.Trial,
    score: float | Sequence[float],
    constraints: Iterable[Constraint],
    penalty: float,
) -> float | list[float]:
    """Set the final constraints; the value for the objective to return.

    Several scores stay as they are: a front of penalised values would hide what was traded for
    what.

    Args:
        trial: the running trial.
        score: of the finished training, without any penalty; one for each objective.
        constraints: as measured at its end.
        penalty: per unit of violation.

    Raises:
        ValueError: a score or constraint is not a finite number.
    """
    measured = list(constraints)
    _set(trial, measured)
    if isinstance(score, Sequence):
        return [_finite(SCORE, each) for each in score]
    trial.set_user_attr(SCORE, _finite(SCORE, score))
    return _penalised(trial, score, measured, penalty)


def _set(trial: optuna.Trial, constraints: Iterable[Constraint]) -> None:
    for constraint in constraints:
        value = _finite(f"constraint '{constraint.name}'", constraint.value)
        key = _OPTUNA_KEY.format(constraint.name)
        trial.storage.set_trial_system_attr(trial._trial_id, key, value)


def _penalised(
    trial: optuna.Trial, score: float, constraints: Iterable[Constraint], penalty: float
) -> float:
    lost = penalty * sum(max(0.0, constraint.value) for constraint in constraints)
    maximized = trial.study.direction == optuna.study.StudyDirection.MAXIMIZE
    return score - lost if maximized else score + lost


def _finite(what: str, value: float) -> float:
    if not math.isfinite(value):
        raise ValueError(f"{what}: expected a finite number, got {value}")
    return float(value)
