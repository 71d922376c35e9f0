"""Pipelines killed at random moments: does the same command then end as an undisturbed run does?

    python benchmarks/faults/chaos.py [--kills 60] [--pipelines ingest ...] [--folder <folder>]

Two project folders run the same pipelines on the tiny world of conf/smoke, in the order of
`COMMANDS`. One is left alone. In the other each run is killed (SIGKILL) again and again, at moments
drawn from `--seed` between the start of its first node and its end, in CPU time: by turns the
process with its workers, and the process alone. Then the same command runs to
its end, and both folders are compared: the files byte by byte without what names the moment or the
MLflow run (states to resume from, ids of runs, pages with a date), and in MLflow the versions,
their aliases, and the runs' parameters and metrics. Of a study the number of finished trials is
compared, of a server its answer. Processes are forked from one that has imported the libraries.

In a folder that is named again undisturbed runs are not repeated; results of what is not named stay
in benchmarks/results/chaos.json. benchmarks/faults/reliability.py shows them.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import multiprocessing
import os
import random
import re
import signal
import socket
import sys
import tempfile
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, suppress
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, NamedTuple

import mlflow
import psutil
from safetensors import deserialize

PROJECT = Path(__file__).resolve().parents[2]
RESULTS = Path(__file__).parents[1] / "results" / "chaos.json"
RUN = ("run", "--env=smoke")
# Each after those whose results it reads.
COMMANDS: Mapping[str, Sequence[str]] = {
    **{name: (*RUN, f"--pipeline={name}") for name in ("ingest", "validation", "foils")},
    # The other method's captions are edited and its images generated; CLIC has none.
    "counterfactuals": (*RUN, "--pipeline=counterfactuals", "--params=method=sparcl"),
    "views": (*RUN, "--pipelines=counterfactuals,views"),
    **{
        name: (*RUN, f"--pipeline={name}")
        for name in ("training", "evaluation", "registration", "promotion", "wise_ft")
    },
    "attention": (*RUN, "--pipeline=attention"),
    "benchmark": (*RUN, "--pipeline=benchmark", "--params=models=base"),
    "tuning": (*RUN, "--pipeline=tuning", "--params=tuning.study.workers=2"),
    "try": ("try", "--env=smoke"),
    "serve": ("serve", "--env=smoke"),
}
IMPORTED = (
    *("kedro.framework.cli.cli", "mlflow.pyfunc", "open_clip", "optuna", "pandas", "spacy"),
    *("great_expectations", "matplotlib.pyplot", "pyarrow.parquet", "transformers"),
    *("compo_pipeline.training.loop", "compo_pipeline.tuning.trial"),
)
COMPARED = {".parquet", ".safetensors", ".csv", ".json", ".jpg", ".png", ".onnx"}
# States, pages with a date, records of a study, whose trials end in another order, and the last
# command of a run.
LEFT_OUT = {"resume", "data_docs", "tuning", "tuning_trials", "in_use.json"}
# Of the MLflow run; and whether a version was created by this call or by the killed one before it.
IDS = {"run_id", "fresh"}
# Of the page: what is drawn at each start.
RANDOM = re.compile(rb'"app_id":\d+|127\.0\.0\.1:\d+|compo_ui_\w+')
NODE = re.compile(r" INFO +\S+ -> ")


class Outcome(NamedTuple):
    """What became of a pipeline."""

    pipeline: str
    kills: Mapping[str, int]
    """By what was killed."""
    different: Sequence[str]
    """Files, and entries of MLflow, that differ from the undisturbed run's."""
    leftovers: Sequence[str]
    """Temporary files and folders that are left."""


def kedro(folder: Path, arguments: Sequence[str], log: Path) -> None:
    """Run a command of the project in this process, whose output goes to a file."""
    os.setsid()
    os.chdir(folder)
    with log.open("a") as output:
        os.dup2(output.fileno(), 1)
        os.dup2(output.fileno(), 2)
    sys.argv[1:] = list(arguments)
    from kedro.framework.cli.cli import main

    main()


class Run:
    """A command in a project folder, in a session of its own."""

    def __init__(self, name: str, folder: Path, arguments: Sequence[str] = ()) -> None:
        self.log = folder / f"{name}.log"
        self.log.touch()
        arguments = [*(arguments or COMMANDS[name])]
        self.url = None
        if name in ("try", "serve"):
            self._port = free_port()
            self.url = f"http://127.0.0.1:{self._port}"
            arguments.append(f"--port={self._port}")
        self._has_workers = name == "tuning"
        self._logged = self.log.stat().st_size if self.log.exists() else 0
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(list(IMPORTED))
        self.process: BaseProcess = context.Process(
            target=kedro, args=(folder, arguments, self.log)
        )
        self.process.start()
        assert self.process.pid is not None
        self._pid, self._spent = self.process.pid, 0.0

    def output(self) -> str:
        """What it has printed."""
        with self.log.open("rb") as file:
            file.seek(self._logged)
            return file.read().decode(errors="replace")

    def begun(self) -> bool:
        """Whether a node has started; of a server, always."""
        return self.url is not None or NODE.search(self.output()) is not None

    def done(self) -> bool:
        """Whether it has ended or, of a server, answers."""
        if self.url and self.process.is_alive():
            with suppress(OSError), socket.create_connection(("127.0.0.1", self._port), 5):
                return True
            return False
        return not self.process.is_alive()

    def workers(self) -> list[psutil.Process]:
        """Processes that it has started."""
        try:
            children = psutil.Process(self._pid).children(recursive=True)
            # Not the process that cleans up after them.
            return [each for each in children if "spawn_main" in " ".join(each.cmdline())]
        except psutil.NoSuchProcess:
            return []

    def spent(self) -> float:
        """Seconds of CPU time of it and its workers, as last seen."""
        with suppress(psutil.NoSuchProcess):
            times = [psutil.Process(self._pid).cpu_times()]
            if self._has_workers:
                times += [worker.cpu_times() for worker in self.workers()]
            ended = times[0].children_user + times[0].children_system
            self._spent = max(self._spent, ended + sum(each.user + each.system for each in times))
        return self._spent

    def wait(self, seconds: float = math.inf) -> float | None:
        """Wait for the end, or until so much CPU time is spent on its nodes.

        Returns:
            CPU time of the nodes where it ended, else None.
        """
        before = None
        while not self.done():
            spent = self.spent()
            if before is None and self.begun():
                before = spent
            if before is not None and spent - before > seconds:
                return None
            time.sleep(0.05)
        return self._spent - (before or 0.0)

    def finish(self, answers: Path | None = None) -> float:
        """Wait for its good end, and save a server's answer; the CPU time of its nodes."""
        spent = self.wait()
        assert spent is not None
        if self.process.exitcode not in (0, None):
            raise SystemExit(f"{self.log}:\n{self.output()[-3000:]}")
        if self.url and answers:
            body = {"dataframe_records": [{"text": "a red heart"}], "params": {"task": "embed"}}
            served = self.log.stem == "serve"
            url = f"{self.url}/invocations" if served else self.url
            answers.write_bytes(RANDOM.sub(b"", answer(url, body if served else None)))
        self.kill()
        return spent

    def kill(self, *, alone: bool = False) -> None:
        """SIGKILL, with its workers or alone."""
        with suppress(ProcessLookupError):
            if not alone:
                os.killpg(self._pid, signal.SIGKILL)
        self.process.kill()
        self.process.join()


def free_port() -> int:
    """A port that nobody listens on."""
    with closing(socket.socket()) as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def answer(url: str, body: Mapping[str, Any] | None = None) -> bytes:
    """What a server answers to GET, or to a POST of JSON."""
    content = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, content, {"content-type": "application/json"})
    with urllib.request.urlopen(request, timeout=30) as response:
        return bytes(response.read())


def workspace(folder: Path) -> Path:
    """A project folder with this code and configuration, and data of its own."""
    (folder / "src").mkdir(parents=True, exist_ok=True)
    (folder / "answers").mkdir(exist_ok=True)
    for name in ("pyproject.toml", "conf", "src/compo_pipeline", "src/compo_scenes"):
        if not (folder / name).exists():
            (folder / name).symlink_to(PROJECT / name)
    return folder


def disturbed(
    name: str, folder: Path, seconds: float, kills: int, draw: random.Random
) -> Counter[str]:
    """Run a pipeline that is killed so many times, then to its end; the kills that met it."""
    runs: list[Run] = []
    met = Counter[str]()
    victims = ["group", "alone"]
    while met.total() < kills and len(runs) < 3 * kills:
        victim = victims[len(runs) % len(victims)]
        run = Run(name, folder)
        runs.append(run)
        if run.wait(draw.random() * seconds) is None:
            met[victim] += 1
        run.kill(alone=victim == "alone")
    Run(name, folder).finish(folder / "answers" / name)
    for run in runs:
        run.kill()  # orphans of one that was killed alone
    return met


def files(folder: Path) -> dict[str, str]:
    """What is compared of a folder: a hash of each file."""
    found = {}
    for path in sorted([*(folder / "data").rglob("*"), *(folder / "answers").rglob("*")]):
        name = path.relative_to(folder)
        answered = name.parts[0] == "answers"
        if not path.is_file() or not (answered or path.suffix in COMPARED):
            continue
        if LEFT_OUT & set(name.parts):
            continue
        content = path.read_bytes()
        if path.suffix == ".safetensors":
            # Not the metadata, whose order differs from process to process.
            tensors: Any = deserialize(content)  # type: ignore[no-untyped-call]
            content = repr(sorted((name, sorted(one.items())) for name, one in tensors)).encode()
        elif path.suffix == ".json":
            value = json.loads(content)
            if path.name in ("study.json", "tuning_confirmation.json"):
                # A trial whose worker was killed has another in its place.
                trials = value.get("trials", {})
                value = sum(trials.get(state, 0) for state in ("complete", "pruned"))
            elif isinstance(value, dict):
                value = {key: each for key, each in value.items() if key not in IDS}
            content = json.dumps(value).encode()
        found[str(name)] = hashlib.sha256(content).hexdigest()
    return found


def records(folder: Path) -> dict[str, str]:
    """What is compared of MLflow: a hash of each version, alias and run, by name."""
    client = mlflow.MlflowClient(f"sqlite:///{folder / 'mlruns' / 'mlflow.db'}")
    found: dict[str, Any] = {}
    for model in client.search_registered_models():
        found[f"aliases of {model.name}"] = dict(model.aliases)
        for version in client.search_model_versions(f"name='{model.name}'"):
            tags = {key: tag for key, tag in version.tags.items() if key != "promotion.at"}
            found[f"{model.name} version {version.version}"] = tags
    for name, run in runs(client).items():
        found[f"run {name}"] = run
    return {name: hashlib.sha256(repr(each).encode()).hexdigest() for name, each in found.items()}


def runs(client: mlflow.MlflowClient) -> dict[str, Any]:
    """State, parameters and points of runs by name; of trials, which differ in number, none.

    The seconds that a step waited for its batch are left out.
    """
    found = {}
    for run in client.search_runs([each.experiment_id for each in client.search_experiments()]):
        name = str(run.info.run_name)
        if name.startswith(("tuning-", "trial ")):
            continue
        while name in found:
            name += ", again"
        curves = {
            metric: sorted(
                {(at.step, at.value) for at in client.get_metric_history(run.info.run_id, metric)}
            )
            for metric in sorted(run.data.metrics)
            if not metric.endswith("data_wait")
        }
        found[name] = (run.info.status, sorted(run.data.params.items()), curves)
    return found


def leftovers(folder: Path) -> set[str]:
    """Temporary files and folders of writes that were cut off, among others."""
    found = (folder / "data").rglob("*")
    return {str(path.relative_to(folder)) for path in found if path.name.startswith(".")}


def chaos(names: Sequence[str], kills: int, seed: int, folder: Path) -> Iterator[Outcome]:
    """Kill each pipeline its share of the kills, in the order of the chain."""
    alone, killed = (workspace(folder / name) for name in ("undisturbed", "killed"))
    differed, left = set[str](), set[str]()
    for place, name in enumerate(names):
        expected = undisturbed(name, alone)
        share = kills * (place + 1) // len(names) - kills * place // len(names)
        draw = random.Random(f"{seed} {name}")
        met = disturbed(name, killed, expected.seconds, share, draw)
        found = results(killed)
        both = found.keys() | expected.results.keys()
        different = {each for each in both if found.get(each) != expected.results.get(each)}
        leaves = leftovers(killed) - set(expected.leftovers)
        # A later pipeline is not blamed for what an earlier one left.
        yield Outcome(name, met, sorted(different - differed), sorted(leaves - left))
        differed, left = different, leaves


class Undisturbed(NamedTuple):
    """A run that nobody killed."""

    seconds: float
    """CPU time of its nodes."""
    results: Mapping[str, str]
    leftovers: Sequence[str]


def undisturbed(name: str, folder: Path) -> Undisturbed:
    """Run a pipeline to its end, unless this was done before in this folder."""
    file = folder / f"{name}.json"
    if not file.exists():
        seconds = Run(name, folder).finish(folder / "answers" / name)
        done = Undisturbed(seconds, results(folder), sorted(leftovers(folder)))
        file.write_text(json.dumps(done))
    return Undisturbed(*json.loads(file.read_text()))


def results(folder: Path) -> dict[str, str]:
    """What is compared."""
    return files(folder) | records(folder)


def main() -> None:
    """Kill, compare, write what was found."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=60)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--pipelines", nargs="*", choices=[*COMMANDS])
    parser.add_argument("--folder", type=Path, default=None)
    options = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"
    folder = options.folder or Path(tempfile.mkdtemp())
    names = options.pipelines or [*COMMANDS]
    for outcome in chaos(names, options.kills, options.seed, folder):
        report(outcome.pipeline, outcome._asdict())


def report(name: str, found: Mapping[str, Any]) -> None:
    """Print what was found and store it among the results."""
    print(name, found, flush=True)
    stored = json.loads(RESULTS.read_text("utf-8")) if RESULTS.exists() else {}
    RESULTS.write_text(json.dumps({**stored, name: found}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
