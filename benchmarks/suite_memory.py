"""Peak memory and time of scoring many models on many items, beside the models themselves.

    python benchmarks/suite_memory.py [--items 25000] [--models 10] [--name now]

Items are synthetic, of four kinds: a choice between two texts, SugarCrepe++'s three texts (ITT and
TOT), Winoground's two images with a caption each (four metrics), retrieval with five captions an
image (six metrics). Random unit vectors of ViT-B/32's width take the place of the embeddings, so
that no model is loaded and no image is read; they are in the figures, as in a real run. What runs
is the work of `kedro run --pipeline=benchmark`: scores and comparison, the table of scores, its
rows read again for the cards of the page. `own` is private memory above the start, `resident`
counts pages of mapped files too, which the system takes back when it needs them. Adds the figures
under a name to benchmarks/results/suite_memory.json; run it once for each number of models.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import cast
from unittest.mock import patch

import numpy as np
import psutil
import torch
from numpy.typing import NDArray

from compo_pipeline.benchmarks.items import Item, Subtask
from compo_pipeline.benchmarks.settings import BenchmarksSettings
from compo_pipeline.evaluation import evaluate
from compo_pipeline.evaluation.differences import item_changes
from compo_pipeline.evaluation.embed import Embedded, Tokens, Vectors
from compo_pipeline.evaluation.settings import EvaluationSettings
from compo_pipeline.evaluation.suite import score_suite
from compo_pipeline.models.loading import LoadedModel
from compo_pipeline.presentation.item_cards import hardest_cards
from compo_pipeline.run.compute import use_cores
from compo_pipeline.run.seeding import rng
from compo_pipeline.storage.records import Score
from compo_pipeline.storage.table_files import write_rows
from compo_pipeline.storage.tables import Table

RESULTS = Path(__file__).parent / "results" / "suite_memory.json"
WIDTH = 512
TOKENS = 77
IMAGES = Path("images")
EVERY = 0.01  # seconds between two looks at the memory


def subtasks(items: int) -> list[Subtask]:
    """So many items of four kinds."""

    def task(
        benchmark: str,
        protocols: tuple[str, ...],
        share: float,
        right: int,
        wrong: int,
        images: int,
    ) -> Subtask:
        own = tuple(_items(benchmark, int(share * items), right, wrong, images))
        return Subtask(benchmark, "all", protocols, IMAGES, own)

    return [
        task("sugar_crepe", ("image_to_text",), 0.3, right=1, wrong=1, images=1),
        task("sugar_crepe_pp", ("image_to_text", "text_only"), 0.2, right=2, wrong=1, images=1),
        task("winoground", ("group",), 0.4, right=1, wrong=1, images=2),
        task("flickr30k", ("retrieval",), 0.1, right=5, wrong=0, images=1),
    ]


def _items(kind: str, count: int, right: int, wrong: int, images: int) -> Iterator[Item]:
    for number in range(count):
        texts = tuple(
            f"Text {place} of item {number} of {kind}, as long as a caption of COCO is"
            for place in range(right + wrong)
        )
        first, *others = (f"{kind}_{number:012d}_{place}.jpg" for place in range(images))
        yield Item(f"{kind}_{number}", first, texts[:right], texts[right:], tuple(others))


class RandomEmbedder:
    """In place of `Embedder`: random vectors for every image and text of the subtasks."""

    def __init__(
        self, tasks: Sequence[Subtask], settings: EvaluationSettings, store: Path | None
    ) -> None:
        del settings, store
        self.images = _numbered(
            str(path) for task in tasks for item in task.items for path in task.paths(item)
        )
        self.texts = _numbered(text for task in tasks for text in task.texts())
        ids = torch.zeros(len(self.texts), TOKENS, dtype=torch.long)
        ids[:, 0] = torch.arange(len(self.texts))
        self.tokens = Tokens(ids, np.zeros(len(self.texts), dtype=np.bool_), self.texts)

    def __call__(self, loaded: LoadedModel, name: str) -> Embedded:
        """A model's vectors."""
        del loaded
        images = Vectors(_vectors(name, "images", len(self.images)), self.images)
        texts = Vectors(_vectors(name, "texts", len(self.texts)), self.texts)
        return Embedded(images, {}, texts, self.tokens)


def _numbered(names: Iterator[str]) -> dict[str, int]:
    return {name: number for number, name in enumerate(dict.fromkeys(names))}


def _vectors(name: str, kind: str, count: int) -> NDArray[np.float32]:
    """Random unit vectors [count, D]."""
    generator = np.random.default_rng(rng(name, kind).getrandbits(64))
    found = generator.standard_normal((count, WIDTH), dtype=np.float32)
    found /= np.linalg.norm(found, axis=1, keepdims=True)
    return found


def no_model(name: str) -> LoadedModel:
    """In place of a loaded model."""
    return cast(LoadedModel, SimpleNamespace(name=name, fingerprint=name))


@contextmanager
def watched() -> Iterator[dict[str, float]]:
    """Yield the peaks of this process above now, in MiB; they are filled in at the end."""
    process, stop, peaks = psutil.Process(), threading.Event(), {"own": 0.0, "resident": 0.0}

    def memory() -> dict[str, float]:
        found = process.memory_info()
        return {"own": (found.rss - found.shared) / 2**20, "resident": found.rss / 2**20}

    start = memory()

    def look() -> None:
        while not stop.wait(EVERY):
            for key, now in memory().items():
                peaks[key] = max(peaks[key], now - start[key])

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield peaks
    finally:
        stop.set()
        thread.join()


def measured(items: int, models: int) -> Mapping[str, float]:
    """The number of rows, the peaks in MiB above the start, and the processor's seconds."""
    tasks = subtasks(items)
    names = [f"model {number}" for number in range(models)]
    loaders = {name: partial(no_model, name) for name in names}
    with tempfile.TemporaryDirectory() as work, patch.object(evaluate, "Embedder", RandomEmbedder):
        folder = Path(work)
        table = folder / "scores.parquet"
        start = time.process_time()
        with watched() as peaks:
            settings = EvaluationSettings(), BenchmarksSettings()
            store = folder / "embeddings"
            scores, suite = score_suite(tasks, loaders, *settings, store)
            write_rows(table, scores, Score)
            rows = len(scores)
            del scores
            stored, (first, *others) = Table.open(table, Score), suite.models
            pairs = ((first, name) for name in others)
            changes = [one for pair in pairs for one in item_changes(stored, tasks, pair)]
            hardest_cards(tasks, changes, suite.benchmarks, 0)
    seconds = time.process_time() - start
    return {"items": items, "models": models, "rows": rows, **peaks, "seconds": seconds}


def main() -> None:
    """Measure, print and store."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--items", type=int, default=25_000)
    parser.add_argument("--models", type=int, default=10)
    parser.add_argument("--name", default="now", help="of the code that is measured")
    options = parser.parse_args()
    use_cores()
    found = measured(options.items, options.models)
    print(", ".join(f"{key} {value:,.0f}" for key, value in found.items()))
    results = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    results.setdefault(options.name, {})[f"{options.models} models"] = found
    RESULTS.write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main()
