"""Constraints come before each report, and cost what is reported."""

import optuna
import pytest
from optuna.trial import TrialState

from compo_pipeline.tuning.constraints import Constraint, finish, report


class Watchful(optuna.pruners.BasePruner):
    """Prunes at step 2, and notes what it sees of the trial."""

    def __init__(self) -> None:
        self.seen: list[tuple[dict[str, float], float]] = []

    def prune(self, study: optuna.Study, trial: optuna.trial.FrozenTrial) -> bool:
        assert trial.last_step is not None
        self.seen.append((dict(trial.constraints), trial.intermediate_values[trial.last_step]))
        return trial.last_step == 2


@pytest.mark.parametrize(("direction", "sign"), [("maximize", 1), ("minimize", -1)])
def test_pruner_sees_constraints_and_penalty(direction: str, sign: int) -> None:
    pruner = Watchful()
    study = optuna.create_study(direction=direction, pruner=pruner)

    def objective(trial: optuna.Trial) -> float:
        report(trial, 1, 60.0, [Constraint("drop", -0.5)], 5)
        report(trial, 2, 61.0, [Constraint("drop", 0.2), Constraint("other", 0.1)], penalty=5)
        raise AssertionError("not pruned")

    study.optimize(objective, n_trials=1)
    assert pruner.seen == [
        ({"drop": -0.5}, 60.0),
        ({"drop": 0.2, "other": 0.1}, pytest.approx(61 - sign * 1.5)),
    ]
    (trial,) = study.trials
    assert trial.state == TrialState.PRUNED
    assert trial.value == pytest.approx(61 - sign * 1.5)
    assert trial.user_attrs["score"] == 61.0


def test_final_constraints_replace_those_of_a_report() -> None:
    study = optuna.create_study(direction="maximize")

    def objective(trial: optuna.Trial) -> float | list[float]:
        report(trial, 0, 50.0, [Constraint("drop", 2.0)], 10)
        return finish(trial, 55.0 + trial.number, [Constraint("drop", 1.0 - trial.number)], 10)

    study.optimize(objective, n_trials=2)
    assert [trial.constraints for trial in study.trials] == [{"drop": 1.0}, {"drop": 0.0}]
    assert [trial.value for trial in study.trials] == [45.0, 56.0]
    assert study.best_trial.number == 1


def test_two_objectives_are_neither_reported_nor_penalised() -> None:
    study = optuna.create_study(directions=["maximize", "maximize"])

    def objective(trial: optuna.Trial) -> float | list[float]:
        report(trial, 0, 50.0, [Constraint("drop", 2.0)], 10)
        return finish(trial, [1.0, 2.0], [Constraint("drop", 1.0)], 10)

    study.optimize(objective, n_trials=1)
    (trial,) = study.trials
    assert (trial.values, trial.constraints) == ([1.0, 2.0], {"drop": 1.0})
    assert trial.intermediate_values == {}


@pytest.mark.parametrize("wrong", [float("nan"), float("inf")])
def test_what_is_no_number_is_refused(wrong: float) -> None:
    trial = optuna.create_study().ask()
    with pytest.raises(ValueError, match="constraint 'drop': expected a finite number, got"):
        report(trial, 0, 1.0, [Constraint("drop", wrong)], 10)
    with pytest.raises(ValueError, match="score: expected a finite number, got"):
        finish(trial, wrong, [], 10)
