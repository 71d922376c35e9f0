"""Items scored a second: each distinct image and text once, against item by item.

    python benchmarks/suite_speed.py <folder of sugar_crepe/ and sugar_crepe_pp/> --images 100

Takes the items of random images of the official files of SugarCrepe and SugarCrepe++, with
generated images of COCO's size under their names, and ViT-B/32 with random weights. Item by item,
as the official scripts do it: an image and its texts are read and encoded for each item. Ours:
`Embedder` and `score_model`, first without and then with stored embeddings. Prints the items a
second of each and their ratio, and checks that both ways decide every item equally.
"""

from __future__ import annotations

import argparse
import dataclasses
import random
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from compo_pipeline.benchmarks.items import Subtask
from compo_pipeline.benchmarks.loading import from_files
from compo_pipeline.benchmarks.settings import BenchmarkSet, BenchmarksSettings
from compo_pipeline.evaluation.embed import Embedder
from compo_pipeline.evaluation.protocols import choice
from compo_pipeline.evaluation.scoring import score_model
from compo_pipeline.evaluation.settings import EvaluationSettings
from compo_pipeline.images.decoding import load as load_image
from compo_pipeline.models.loading import LoadedModel, load
from compo_pipeline.models.settings import ModelSettings
from compo_pipeline.run.compute import choose_device, use_cores

SETS: dict[str, BenchmarkSet] = {name: BenchmarkSet() for name in ("sugar_crepe", "sugar_crepe_pp")}
SIZE = (480, 640)


def sample(root: Path, images: Path, count: int) -> list[Subtask]:
    """The items of `count` random images of the files; the images are generated."""
    tasks = from_files(BenchmarksSettings(str(root), str(images), SETS))
    names = sorted({item.image for task in tasks for item in task.items})
    names = random.Random(0).sample(names, count)
    for number, name in enumerate(names):
        noise = np.random.default_rng(number).integers(0, 255, (*SIZE, 3), dtype=np.uint8)
        Image.fromarray(noise).save(images / name)
    chosen = set(names)
    return [
        dataclasses.replace(task, items=tuple(item for item in task.items if item.image in chosen))
        for task in tasks
    ]


@torch.inference_mode()
def item_by_item(loaded: LoadedModel, tasks: Sequence[Subtask]) -> Iterator[bool]:
    """Verdicts of image-to-text choice, each item encoded alone."""
    model: Any = loaded.model
    for task in tasks:
        for item in task.items:
            pixels = loaded.preprocess(load_image(*task.image_location(item)))[None]
            image = model.encode_image(pixels, normalize=True)
            tokens = loaded.tokenize([*item.positives, *item.negatives])
            cosines = (image @ model.encode_text(tokens, normalize=True).T).numpy()
            matches = len(item.positives)
            yield bool(choice(cosines[:, :matches], cosines[:, matches:])[0])


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("root", type=Path)
    parser.add_argument("--images", type=int, default=100)
    arguments = parser.parse_args()
    use_cores()
    loaded = load(ModelSettings("ViT-B-32"), choose_device("cpu", key="device"))
    with tempfile.TemporaryDirectory() as folder:
        images = Path(folder) / "images"
        images.mkdir()
        tasks = sample(arguments.root, images, arguments.images)
        items = sum(len(task.items) for task in tasks)
        texts = [text for task in tasks for text in task.texts()]
        print(f"{items} items, {arguments.images} images, {len(set(texts))} of {len(texts)} texts")
        started = time.perf_counter()
        slow = list(item_by_item(loaded, tasks))
        rates = {"item by item": items / (time.perf_counter() - started)}
        for name in ("each once", "stored"):
            started = time.perf_counter()
            embedder = Embedder(tasks, EvaluationSettings(), Path(folder) / "embeddings")
            rows = score_model(tasks, embedder(loaded, "ViT-B-32"), "ViT-B-32").rows
            rates[name] = items / (time.perf_counter() - started)
    fast = [row.correct for row in rows if row.metric in ("accuracy", "itt")]
    for name, rate in rates.items():
        print(f"{name}: {rate:.1f} items/s, {rate / rates['item by item']:.1f} times")
    print(f"{sum(a == b for a, b in zip(slow, fast, strict=True))} of {items} verdicts are equal")


if __name__ == "__main__":
    main()
