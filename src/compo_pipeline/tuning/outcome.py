"""What a study found: its best trials, and a file of the best one's values that can be run."""

from __future__ import annotations

import math
import shutil
import warnings
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import optuna
import yaml
from optuna import Study
from optuna.exceptions import ExperimentalWarning
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial, TrialState

from compo_pipeline.next_steps import kedro_run
from compo_pipeline.tuning.constraints import SCORE
from compo_pipeline.tuning.space import Value, overlay

RECIPE = "best_params.yml"
_PIPELINE = "train_eval"
# The trial's attribute that holds how many steps it was trained for.
STEPS = "steps"
# Environments whose recipe is that of conf/base: another one can take their place.
_PLAIN = (None, "base", "local")
FRONT = "front"


@dataclass(frozen=True, slots=True)
class Run:
    """How `train_eval` is told what it shall train, beside the values of a trial.

    Attributes:
        env: Kedro's environment; None is its default.
        given: further parameters by dotted key, such as the method. A variant of its own keeps the
            tuned run from the folders of the configured one.
    """

    env: str | None = None
    given: Mapping[str, Value] = field(default_factory=lambda: {"variant": "tuned"})

    def command(self, values: Mapping[str, Value]) -> str:
        """The command line that trains and evaluates with values by dotted key."""
        return kedro_run(_PIPELINE, self.env, {**self.given, **values})

    def advice(self) -> list[str]:
        """How the values are kept for good, and the command that reads them from there."""
        if self.env in _PLAIN:
            return ["or copy this file to conf/tuned/parameters.yml and run", self._kept("tuned")]
        return [f"or write them into conf/{self.env}/parameters.yml and run", self._kept(self.env)]

    def _kept(self, env: str | None) -> str:
        return f"  {kedro_run(_PIPELINE, env, self.given)}"


def snapshot(study: Study, change: Callable[[FrozenTrial], None] | None = None) -> Study:
    """A copy in memory, which stands still while workers go on with the study.

    Args:
        study: in whatever state.
        change: made to the copy of each trial.
    """
    trials = study.get_trials()
    copy = optuna.create_study(
        study_name=study.study_name,
        directions=study.directions,
        storage=optuna.storages.InMemoryStorage(),
    )
    with warnings.catch_warnings():
        # Optuna calls names of objectives experimental, since years.
        warnings.simplefilter("ignore", ExperimentalWarning)
        copy.set_metric_names(metric_names(study))
    for trial in trials:
        if change is not None:
            change(trial)
        copy.add_trial(trial)
    return copy


def metric_names(study: Study) -> list[str]:
    """Names of the objectives."""
    count = len(study.directions)
    named = study.metric_names or [f"objective {place + 1}" for place in range(count)]
    return list(named) if count > 1 or study.metric_names else ["score"]


def feasible(study: Study) -> list[FrozenTrial]:
    """Finished trials that meet every constraint.

    Where some trials have constraints, one that lacks a value has not been shown to meet it.
    """
    trials = study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))
    names = {name for trial in trials for name in trial.constraints}
    return [
        trial
        for trial in trials
        if names == trial.constraints.keys() and max(trial.constraints.values(), default=0) <= 0
    ]


def front(study: Study) -> list[FrozenTrial]:
    """The feasible trials that no other one beats, earliest first.

    Of one objective this is the best trial alone; of several those that are not dominated. Of
    trials with equal values the earliest stands for all.
    """
    trials = feasible(study)
    gains = [_gain(trial, study) for trial in trials]

    def beaten(place: int) -> bool:
        own = gains[place]
        return any(
            all(ours >= its for ours, its in zip(other, own, strict=True))
            and (other != own or before < place)
            for before, other in enumerate(gains)
        )

    return [trial for place, trial in enumerate(trials) if not beaten(place)]


def best(study: Study) -> FrozenTrial | None:
    """The best feasible trial; None where there is none.

    Of a front it is the trial nearest to the best value of every objective, each objective
    measured in shares of its span over the front.
    """
    found = front(study)
    if len(found) < 2:
        return found[0] if found else None
    gains = [_gain(trial, study) for trial in found]
    tops = [max(column) for column in zip(*gains, strict=True)]
    spans = [max(column) - min(column) for column in zip(*gains, strict=True)]

    def distance(place: int) -> float:
        shares = zip(gains[place], tops, spans, strict=True)
        return math.hypot(*((top - own) / span if span else 0.0 for own, top, span in shares))

    return found[min(range(len(found)), key=distance)]


def baseline(study: Study, configured: Mapping[str, Value]) -> FrozenTrial | None:
    """The finished trial of the configured values."""
    trials = study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))
    return next((trial for trial in trials if trial.params == dict(configured)), None)


def write(
    study: Study, configured: Mapping[str, Value], folder: Path, run: Run | None = None
) -> Path | None:
    """Write the best trial's values as parameters that Kedro reads, with what they are on top.

    Of several objectives, each trial of the front has a file below `front/` too.

    Args:
        study: finished, or as far as it is.
        configured: what the configuration says of the same keys.
        folder: for `best_params.yml`.
        run: how the file is to be run.

    Returns:
        The file; None where no trial is feasible, and then an earlier file is gone.
    """
    study = snapshot(study)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / RECIPE).unlink(missing_ok=True)
    shutil.rmtree(folder / FRONT, ignore_errors=True)
    chosen = best(study)
    if chosen is None:
        return None
    found = front(study)
    files = {folder / RECIPE: chosen}
    if len(found) > 1:
        (folder / FRONT).mkdir()
        files |= {folder / FRONT / f"trial_{trial.number}.yml": trial for trial in found}
    for path, trial in files.items():
        path.write_text(_recipe(study, trial, configured, run or Run()), encoding="utf-8")
    return folder / RECIPE


def measured(trial: FrozenTrial) -> list[float]:
    """A finished trial's values without the penalty that the search puts on broken constraints."""
    if len(trial.values) == 1:
        return [float(trial.user_attrs.get(SCORE, trial.values[0]))]
    return list(trial.values)


def described(study: Study, trial: FrozenTrial) -> str:
    """A finished trial's values in a few words: `score 71.2`."""
    pairs = zip(metric_names(study), measured(trial), strict=True)
    return ", ".join(f"{name} {value:.4g}" for name, value in pairs)


def summary(study: Study) -> dict[str, Any]:
    """Counts of a study: trials by state, steps that were trained, seconds that it took."""
    trials = study.get_trials(deepcopy=False)
    counted = Counter(trial.state.name.lower() for trial in trials)
    return {
        "trials": {**counted, "feasible": len(feasible(study))},
        "steps": sum(steps(trial) for trial in trials),
        "seconds": sum(trial.duration.total_seconds() for trial in trials if trial.duration),
    }


def steps(trial: FrozenTrial) -> int:
    """Steps that a trial was trained for, as far as it has said."""
    return int(trial.user_attrs.get(STEPS, 0))


def _recipe(study: Study, trial: FrozenTrial, configured: Mapping[str, Value], run: Run) -> str:
    count = len(study.get_trials(deepcopy=False))
    lines = [
        f"Tuned values: trial {trial.number} of {count} in the study '{study.study_name}'.",
        described(study, trial),
    ]
    plain = baseline(study, configured)
    if plain is not None:
        lines[-1] += f"; the configured values (trial {plain.number}): {described(study, plain)}"
        if plain.number not in {found.number for found in feasible(study)}:
            lines[-1] += ", but they break a constraint"
    if trial.constraints:
        shown = (f"{name} {value:.3g}" for name, value in trial.constraints.items())
        lines.append(f"Constraints, met where 0 or below: {', '.join(shown)}")
    found = front(study)
    if len(found) > 1:
        numbers = ", ".join(str(other.number) for other in found)
        nearest = "; best_params.yml holds the one nearest to the best of each objective"
        lines.append(f"One of the Pareto front (trials {numbers}){nearest}")
    lines += [
        "Run them with",
        f"  {run.command(trial.params)}",
        *run.advice(),
    ]
    head = "".join(f"# {line}\n" for line in lines)
    return head + yaml.safe_dump(overlay(trial.params), sort_keys=False, allow_unicode=True)


def _gain(trial: FrozenTrial, study: Study) -> tuple[float, ...]:
    """The values of a trial, turned so that more is better."""
    return tuple(
        value if direction == StudyDirection.MAXIMIZE else -value
        for value, direction in zip(trial.values, study.directions, strict=True)
    )
