"""Studies in memory, made trial by trial."""

import warnings
from types import SimpleNamespace

import optuna
import pytest
from optuna.distributions import FloatDistribution, IntDistribution
from optuna.exceptions import ExperimentalWarning
from optuna.trial import TrialState

LR, POSITIVES = "training.optimizer.lr", "clic.objective.positives"
DISTRIBUTIONS = {LR: FloatDistribution(1e-4, 1e-2, log=True), POSITIVES: IntDistribution(1, 5)}


def _study(*trials, directions=("maximize",), names=None):
    """A study in memory that holds these trials."""
    study = optuna.create_study(
        study_name="clic-scenes",
        directions=directions,
        storage=optuna.storages.InMemoryStorage(),
    )
    if names:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ExperimentalWarning)
            study.set_metric_names(names)
    study.add_trials(trials)
    return study


def _trial(*values, lr=1e-3, positives=2, drop=None, state=TrialState.COMPLETE, **more):
    """A trial of the two parameters; `drop` is its constraint."""
    return optuna.create_trial(
        state=state,
        values=list(values) or None,
        params={LR: lr, POSITIVES: positives},
        distributions=DISTRIBUTIONS,
        constraints=None if drop is None else {"drop": drop},
        **more,
    )


def _failed(why):
    """A trial that failed and says why."""
    return _trial(state=TrialState.FAIL, user_attrs={"failure": "error", "reason": why})


def _stopped(score, step):
    """A trial that its pruner stopped."""
    return _trial(
        state=TrialState.PRUNED, intermediate_values={step: score}, user_attrs={"score": score}
    )


@pytest.fixture(scope="session")
def made():
    """Makers of studies and trials; `configured` are the values of the configuration."""
    return SimpleNamespace(
        study=_study,
        trial=_trial,
        failed=_failed,
        stopped=_stopped,
        configured={LR: 2e-3, POSITIVES: 4},
    )
