"""A worker of a study of a parabola, started by the tests in a process of its own.

Run as: python parabola_study.py <folder> <trials> <url, or nothing>.
"""

import json
import os
import sys
import time
from pathlib import Path

import optuna

from compo_pipeline.tuning import study
from compo_pipeline.tuning.settings import StudySettings
from compo_pipeline.tuning.study import StudyPlan, work

study._HEARTBEAT, study._GRACE, study._SECONDS_BETWEEN_LOOKS = 1, 3, 0.2


def plan(folder: Path, trials: int, url: str | None = None) -> StudyPlan:
    settings = StudySettings("parabola", trials, storage=url)
    return StudyPlan(settings, folder, {"x": 0.5}, {"curve": "parabola"})


def main(folder: Path, trials: str, url: str = "") -> None:
    def parabola(trial: optuna.Trial) -> float:
        x = trial.suggest_float("x", -1, 1)
        with (folder / "log").open("a", encoding="utf-8") as file:
            file.write(f"{json.dumps([trial.number, os.getpid()])}\n")
        time.sleep(0.4)
        return -x * x

    work(plan(folder, int(trials), url or None), parabola)


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
