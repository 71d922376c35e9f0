"""How fast the served model answers, and whether its memory stays flat: asked over HTTP.

    python benchmarks/speed/serving.py [--servers ...] [--model models:/compo-clip@champion]
        [--requests 10000]

Starts `compo-pipeline serve`, then `mlflow models serve`, each in a process of its own (the shipped
base unless another model is named), and asks it to score images against two captions each, base64
in JSON. First for several sizes of a request and numbers of clients: throughput, and the times that
half and 99% of the requests stay below. Then `--requests` requests of one image each from two
clients, with the server's memory (RSS) at every hundredth: its growth per 1,000 requests is the
slope of a line through the second half, when the allocator's pools have filled. No two images or
captions are equal. Writes benchmarks/results/serving.json and serving.md; a server that is not
named keeps its results.
"""

from __future__ import annotations

import argparse
import base64
import http.client
import io
import itertools
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from PIL import Image

from compo_scenes import scenes_base

CHECKOUT = Path(__file__).resolve().parents[2]
RESULTS = Path(__file__).parents[1] / "results"
SIZES = (1, 8, 32)  # rows of a request
CLIENTS = (1, 4)
IMAGES, REQUESTS = 256, 200  # at least, for each size and number of clients
SIDE = 256
OWN, MLFLOW = SERVERS = ("compo-pipeline serve", "mlflow models serve")
BASE = scenes_base()
EVERY = 100  # requests between two looks at the memory


def shipped(folder: Path) -> str:
    """The base model that the package ships, as registration logs one."""
    import mlflow

    from compo_pipeline.registry import registration

    example = registration._input_example()
    mlflow.pyfunc.save_model(
        folder,
        python_model=str(Path(registration.__file__).with_name("model.py")),
        artifacts={"model": str(BASE)},
        signature=registration._model_signature(),
        input_example=example,
        pip_requirements=registration.requirements(BASE),
    )
    return str(folder)


def command(server: str, model: str | None, port: int, folder: Path) -> list[str]:
    """Arguments of Python for a server of a registered model; None is the shipped base."""
    if server == OWN:
        return ["compo_pipeline", "serve", "--model", model or str(BASE), "--port", str(port)]
    served = ["mlflow", "models", "serve", "-m", model or shipped(folder / "model")]
    return [*served, "-p", str(port), "--env-manager", "local"]


@contextmanager
def serving(arguments: list[str], port: int, log: Path) -> Iterator[psutil.Process]:
    """The process that answers, once it does."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = os.environ | {
        "PATH": path,
        "PYTHONPATH": str(CHECKOUT / "src"),
        "MLFLOW_ALLOW_PICKLE_DESERIALIZATION": "false",
    }
    with log.open("w") as output:
        started = subprocess.Popen(
            [sys.executable, "-m", *arguments],
            env=environment,
            stdout=output,
            stderr=output,
            cwd=CHECKOUT,
        )
    process = psutil.Process(started.pid)
    try:
        while not _answers(port):
            if started.poll() is not None:
                raise SystemExit(f"the server ended:\n{log.read_text()}")
            time.sleep(1)
        family = [process, *process.children(recursive=True)]
        yield max(family, key=lambda each: each.memory_info().rss)
    finally:
        for each in [*process.children(recursive=True), process]:
            each.terminate()
        started.wait()


def _answers(port: int) -> bool:
    try:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
        connection.request("GET", "/ping")
        return connection.getresponse().status == 200
    except OSError:
        return False


class Client:
    """One connection, and questions of which no two are equal."""

    def __init__(self, port: int, seed: int) -> None:
        self.connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
        self.generator = np.random.default_rng(seed)

    def question(self, rows: int) -> str:
        """The body of a request: so many images, two captions."""
        letters = self.generator.integers(97, 123, (2, 6, 5))
        texts = [" ".join("".join(map(chr, word)) for word in text) for text in letters]
        records = [{"image": self._image()} for _ in range(rows)]
        return json.dumps({"dataframe_records": records, "params": {"texts": texts}})

    def ask(self, question: str) -> float:
        """Seconds until the answer."""
        start = time.perf_counter()
        headers = {"content-type": "application/json"}
        self.connection.request("POST", "/invocations", question, headers)
        response = self.connection.getresponse()
        answer = response.read()
        seconds = time.perf_counter() - start
        if response.status != 200:
            raise SystemExit(f"HTTP {response.status}: {answer[:500].decode()}")
        return seconds

    def _image(self) -> str:
        coarse = self.generator.integers(0, 256, (8, 8, 3), dtype=np.uint8)
        buffer = io.BytesIO()
        Image.fromarray(coarse).resize((SIDE, SIDE)).save(buffer, "JPEG")
        return base64.b64encode(buffer.getvalue()).decode()


def speed(port: int, rows: int, clients: int) -> dict[str, float]:
    """Throughput and latency of requests of so many rows from so many clients at once."""
    asking = [Client(port, seed) for seed in range(clients)]
    count = max(IMAGES // rows, REQUESTS) // clients
    questions = [[client.question(rows) for _ in range(count)] for client in asking]
    with ThreadPoolExecutor(clients) as pool:
        start = time.perf_counter()
        times = pool.map(
            lambda client, mine: [client.ask(each) for each in mine], asking, questions
        )
        seconds = list(itertools.chain.from_iterable(times))
        wall = time.perf_counter() - start
    return {
        "rows": rows,
        "clients": clients,
        "requests": len(seconds),
        "requests a second": len(seconds) / wall,
        "images a second": len(seconds) * rows / wall,
        **latency(seconds),
    }


def latency(seconds: list[float]) -> dict[str, float]:
    """Milliseconds that half and 99% of the requests stay below."""
    return {f"p{p} ms": 1000 * float(np.percentile(seconds, p)) for p in (50, 99)}


def memory(server: psutil.Process, port: int, requests: int) -> Iterator[dict[str, Any]]:
    """RSS in MB after every hundredth of so many requests, and how it grows."""
    clients = [Client(port, seed) for seed in (100, 101)]

    def some(client: Client) -> list[float]:
        return [client.ask(client.question(1)) for _ in range(EVERY // len(clients))]

    seconds: list[float] = []
    megabytes = []
    with ThreadPoolExecutor(len(clients)) as pool:
        for rounds_left in reversed(range(max(1, requests // EVERY))):
            seconds += itertools.chain.from_iterable(pool.map(some, clients))
            megabytes.append(server.memory_info().rss / 1e6)
            if len(seconds) % 1000 == 0 or not rounds_left:
                late = megabytes[len(megabytes) // 2 :]
                thousands = EVERY / 1000 * np.arange(len(late))
                yield {
                    "requests": len(seconds),
                    **latency(seconds),
                    "growth": float(np.polyfit(thousands, late, 1)[0]),
                    "MB": [round(each, 1) for each in megabytes],
                }


def markdown(result: dict[str, Any]) -> str:
    """The page."""
    servers = result["servers"]
    lines = [
        "# Serving",
        "",
        f"Servers of {result['model']}, asked from a second process of the same machine: images of "
        f"{SIDE} x {SIDE} as base64, each against two captions.",
        "",
        "| server | rows a request | clients | requests a second | images a second | p50 ms "
        "| p99 ms |",
        "| --- | --- | --- | --- | --- | --- | --- |",
        *(
            f"| `{server}` | {row['rows']} | {row['clients']} | {row['requests a second']:.1f} | "
            f"{row['images a second']:.1f} | {row['p50 ms']:.0f} | {row['p99 ms']:.0f} |"
            for server, found in servers.items()
            for row in found["speed"]
        ),
    ]
    for server, found in servers.items():
        stored, megabytes = found["memory"], found["memory"]["MB"]
        lines += [
            "",
            f"`{server}` on {found['cores']} cores. {found['note']} Memory of the server over "
            f"{stored['requests']:,} requests of one image from two clients, no two "
            f"alike: {megabytes[0]:.0f} MB after the first {EVERY}, {max(megabytes):.0f} MB at "
            f"most, {megabytes[-1]:.0f} MB at the end; in the second half it grows by "
            f"{stored['growth']:+.2f} MB per 1,000 requests. p50 {stored['p50 ms']:.0f} ms, p99 "
            f"{stored['p99 ms']:.0f} ms.",
        ]
    return "\n".join(lines) + "\n"


def measure(server: str, port: int, folder: Path, asked: argparse.Namespace) -> dict[str, Any]:
    """Speed and memory of a server."""
    with serving(command(server, asked.model, port, folder), port, folder / "log") as process:
        warm = Client(port, 1000)
        for _ in range(20):
            warm.ask(warm.question(1))
        found: dict[str, Any] = {
            "cores": os.cpu_count(),
            "note": asked.note,
            "speed": [speed(port, *each) for each in itertools.product(SIZES, CLIENTS)],
        }
        for found["memory"] in memory(process, port, asked.requests):
            print(server, found["memory"]["requests"], "requests", flush=True)
    return found


def main() -> None:
    """Serve, ask, write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--servers", nargs="+", choices=SERVERS, default=SERVERS)
    parser.add_argument("--model", help="a model's URI")
    parser.add_argument("--requests", type=int, default=10_000)
    parser.add_argument("--port", type=int, default=5001)
    parser.add_argument("--note", default="", help="a sentence about the machine, for the page")
    asked = parser.parse_args()
    file = RESULTS / "serving.json"
    model = asked.model or "the shipped base (10 M parameters)"
    stored = json.loads(file.read_text("utf-8")) if file.exists() else {}
    servers = stored["servers"] if stored.get("model") == model else {}
    for server in asked.servers:
        with tempfile.TemporaryDirectory() as temporary:
            servers[server] = measure(server, asked.port, Path(temporary), asked)
        result = {"model": model, "servers": servers}
        file.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
        file.with_suffix(".md").write_text(markdown(result), encoding="utf-8")
    print(markdown(result))


if __name__ == "__main__":
    main()
