"""Pairs a second: CLIC's views, parsing included, against parsing both sentences in each sample.

    python benchmarks/views_speed.py [captions_train2017.json]

Captions are those of rendered scenes, or of a COCO annotation file. Both ways use the same language
pipeline and the same code for partners, swaps and views; the naive one calls the pipeline for the
two sentences of every sample, as a dataset's `__getitem__` would. Times are of the processor, and
both ways take turns.
"""

from __future__ import annotations

import itertools
import json
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from rich.console import Console
from rich.table import Table
from spacy.language import Language

from compo_pipeline.language import parsing
from compo_pipeline.methods.clic import Clic, ClicObjective, ClicViews
from compo_pipeline.methods.contract import ViewContext
from compo_pipeline.run.seeding import rng
from compo_pipeline.storage.records import Caption, Parse
from compo_scenes.captions import sentences
from compo_scenes.world import World

ROWS = 4000
NAIVE = 200  # pairs of the naive way a round
ROUNDS = 5
EPOCHS = (1, 5)
CLIC = Clic(ClicViews(), ClicObjective())


class ParsedWhenAsked(Mapping[str, Parse]):
    """Parses each sentence whenever it is looked up."""

    def __init__(self, nlp: Language, captions: list[Caption]) -> None:
        self.nlp = nlp
        self.texts = {row.sample_id: row.sentences[0] for row in captions}

    def __getitem__(self, sample_id: str) -> Parse:
        return next(parsing.parse(self.nlp, [(sample_id, 0, self.texts[sample_id])]))

    def __iter__(self) -> Iterator[str]:
        return iter(self.texts)

    def __len__(self) -> int:
        return len(self.texts)


def of_scenes() -> list[Caption]:
    """Captions of rendered scenes."""
    scenes = itertools.islice(World().scenes(0, "train"), ROWS)
    return [
        Caption(name, name, "", 256, 256, sentences(scene, rng(name)), "scenes", "train")
        for scene in scenes
        for name in [scene.scene_id]
    ]


def of_coco(file: Path) -> list[Caption]:
    """Captions of COCO's layout; only their texts count here."""
    rows = json.loads(file.read_text(encoding="utf-8"))["annotations"][:ROWS]
    return [
        Caption(
            sample_id=str(row["id"]),
            image_id=str(row["image_id"]),
            image="",
            width=4,
            height=3,
            sentences=(row["caption"],) * 2,
            source="coco",
            split="train",
        )
        for row in rows
    ]


def ours(nlp: Language, captions: list[Caption], epochs: int) -> float:
    """Seconds a pair: all first sentences parsed together, then views of every epoch."""
    started = time.process_time()
    items = ((row.sample_id, 0, row.sentences[0]) for row in captions)
    parses = {parse.sample_id: parse for parse in parsing.parse(nlp, items)}
    pairs = sum(
        1
        for epoch in range(epochs)
        for _ in CLIC.views(captions, ViewContext(parses, "", 0, epoch))
    )
    return (time.process_time() - started) / pairs


def naive(nlp: Language, captions: list[Caption], epoch: int) -> float:
    """Seconds a pair: both sentences parsed inside each sample."""
    asked = ParsedWhenAsked(nlp, captions)
    views = CLIC.views(captions, ViewContext(asked, "", 0, epoch))
    next(views)  # the first one sets up partners, which is nothing that a sample repeats
    started = time.process_time()
    pairs = sum(1 for _ in itertools.islice(views, NAIVE))
    return (time.process_time() - started) / pairs


def main() -> None:
    """Measure and print."""
    captions = of_coco(Path(sys.argv[1])) if len(sys.argv) > 1 else of_scenes()
    nlp = parsing.load(parsing.SHIPPED)
    ours(nlp, captions[:100], 1), naive(nlp, captions, 0)
    slow: list[float] = []
    fast: dict[int, list[float]] = {epochs: [] for epochs in EPOCHS}
    for number in range(ROUNDS):
        slow.append(naive(nlp, captions, number))
        for epochs in EPOCHS:
            fast[epochs].append(ours(nlp, captions, epochs))
    distinct = len({row.sentences[0] for row in captions}) / len(captions)
    table = Table(title=f"{len(captions)} captions, {distinct:.0%} distinct, {ROUNDS} rounds")
    for column in ("way", "pairs a second", "times the naive way", "least and most of a round"):
        table.add_column(column)
    table.add_row("naive", f"{1 / min(slow):,.0f}", "1", "")
    for epochs, seconds in fast.items():
        ratios = [a / b for a, b in zip(slow, seconds, strict=True)]
        table.add_row(
            f"views of {epochs} epoch{'s' if epochs > 1 else ''}",
            f"{1 / min(seconds):,.0f}",
            f"{sorted(ratios)[len(ratios) // 2]:.1f}",
            f"{min(ratios):.1f} to {max(ratios):.1f}",
        )
    Console().print(table)


if __name__ == "__main__":
    main()
