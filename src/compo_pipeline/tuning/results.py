"""Results of a study: its best trial, its counts, and the best values as a configuration file."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from optuna import Study
from optuna.trial import FrozenTrial

from compo_pipeline.core import variants
from compo_pipeline.core.files import write_text
from compo_pipeline.core.next_steps import kedro_run
from compo_pipeline.tuning.space import Value
from compo_pipeline.tuning.trial import SCORE, STEPS

BEST = "best_params.yml"
# Environments without a recipe of their own, whose variants are those of conf/base.
_PLAIN = (None, "base", "local")


@dataclass(frozen=True, slots=True)
class TunedRun:
    """Kedro environment, parameters and method with which `train_eval` uses the tuned values."""

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

    def write(self, study: Study, best: FrozenTrial, file: Path) -> None:
        """Write the best values as an entry of `variants`, with the commands that use them."""
        plain = self.env in _PLAIN
        place = "conf/base/parameters_variants.yml" if plain else f"conf/{self.env}/parameters.yml"
        # A key that is searched is not on this command line, where it would override the file's.
        given = {key: value for key, value in self.given.items() if key not in best.params}
        lines = [
            f"Tuned values: trial {best.number} of {len(study.trials)} in the study "
            f"'{study.study_name}', score {best.user_attrs[SCORE]:.4g}. Run them with",
            f"  {self.command(best.params)}",
            f"or add this entry to `variants` in {place} and run",
            f"  {kedro_run('train_eval', self.env, given)}",
        ]
        entry = {variants.KEY: {self.method: {self.given["variant"]: dict(best.params)}}}
        values = yaml.safe_dump(entry, sort_keys=False, allow_unicode=True)
        write_text(file, "".join(f"# {line}\n" for line in lines) + values)


def best_trial(study: Study) -> FrozenTrial | None:
    """The best trial of a study that meets every constraint, or None if there is none."""
    try:
        return study.best_trial
    except ValueError:
        return None


def summary(study: Study) -> dict[str, Any]:
    """Number of trials by state, with the steps and seconds of all trials."""
    trials = study.get_trials(deepcopy=False)
    return {
        "trials": dict(Counter(trial.state.name.lower() for trial in trials)),
        "steps": sum(int(trial.user_attrs.get(STEPS, 0)) for trial in trials),
        "seconds": sum(trial.duration.total_seconds() for trial in trials if trial.duration),
    }
