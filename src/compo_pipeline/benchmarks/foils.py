"""Foils of a dataset's own captions, built by the pipeline `foils`: a subtask for each kind."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from pathlib import Path

from compo_pipeline.benchmarks.items import Benchmark, Item, Mean, Subtask
from compo_pipeline.core.records import Foil
from compo_pipeline.data.images.decoding import ACCEPTED, Limits

NAME = "foils"
AVERAGE = "average"

log = logging.getLogger(__name__)


def load(foils: Iterable[Foil], split: str, root: Path, limits: Limits = ACCEPTED) -> list[Subtask]:
    """Load the foils of a split, as a subtask for each kind that is in use.

    The other kinds are logged.

    Args:
        foils: the table.
        split: split whose items are read.
        root: folder that the images' paths are relative to.
        limits: limits of the images that are accepted.
    """
    items: dict[str, list[Item]] = {}
    left_out: dict[str, int] = {}
    for row in foils:
        if row.split == split and row.state == "used":
            item = Item(row.item, row.image, (row.caption,), (row.foil,))
            items.setdefault(row.kind, []).append(item)
        elif row.split == split:
            name = f"{row.kind} ({row.state})"
            left_out[name] = left_out.get(name, 0) + 1
    if left_out or not items:
        named = ", ".join(f"{name} {count}" for name, count in left_out.items()) or "no item"
        log.warning("Foils of the split '%s' that are not scored: %s.", split, named)
    return [
        Subtask(NAME, kind, ("image_to_text",), root, tuple(own), limits=limits, source=split)
        for kind, own in items.items()
    ]


BENCHMARK = Benchmark(
    name=NAME,
    role="composition",
    label="Foils of own captions",
    load=None,
    headline=lambda metric, name: metric == "accuracy",
    averages={"accuracy": {AVERAGE: Mean(())}},
)
