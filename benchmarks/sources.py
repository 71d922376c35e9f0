"""Cost of mixing: a training step on three sources against one on a single source of the same rows.

    python benchmarks/sources.py [--repeats 5] [--epochs 2]

CLIC trains the text tower of the shipped scenes base on rendered scenes, in batches of 64 whose
image features are computed before, so that a step is as short as it can be: fp32, one thread. The
mixture has the same rows, divided into sources of half, a third and a sixth of them, with weights
in the same proportion: an epoch of either has each row once. Both take turns, step by step, in one
run; a repeat is so many epochs of each, the dealing of their rows included. Ratios are of seconds
of the processor, since other work may share the machine, and of the clock. The model computes the
same in both, on other batches of the rows; so the making of the batches, in which alone the code
differs, is measured by itself too, and is what is held against two per cent of a step. Drawing the
views, which is before training, is measured beside. Writes benchmarks/results/sources.json and
sources.md.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import psutil
import torch

from compo_pipeline.methods.mixture import Mixture, apportion
from compo_pipeline.methods.views import EpochViews, write
from compo_pipeline.storage.records import Caption
from compo_pipeline.storage.tables import Table
from compo_pipeline.training.batches import Batches
from compo_pipeline.training.encoder import ModelEncoder
from compo_pipeline.training.features import embed
from compo_pipeline.training.images import ImageRows
from compo_pipeline.training.preprocessing import ModelPreprocessor
from training_speed import BATCH, COMPUTE, METHODS, ROWS, SEED, Data, Way, loaded_for, processor

RESULTS = Path(__file__).parent / "results"
CLIC = METHODS["clic"]
WEIGHTS = {"half": 3.0, "third": 2.0, "sixth": 1.0}
WAYS = ("one source", "three sources")
DRAWN = 5  # epochs of views
MOST = 2.0  # per cent of a step


def divided(captions: Sequence[Caption]) -> list[Caption]:
    """The rows in sources of the sizes that their weights ask for."""
    names = [name for name, count in apportion(ROWS, WEIGHTS).items() for _ in range(count)]
    return [replace(row, source=name) for row, name in zip(captions, names, strict=True)]


def drawing(data: Data, rows: Table[Caption], folder: Path, mixture: Mixture | None) -> float:
    """Seconds of the processor that the views of some epochs take."""
    started = time.process_time()
    write(CLIC, rows, data.context, DRAWN, folder, mixture=mixture)
    return time.process_time() - started


def way(data: Data, rows: Table[Caption], views: Path, epochs: int) -> Way:
    """A training on rows, with the features of their images."""

    def batches(kept: ImageRows | None) -> Batches:
        reader = ModelPreprocessor(loaded_for(CLIC), data.root, kept)
        return Batches(rows, views, CLIC, reader, batch_size=BATCH, epochs=epochs, seed=SEED)

    plain = batches(None)
    features = embed(
        plain.images(), loaded_for(CLIC), plain.preprocessor, compute=COMPUTE, workers=0
    )
    model = loaded_for(CLIC)
    encoder = ModelEncoder(model.model, model.name, features, False, COMPUTE)
    return Way(batches(features.rows), CLIC, encoder, True)


def measured(repeats: int, epochs: int) -> dict[str, Any]:
    """Ratios of every repeat, and seconds of a step."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        data = Data(folder)
        mixture = Mixture(WEIGHTS, ROWS, SEED)
        tables = [Table.of(data.captions, Caption), Table.of(divided(data.captions), Caption)]
        kinds = (None, mixture)
        drawn: list[list[float]] = []
        for repeat in range(repeats + 1):
            drawn.append(
                [
                    drawing(data, rows, folder / f"views-{repeat}-{place}", kind)
                    for place, (rows, kind) in enumerate(zip(tables, kinds, strict=True))
                ]
            )
        steps = epochs * (ROWS // BATCH)
        views = [folder / f"views-0-{place}" for place in range(2)]
        for place in range(2):
            assert len(EpochViews(views[place]).epoch(0)) == ROWS
        every = [
            way(data, rows, place, epochs * (repeats + 1))
            for rows, place in zip(tables, views, strict=True)
        ]
        found = []
        for repeat in range(repeats + 1):
            seconds = [[0.0] * 3, [0.0] * 3]
            for step in range(repeat * steps, (repeat + 1) * steps):
                # Each goes first at every other step: what the second one finds warm evens out.
                for place in (0, 1) if step % 4 < 2 else (1, 0):
                    started = time.process_time(), time.perf_counter()
                    every[place].step(step)
                    seconds[place][0] += time.process_time() - started[0]
                    seconds[place][1] += time.perf_counter() - started[1]
                for place in (0, 1, 1, 0):
                    begun = time.process_time()
                    every[place].batches[step]
                    seconds[place][2] += (time.process_time() - begun) / 2
            if repeat:  # the first one loads what is loaded on first use
                found.append(seconds)
    return {
        "repeats": repeats,
        "steps a repeat": steps,
        "seconds a step": {
            name: median(each[place][0] for each in found) / steps
            for place, name in enumerate(WAYS)
        },
        "milliseconds a batch": {
            name: 1e3 * median(each[place][2] for each in found) / steps
            for place, name in enumerate(WAYS)
        },
        "what batches add to a step, per cent": [
            100 * (each[1][2] - each[0][2]) / each[0][0] for each in found
        ],
        "ratio of the processor's seconds": [each[1][0] / each[0][0] for each in found],
        "ratio of the clock's seconds": [each[1][1] / each[0][1] for each in found],
        "ratio of the processor's seconds of drawing views": [
            other / one for one, other in drawn[1:]
        ],
    }


def table(results: dict[str, Any]) -> str:
    """The figures as Markdown."""
    machine, found = results["machine"], results["measured"]
    lines = [
        "# Several sources",
        "",
        f"`python benchmarks/sources.py`: {machine['processor']}, {machine['cores']} cores, torch "
        f"{machine['torch']}, one thread, fp32, batches of {BATCH}, CLIC on the scenes base with "
        f"features of {ROWS} images; {found['repeats']} repeats of {found['steps a repeat']} steps "
        f"each, paired in one run. Load before: {machine['load']:.0f}.",
        "",
        "| three sources to one source | median | least and most of a repeat |",
        "| --- | --- | --- |",
    ]
    for name, values in found.items():
        if isinstance(values, list):
            what = name.removeprefix("ratio of the ")
            lines.append(
                f"| {what} | {median(values):.3f} | {min(values):.3f} to {max(values):.3f} |"
            )
    return "\n".join(lines) + "\n"


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, and write the table.

    Raises:
        SystemExit: mixing costs more than two per cent of a step.
    """
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--epochs", type=int, default=2)
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    machine = {
        "processor": processor(),
        "cores": psutil.cpu_count(),
        "torch": torch.__version__,
        "load": psutil.getloadavg()[0],
    }
    results = {"machine": machine, "measured": measured(options.repeats, options.epochs)}
    print(json.dumps(results, indent=1))
    (RESULTS / "sources.json").write_text(json.dumps(results, indent=2) + "\n")
    (RESULTS / "sources.md").write_text(table(results))
    added = median(results["measured"]["what batches add to a step, per cent"])
    if added > MOST:
        raise SystemExit(f"mixing adds {added:.1f}% to a step")


if __name__ == "__main__":
    main()
