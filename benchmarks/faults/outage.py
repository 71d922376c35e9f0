"""An MLflow server killed in the middle of a training: does the same command then end as usual?

    python benchmarks/faults/outage.py [--folder <folder>]

Two trainings log to one server, which is killed after the first points of the second one. After the
same command its run must have every point, and its checkpoint equal weights. The result is in
benchmarks/results/chaos.json; benchmarks/faults/reliability.py shows it.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import mlflow

from chaos import RUN, Run, answer, files, free_port, report, runs, workspace


class Server:
    """An MLflow server on sqlite."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self._folder, self._port = folder, free_port()
        self.uri = f"http://127.0.0.1:{self._port}"
        self.start()

    def start(self) -> None:
        """Start it, or start it again."""
        command = [sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1"]
        command += ["--port", str(self._port), "--workers", "1"]
        command += ["--backend-store-uri", f"sqlite:///{self._folder / 'mlflow.db'}"]
        command += ["--artifacts-destination", str(self._folder / "artifacts")]
        # Its queue of jobs would take processes of its own.
        environment = {**os.environ, "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}
        with (self._folder / "server.log").open("a") as output:
            self._process = subprocess.Popen(
                command, env=environment, stdout=output, stderr=output, start_new_session=True
            )
        while True:
            with suppress(OSError):
                answer(f"{self.uri}/health")
                return
            if self._process.poll() is not None:
                raise SystemExit((self._folder / "server.log").read_text()[-3000:])
            time.sleep(0.1)

    def kill(self) -> None:
        """SIGKILL, with its workers."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()


class Outage(NamedTuple):
    """A training whose MLflow server was killed."""

    points: int
    """Points that the server had of the curves' last step when it was killed."""
    warnings: int
    """Lines that say that it is away."""
    end: str
    """The last line of the training."""
    different: Sequence[str]
    """What differs from an undisturbed training after the same command."""


def outage(folder: Path) -> Outage:
    """Train beside a server, and beside one that is killed after the first points and returns."""
    project = workspace(folder)
    for name in ("ingest", "validation", "foils"):
        Run(name, project).finish()
    server = Server(folder / "server")
    client = mlflow.MlflowClient(server.uri)

    def train(variant: str, pipelines: str = "training") -> Run:
        params = f"tracking.uri={server.uri},training.epochs=4,variant={variant}"
        arguments = (*RUN, f"--pipelines={pipelines}", f"--params={params}")
        return Run(f"{pipelines}-{variant}", project, arguments)

    def logged() -> int:
        known = [run for name, run in runs(client).items() if "-away-" in name]
        return max((len(run[2].get("train/loss", ())) for run in known), default=0)

    try:
        for variant in ("beside", "away"):
            train(variant, "counterfactuals,views").finish()
        train("beside").finish()
        run = train("away")
        while not (points := logged()):
            time.sleep(0.1)
        server.kill()
        run.wait()
        said = run.output().strip().splitlines()
        if run.process.exitcode != 1:
            raise SystemExit(f"{run.log}: ended with {run.process.exitcode}, expected 1")
        server.start()
        train("away").finish()
        found = runs(client)
    finally:
        server.kill()
    different = []
    for name in (each for each in found if "-beside-" in each):
        other = found.get(name.replace("-beside-", "-away-"))
        if other is None or (other[0], other[2]) != (found[name][0], found[name][2]):
            different.append(f"run {name}")
    hashes = files(project)
    for name in (each for each in hashes if "/beside/" in each and each.endswith("safetensors")):
        if hashes[name] != hashes.get(name.replace("/beside/", "/away/")):
            different.append(name)
    warnings = sum("does not answer" in line for line in said)
    return Outage(points, warnings, said[-1], different)


def main() -> None:
    """Kill the server, compare, write what was found."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, default=None)
    options = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"
    report("outage", outage(options.folder or Path(tempfile.mkdtemp()))._asdict())


if __name__ == "__main__":
    main()
