"""Pipelines killed at random moments: does the same command then end as an undisturbed run does?

    python benchmarks/chaos.py [--kills 50] [--pipelines raw ingest ...] [--folder <a new folder>]

Two project folders run the same pipelines on the tiny world of conf/smoke, one after the other.
One is left alone. In the other each run is killed (SIGKILL) again and again, at moments drawn from
`--seed`: by turns the process with its workers, and the process alone. Then the same command runs
to its end, and the files of both folders are compared byte by byte, without what names the moment
or the MLflow run: caches, states to resume from, ids of runs and pages with a date. Of a study the
finished trials are compared, of the page whether it answers. Kills that came after the end of a
run are not counted. Writes benchmarks/results/chaos.md after each pipeline.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

PROJECT = Path(__file__).resolve().parents[1]
RESULTS = Path(__file__).parent / "results" / "chaos.md"
PAGE, TUNING = "try", "tuning"
PIPELINES = (
    *("raw", "ingest", "validation", "counterfactuals", "views", "training", "evaluation"),
    *("registration", "promotion", "export", TUNING, PAGE),
)
COMPARED = {".parquet", ".safetensors", ".csv", ".json", ".jpg", ".png", ".onnx"}
# States, pages with a date, and records of runs other than the run's own.
LEFT_OUT = {"resume", "data_docs", "tuning", "tuning_trials"}
# Of the MLflow run; whether a version was created by this call or by the killed one before it.
IDS = {"run_id", "fresh"}
EARLIEST = 0.2  # share of a run's time before which it is not killed: Python starts


class Outcome(NamedTuple):
    """What became of a pipeline."""

    pipeline: str
    seconds: float
    """Of the undisturbed run."""
    kills: int
    different: tuple[str, ...]
    """Files that differ from the undisturbed run's."""
    leftovers: int
    """Temporary files and folders that are left."""


class Run:
    """A pipeline in a project folder, in a session of its own."""

    def __init__(self, pipeline: str, folder: Path) -> None:
        self.log = folder / f"{pipeline}.log"
        command = ["kedro", "run", "--env=smoke", f"--pipeline={pipeline}"]
        self.url = ""
        if pipeline == PAGE:
            with socket.socket() as free:
                free.bind(("127.0.0.1", 0))
                port = str(free.getsockname()[1])
            self.url = f"http://127.0.0.1:{port}"
            command = ["compo_pipeline", "try", "--env=smoke", f"--port={port}"]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "GRADIO_ANALYTICS_ENABLED": "False"}
        with self.log.open("a") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-m", *command],
                cwd=folder,
                env=environment,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )

    def done(self) -> bool:
        """Whether it has ended or, of the page, answers."""
        if self.url and self.process.poll() is None:
            with suppress(OSError), urllib.request.urlopen(self.url, timeout=5) as answer:
                return bool(answer.status == 200)
            return False
        return self.process.poll() is not None

    def wait(self, seconds: float = float("inf")) -> bool:
        """Wait so long for the end; whether it came."""
        end = time.monotonic() + seconds
        while not self.done():
            if time.monotonic() > end:
                return False
            time.sleep(0.05)
        return True

    def finish(self) -> None:
        """Wait for its end, which must be a good one."""
        self.wait()
        if self.process.poll() not in ((None,) if self.url else (0,)):
            raise SystemExit(f"{self.log}:\n{self.log.read_text()[-3000:]}")
        self.kill()

    def kill(self, *, alone: bool = False) -> None:
        """SIGKILL, with its workers or alone."""
        with suppress(ProcessLookupError):
            (os.kill if alone else os.killpg)(self.process.pid, signal.SIGKILL)
        self.process.wait()


def workspace(folder: Path) -> Path:
    """A project folder with this code and configuration, and data of its own."""
    (folder / "src").mkdir(parents=True)
    for name in ("pyproject.toml", "conf", "src/compo_pipeline"):
        (folder / name).symlink_to(PROJECT / name)
    return folder


def disturbed(pipeline: str, folder: Path, seconds: float, kills: int, draw: random.Random) -> int:
    """Run a pipeline that is killed so many times, then to its end; the kills that met it."""
    runs, met = [], 0
    for number in range(kills):
        run = Run(pipeline, folder)
        runs.append(run)
        if not run.wait(draw.uniform(EARLIEST, 1.0) * seconds):
            met += 1
        run.kill(alone=number % 2 == 1)
    Run(pipeline, folder).finish()
    for run in runs:
        run.kill()  # orphans of one that was killed alone
    return met


def results(folder: Path) -> dict[str, str]:
    """What is compared of a folder: a hash of each file."""
    found = {}
    for path in sorted((folder / "data").rglob("*")):
        name = path.relative_to(folder)
        if path.suffix not in COMPARED or not path.is_file() or LEFT_OUT & set(name.parts):
            continue
        content = path.read_bytes()
        if path.suffix == ".json":
            value = json.loads(content)
            if path.name in ("study.json", "tuning_confirmation.json"):
                value = finished(value)
            elif isinstance(value, dict):
                value = {key: each for key, each in value.items() if key not in IDS}
            content = json.dumps(value).encode()
        found[str(name)] = hashlib.sha256(content).hexdigest()
    return found


def finished(study: Mapping[str, Any]) -> Any:
    """Finished trials of a study; a trial whose worker was killed has another in its place."""
    trials = study.get("trials", {})
    return sum(trials.get(state, 0) for state in ("complete", "pruned"))


def leftovers(folder: Path) -> int:
    """Temporary files and folders of writes that were cut off."""
    return sum(path.name.startswith(".") for path in (folder / "data").rglob("*"))


def table(outcomes: Sequence[Outcome], seed: int) -> str:
    """The outcomes as Markdown."""
    total = sum(each.kills for each in outcomes)
    equal = sum(not each.different for each in outcomes)
    lines = [
        "# Killed and started again",
        "",
        f"`python benchmarks/chaos.py --seed {seed}`: {total} SIGKILLs at random moments, on the "
        f"environment `smoke`. {equal} of {len(outcomes)} pipelines ended as an undisturbed run "
        "did. Leftovers are temporary files of writes that were cut off.",
        "",
        "| pipeline | seconds, undisturbed | kills | files that differ | leftovers |",
        "| --- | --- | --- | --- | --- |",
        *(
            f"| {each.pipeline} | {each.seconds:.0f} | {each.kills} | "
            f"{', '.join(each.different) or 'none'} | {each.leftovers} |"
            for each in outcomes
        ),
    ]
    return "\n".join(lines) + "\n"


def chaos(pipelines: Sequence[str], kills: int, seed: int, folder: Path) -> Iterator[Outcome]:
    """Kill each pipeline its share of the kills, in the order of the chain."""
    alone, killed = workspace(folder / "undisturbed"), workspace(folder / "killed")
    draw, known = random.Random(seed), set[str]()
    for place, pipeline in enumerate(pipelines):
        began = time.monotonic()
        Run(pipeline, alone).finish()
        seconds = time.monotonic() - began
        share = kills * (place + 1) // len(pipelines) - kills * place // len(pipelines)
        met = disturbed(pipeline, killed, seconds, share, draw)
        one, other = results(alone), results(killed)
        names = {name for name in one.keys() | other.keys() if one.get(name) != other.get(name)}
        different = tuple(sorted(names - known))
        yield Outcome(pipeline, seconds, met, different, leftovers(killed))
        known |= names  # a later pipeline is not blamed for them


def main() -> None:
    """Kill, compare, write the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--pipelines", nargs="+", choices=PIPELINES, default=PIPELINES)
    parser.add_argument("--folder", type=Path, default=None)
    options = parser.parse_args()
    folder = options.folder or Path(tempfile.mkdtemp())
    outcomes = []
    for outcome in chaos(options.pipelines, options.kills, options.seed, folder):
        outcomes.append(outcome)
        print(*outcome, flush=True)
        RESULTS.write_text(table(outcomes, options.seed), encoding="utf-8")


if __name__ == "__main__":
    main()
