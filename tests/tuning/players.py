"""A study of a parabola, started by the tests in a process of its own.

Every evaluation leaves its lines in a log that is only ever added to: `begin` and, when its value
was found, `end`. Run as: python players.py <folder> <options as JSON>.
"""

import json
import os
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import optuna

from compo_pipeline.tuning.settings import StorageSettings, StudySettings
from compo_pipeline.tuning.study import Plan
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
            os.kill(os.getpid(), 9)
        time.sleep(self.seconds)
        self._note("end", trial, x)
        return x * x

    def _note(self, what: str, trial: optuna.Trial, x: float) -> None:
        with self.log.open("a", encoding="utf-8") as file:
            file.write(f"{json.dumps([what, trial.number, os.getpid(), x])}\n")


def plan(folder: Path, options: dict[str, float | str]) -> Plan:
    settings = StudySettings(
        name="parabola",
        trials=int(options[TRIALS]),
        workers=int(options[WORKERS]),
        storage=StorageSettings(str(options[URL]) if options.get(URL) else None, 1, 3),
    )
    return Plan(settings, folder, ("minimize",), {"x": 0.5}, {"curve": "parabola"})


def main() -> None:
    folder, options = Path(sys.argv[1]), json.loads(sys.argv[2])
    objective = Parabola(folder / "log", options.get(SECONDS, 0.0), options.get("deadly", False))
    run(plan(folder, options), objective)


if __name__ == "__main__":
    main()
