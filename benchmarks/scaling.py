"""Samples a second of two training processes against one, one thread each.

    python benchmarks/scaling.py

Plain CLIP trains both towers of a small ViT with random weights on images of noise, all encoded at
each step; models with batch norms, as the shipped base, are not trained by several processes. Every
number of processes trains two lengths; their difference leaves start-up out. `wall` is what a
machine that does nothing else gives; `processor` counts the processors' time for a sample, whatever
else runs, and so leaves out waiting.
"""

from __future__ import annotations

import argparse
import resource
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from PIL import Image
from rich.console import Console
from rich.table import Table

from compo_pipeline.methods.clip import Clip, ClipObjective
from compo_pipeline.methods.contract import NoViewSettings, ViewContext
from compo_pipeline.methods.views import write
from compo_pipeline.models.settings import ModelSettings
from compo_pipeline.storage.records import Caption
from compo_pipeline.training import launch
from compo_pipeline.training.inputs import TrainingInputs
from compo_pipeline.training.run import Job
from compo_pipeline.training.settings import (
    DistributedSettings,
    OptimizerSettings,
    TrainingSettings,
)

ROWS, SIDE = 256, 64
STEPS = (4, 12)
CLIP = Clip(NoViewSettings(), ClipObjective(("image", "text")))


class Seconds(NamedTuple):
    """Of one training: by the clock, and of all its processes together."""

    wall: float
    processor: float


def inputs(folder: Path, model: str, batch: int) -> TrainingInputs:
    """Noise with a caption for each image."""
    noise, captions = np.random.default_rng(0), []
    for row in range(ROWS):
        name = f"{row}.png"
        Image.fromarray(noise.integers(0, 256, (SIDE, SIDE, 3), dtype=np.uint8)).save(folder / name)
        text = f"the image number {row} of a table of {ROWS} noisy images"
        captions.append(Caption(str(row), str(row), name, SIDE, SIDE, (text,), "noise", "train"))
    write(CLIP, captions, ViewContext({}, "", 0, 0), 1, folder / "views")
    recipe = TrainingSettings(
        epochs=1000,
        batch_size=batch,
        optimizer=OptimizerSettings(lr=1e-5, lr_start=1e-5, lr_end=1e-5),
        device="cpu",
        precision="fp32",
        workers=0,
        save_every=1000,
        log_every=1000,
    )
    base = ModelSettings(model)
    return TrainingInputs(captions, "noise", folder / "views", folder, base, recipe, 0, folder)


def trained(start: TrainingInputs, processes: int, steps: int) -> Seconds:
    """The time of a training."""
    resume = start.root / f"{processes}-{steps}"
    settings = replace(start.settings, max_steps=steps, distributed=DistributedSettings(processes))
    plan = replace(start, settings=settings, resume=resume)
    began = time.perf_counter(), processor_seconds()
    launch.train(plan, [Job(CLIP, "clip", resume / "out")], lambda name, point: None)
    return Seconds(time.perf_counter() - began[0], processor_seconds() - began[1])


def processor_seconds() -> float:
    """Of this process and of those that it started and that have ended."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in used)


def main() -> None:
    """Measure, print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="ViT-S-32-alt", help="without batch norms")
    parser.add_argument("--batch", type=int, default=16)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    rates: dict[int, Seconds] = {}
    with tempfile.TemporaryDirectory() as folder:
        start = inputs(Path(folder), arguments.model, arguments.batch)
        for processes in (1, 2):
            short, long = (trained(start, processes, steps) for steps in STEPS)
            samples = (STEPS[1] - STEPS[0]) * arguments.batch
            rates[processes] = Seconds(
                samples / (long.wall - short.wall),
                samples / (long.processor - short.processor) * processes,
            )
    table = Table("processes", "samples/s, wall", "samples/s, processor")
    for processes, rate in rates.items():
        table.add_row(str(processes), f"{rate.wall:.1f}", f"{rate.processor:.1f}")
    gains = [two / one / 2 for one, two in zip(rates[1], rates[2], strict=True)]
    table.add_row("efficiency", *(f"{gain:.0%}" for gain in gains))
    Console().print(table)


if __name__ == "__main__":
    main()
