"""A study of a parabola, started by the tests in a process of its own.

Every evaluation leaves its lines in a log that is only ever added to: `begin` and, when its value
was found, `end`. Run as: python parabola_study.py <folder> <options as JSON>.
"""

import json
import os
import pkgutil
import signal
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import optuna
from optuna.distributions import FloatDistribution
from optuna.trial import FrozenTrial

from compo_pipeline.tuning.settings import StorageSettings, StudySettings
from compo_pipeline.tuning.space import Parameter, Space
from compo_pipeline.tuning.study import StudyPlan
from compo_pipeline.tuning.workers import run

TRIALS, WORKERS, SECONDS, URL = "trials", "workers", "seconds", "url"
DIED = 77


@dataclass(frozen=True)
class Parabola:
    log: Path
    seconds: float
    deadly: bool = False

    def __call__(self, trial: optuna.Trial) -> float:
        x = trial.suggest_float("x", -1, 1)
        self._note("begin", trial, x)
        if self.deadly:
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(self.seconds)
        self._note("end", trial, x)
        return x * x

    def _note(self, what: str, trial: optuna.Trial, x: float) -> None:
        with self.log.open("a", encoding="utf-8") as file:
            file.write(f"{json.dumps([what, trial.number, os.getpid(), x])}\n")


class NoRecorder:
    """Records nothing."""

    def open_study(self, name: str, known: str | None) -> str:
        return ""

    def open_trial(self, study: str, number: int) -> str:
        return ""

    def point(self, trial: str, step: int, figures: Mapping[str, float]) -> bool:
        return True

    def close_trial(self, run: str, trial: FrozenTrial, outcome: str, reason: str | None) -> None:
        pass

    def trials(self, study: str) -> dict[int, tuple[str, bool]]:
        return {}

    def close_study(self, run: str, outcome: str, figures: Mapping[str, float]) -> None:
        pass


def plan(folder: Path, options: dict[str, float | str]) -> StudyPlan:
    settings = StudySettings(
        name="parabola",
        trials=int(options[TRIALS]),
        workers=int(options[WORKERS]),
        storage=StorageSettings(str(options[URL]) if options.get(URL) else None, 1, 3),
    )
    space = Space((Parameter("x", FloatDistribution(-1, 1)),))
    return StudyPlan(settings, folder, space, {"x": 0.5}, ("minimize",), {"curve": "parabola"})


def die_after(name: str) -> None:
    """Kill this process at the end of the first call of a function."""
    place, _, attribute = name.rpartition(".")
    owner = pkgutil.resolve_name(place)
    function = getattr(owner, attribute)

    def deadly(*given: Any, **named: Any) -> None:
        function(*given, **named)
        os.kill(os.getpid(), signal.SIGKILL)

    setattr(owner, attribute, deadly)


def main() -> None:
    folder, options = Path(sys.argv[1]), json.loads(sys.argv[2])
    if "die" in options:
        die_after(options["die"])
    objective = Parabola(folder / "log", options.get(SECONDS, 0.0), options.get("deadly", False))
    run(plan(folder, options), objective, NoRecorder())


if __name__ == "__main__":
    main()
