"""How busy the captioner `endpoint` keeps its connections: replies a second of a slow server.

    python benchmarks/recaption.py [--images 400] [--connections 8] [--latency 0.2]

A stand-in server in a process of its own takes the request, waits, and answers with a caption. Of
each size so many photographs, no two alike, are captioned from files: decoding, resizing, JPEG
encoding, requests and stored answers are all part of the time. The most that is possible is
connections / latency; the share of it is what counts. Then all are captioned again, which asks
nothing. Writes benchmarks/results/recaption.json and recaption.md; the machine should do nothing
else, or this should come first (`nice -n -20`).
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import tempfile
import time
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

import idle
from compo_pipeline.chat.settings import EndpointSettings
from compo_pipeline.datasets.recaption.captioners import EndpointCaptioner, Question, shown_image
from compo_pipeline.datasets.recaption.settings import RecaptionSettings
from compo_pipeline.images.decoding import Limits
from compo_pipeline.run import compute

RESULTS = Path(__file__).parent / "results"
SIZES = ((640, 480), (1600, 1200))  # of COCO's photographs, and of a small camera's
COARSE = 16  # pixels of the images that photographs are made of, either way
REPLY: dict[str, Any] = {
    "choices": [{"message": {"content": "A dog sleeps on a red sofa."}, "finish_reason": "stop"}],
    "usage": {"prompt_tokens": 900, "completion_tokens": 8},
}


class Server(ThreadingHTTPServer):
    """Waits, then answers."""

    request_queue_size = 128

    def __init__(self, latency: float) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.latency = latency


class Handler(BaseHTTPRequestHandler):
    """A connection that later requests use again."""

    protocol_version = "HTTP/1.1"
    # Else the reply's body waits 40 ms for the acknowledgement of its headers.
    disable_nagle_algorithm = True
    server: Server

    def do_POST(self) -> None:
        """Read the image, wait, answer; the time to read it is part of the latency."""
        until = time.monotonic() + self.server.latency
        self.rfile.read(int(self.headers["Content-Length"]))
        time.sleep(max(0.0, until - time.monotonic()))
        content = json.dumps(REPLY).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *args: Any) -> None:
        """Quiet."""


def serve(latency: float, sender: Connection) -> None:
    """Serve until the process ends, and send the port."""
    server = Server(latency)
    sender.send(server.server_address[1])
    server.serve_forever()


def photographs(folder: Path, size: tuple[int, int], count: int) -> None:
    """Smooth colours with some noise, which JPEG packs about as well as photographs."""
    generator = np.random.default_rng(0)
    noise = generator.normal(0, 6, (size[1], size[0], 3))
    for number in range(count):
        coarse = generator.integers(0, 256, (COARSE, COARSE, 3), dtype=np.uint8)
        smooth = Image.fromarray(coarse).resize(size, Image.Resampling.BICUBIC)
        pixels = np.asarray(smooth) + noise
        image = Image.fromarray(pixels.clip(0, 255).astype(np.uint8))
        image.save(folder / f"{number}.jpg", quality=90)


def measure(folder: Path, port: int, asked: argparse.Namespace) -> dict[str, float]:
    """Replies a second about all images, and seconds of a second run."""
    settings = RecaptionSettings(captioner="endpoint")
    own = EndpointSettings(
        url=f"http://127.0.0.1:{port}/v1", model="stand-in", connections=asked.connections
    )
    captioner = EndpointCaptioner(settings, own, folder / "state")
    shown = partial(shown_image, folder, limits=Limits(), side=settings.max_side)
    questions = [
        Question(captioner.key(str(n)), str(n), partial(shown, f"{n}.jpg"))
        for n in range(asked.images)
    ]
    wall, processor = time.perf_counter(), time.process_time()
    answers = list(captioner.ask(questions))
    wall, processor = time.perf_counter() - wall, time.process_time() - processor
    assert [answer[0] for answer in answers] == [REPLY["choices"][0]["message"]["content"]] * len(
        questions
    )
    again = time.perf_counter()
    assert len(captioner.answers.get(question.key for question in questions)) == len(questions)
    bytes_ = sum(path.stat().st_size for path in folder.glob("*.jpg"))
    return {
        "images": asked.images,
        "kB of a file": bytes_ / asked.images / 1000,
        "seconds": wall,
        "replies a second": asked.images / wall,
        "share of the possible": asked.images / wall * asked.latency / asked.connections,
        "processor seconds of a reply": processor / asked.images,
        "seconds of a second run": time.perf_counter() - again,
    }


def markdown(result: dict[str, Any]) -> str:
    """The page."""
    asked, machine = result["asked"], result["machine"]
    possible = asked["connections"] / asked["latency"]
    lines = [
        "# Recaptioning",
        "",
        f"A stand-in server on the same machine ({machine['cores']} cores, load "
        f"{machine['load']:.1f} at the start, nice {machine['nice']}) that answers after "
        f"{1000 * asked['latency']:.0f} ms, {asked['connections']} connections: at most "
        f"{possible:.0f} replies a second. From the file to the stored answer, JPEG encoding "
        "included. `python benchmarks/recaption.py`",
        "",
        "| images | replies a second | of the possible | processor time of a reply |",
        "| --- | --- | --- | --- |",
        *(
            f"| {row['images']} of {size}, {row['kB of a file']:.0f} kB | "
            f"{row['replies a second']:.1f} | {100 * row['share of the possible']:.0f}% | "
            f"{1000 * row['processor seconds of a reply']:.0f} ms |"
            for size, row in result["sizes"].items()
        ),
    ]
    return "\n".join(lines) + "\n"


def main() -> None:
    """Serve, ask, write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--images", type=int, default=400)
    parser.add_argument("--connections", type=int, default=8)
    parser.add_argument("--latency", type=float, default=0.2, help="seconds")
    asked = parser.parse_args()
    receiver, sender = multiprocessing.Pipe(duplex=False)
    spawn = multiprocessing.get_context("spawn")
    server = spawn.Process(target=serve, args=(asked.latency, sender), daemon=True)
    server.start()
    port = receiver.recv()
    result: dict[str, Any] = {
        "asked": {"connections": asked.connections, "latency": asked.latency},
        "machine": {"cores": compute.cores(), "load": idle.load(), "nice": os.nice(0)},
        "sizes": {},
    }
    for size in SIZES:
        with tempfile.TemporaryDirectory() as name:
            photographs(Path(name), size, asked.images)
            label = f"{size[0]} x {size[1]}"
            result["sizes"][label] = measure(Path(name), port, asked)
            print(label, result["sizes"][label], flush=True)
    server.terminate()
    file = RESULTS / "recaption.json"
    file.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    file.with_suffix(".md").write_text(markdown(result), encoding="utf-8")


if __name__ == "__main__":
    main()
