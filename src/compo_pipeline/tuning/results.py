"""Results of a study: its best trials, its counts, and the best values as a configuration file."""

from __future__ import annotations

import math
import shutil
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from optuna import Study
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial, TrialState

from compo_pipeline.configuration import variants
from compo_pipeline.run.next_steps import kedro_run
from compo_pipeline.storage.files import write_text
from compo_pipeline.tuning.space import Value
from compo_pipeline.tuning.study import meets_constraints
from compo_pipeline.tuning.trial import SCORE, STEPS

BEST = "best_params.yml"
FRONT = "front"
# Environments without a recipe of their own, whose variants are those of conf/base.
_PLAIN = (None, "base", "local")


@dataclass(frozen=True, slots=True)
class TunedRun:
    """How `train_eval` runs with tuned values: Kedro environment, other parameters and method."""

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

    def advice(self, values: Mapping[str, Value]) -> list[str]:
        """Lines of text: in which file to store tuned values, and the command that uses them.

        A key that is searched is not on this command line, where it would override the file's.
        """
        plain = self.env in _PLAIN
        place = "conf/base/parameters_variants.yml" if plain else f"conf/{self.env}/parameters.yml"
        given = {key: value for key, value in self.given.items() if key not in values}
        command = kedro_run("train_eval", self.env, given)
        return [f"or add this entry to `variants` in {place} and run", f"  {command}"]

    def entry(self, values: Mapping[str, Value]) -> dict[str, Any]:
        """Tuned values as an entry of `variants`, a named variant of the method."""
        return {variants.KEY: {self.method: {self.given["variant"]: dict(values)}}}


def metric_names(study: Study) -> list[str]:
    """Names of a study's objectives: `score`, or `objective 1` and `objective 2`."""
    count = len(study.directions)
    return [f"objective {place + 1}" for place in range(count)] if count > 1 else ["score"]


def feasible(study: Study) -> list[FrozenTrial]:
    """Finished trials of a study that meet every constraint."""
    trials = study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))
    return [trial for trial in trials if meets_constraints(trial)]


def front(study: Study) -> list[FrozenTrial]:
    """The best feasible trials of a study (the Pareto front), without repeated values.

    With one objective this is the best trial alone, with several the Pareto front.
    """
    unique: dict[tuple[float, ...], FrozenTrial] = {}
    for trial in study.best_trials:
        unique.setdefault(tuple(trial.values), trial)
    return list(unique.values())


def best(study: Study) -> FrozenTrial | None:
    """The best feasible trial of a study; None if there is none.

    Of a Pareto front it is the trial nearest to the best value of every objective, each measured
    in shares of its range over the front.
    """
    found = front(study)
    columns = list(zip(*(trial.values for trial in found), strict=True))

    def distance(trial: FrozenTrial) -> float:
        shares = []
        for value, column, direction in zip(trial.values, columns, study.directions, strict=True):
            top = max(column) if direction == StudyDirection.MAXIMIZE else min(column)
            shares.append((top - value) / ((max(column) - min(column)) or 1.0))
        return math.hypot(*shares)

    return min(found, key=distance, default=None)


def baseline(study: Study, configured: Mapping[str, Value]) -> FrozenTrial | None:
    """The finished trial with the configured values; None if there is none."""
    trials = study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))
    return next((trial for trial in trials if trial.params == dict(configured)), None)


def scores(trial: FrozenTrial) -> list[float]:
    """Objective values of a finished trial without the penalty for violated constraints."""
    if len(trial.values) == 1:
        return [float(trial.user_attrs.get(SCORE, trial.values[0]))]
    return list(trial.values)


def describe(study: Study, trial: FrozenTrial) -> str:
    """Objective values of a finished trial as text, such as `score 71.2`."""
    pairs = zip(metric_names(study), scores(trial), strict=True)
    return ", ".join(f"{name} {value:.4g}" for name, value in pairs)


def steps(trial: FrozenTrial) -> int:
    """Number of steps that a trial was trained for."""
    return int(trial.user_attrs.get(STEPS, 0))


def summary(study: Study) -> dict[str, Any]:
    """Number of trials by state, with the steps and seconds of all trials."""
    trials = study.get_trials(deepcopy=False)
    states = Counter(trial.state.name.lower() for trial in trials)
    return {
        "trials": {**states, "feasible": len(feasible(study))},
        "steps": sum(map(steps, trials)),
        "seconds": sum(trial.duration.total_seconds() for trial in trials if trial.duration),
    }


def short_names(names: Iterable[str]) -> dict[str, str]:
    """Mapping from dotted names to their shortest unique endings, such as `weights.margin`."""
    parts = {name: name.split(".") for name in names}
    short: dict[str, str] = {}
    for name, own in parts.items():
        for count in range(1, len(own) + 1):
            ending = own[-count:]
            if sum(other[-count:] == ending for other in parts.values()) == 1:
                break
        short[name] = ".".join(ending)
    return short


def format_value(value: Any) -> str:
    """Format a parameter's value as in YAML, floats with four digits."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def duration(seconds: float | None) -> str:
    """Format a duration in seconds, minutes or hours, and None as a dash."""
    if seconds is None:
        return "\N{EN DASH}"
    if seconds < 100:
        return f"{seconds:.0f} s" if seconds >= 10 else f"{seconds:.1f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"


def write(
    study: Study, configured: Mapping[str, Value], folder: Path, run: TunedRun
) -> Path | None:
    """Write the best trial's values to `best_params.yml`, as a named variant.

    Each trial of a Pareto front has a file below `front/` too.

    Args:
        study: finished or running.
        configured: configured values of the searched settings.
        folder: for `best_params.yml`.
        run: how the file is used, for its header.

    Returns:
        The file; None if no trial is feasible, and then an earlier file is deleted.
    """
    folder.mkdir(parents=True, exist_ok=True)
    (folder / BEST).unlink(missing_ok=True)
    shutil.rmtree(folder / FRONT, ignore_errors=True)
    chosen, found = best(study), front(study)
    if chosen is None:
        return None
    files = {folder / BEST: chosen}
    if len(found) > 1:
        (folder / FRONT).mkdir()
        files |= {folder / FRONT / f"trial_{trial.number}.yml": trial for trial in found}
    for path, trial in files.items():
        header = "".join(f"# {line}\n" for line in _comment_lines(study, trial, configured, run))
        values = yaml.safe_dump(run.entry(trial.params), sort_keys=False, allow_unicode=True)
        write_text(path, header + values)
    return folder / BEST


def _comment_lines(
    study: Study, trial: FrozenTrial, configured: Mapping[str, Value], run: TunedRun
) -> list[str]:
    """Comment lines for the file of tuned values: the trial, its result, how it was found."""
    count = len(study.get_trials(deepcopy=False))
    line = describe(study, trial)
    plain = baseline(study, configured)
    if plain is not None:
        line += f"; the configured values (trial {plain.number}): {describe(study, plain)}"
        if not meets_constraints(plain):
            line += ", but they violate a constraint"
    lines = [
        f"Tuned values: trial {trial.number} of {count} in the study '{study.study_name}'.",
        line,
    ]
    if trial.constraints:
        values = ", ".join(f"{name} {value:.3g}" for name, value in trial.constraints.items())
        lines.append(f"Constraints, met at 0 or below: {values}")
    found = front(study)
    if len(found) > 1:
        numbers = ", ".join(str(other.number) for other in found)
        lines.append(
            f"One of the Pareto front (trials {numbers}); {BEST} has the one nearest to the best "
            "of each objective"
        )
    return [*lines, "Run them with", f"  {run.command(trial.params)}", *run.advice(trial.params)]
