"""Half-truths: a caption, the same with a true detail added, and with a false one.

`<subset>.parquet` or `<subset>.jsonl` with the columns image, anchor (the caption), full_truth,
half_truth and triplet_type (entity or relation). Parquet holds the images, JSON names them.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from compo_pipeline.configuration import SettingsError
from compo_pipeline.evaluation.benchmarks.items import (
    Benchmark,
    Item,
    Mean,
    Subtask,
    field_of,
    rows_of,
    subtasks_of,
)
from compo_pipeline.untrusted import shown

NAME = "half_truths"
SUBSETS = ("coco_qwen", "coco_mistral", "cc3m_qwen")
KINDS = ("entity", "relation")


def load(root: Path, images: Path) -> list[Subtask]:
    """Read every file in the folder, a subtask for each kind of detail."""
    files = sorted(file for ending in ("parquet", "jsonl") for file in root.glob(f"*.{ending}"))
    if not files:
        raise SettingsError(f"there is no *.parquet or *.jsonl in {root}")
    return [
        subtask
        for file in files
        for subtask in subtasks_of(
            NAME, "half_truth", root if file.suffix == ".parquet" else images, _items(file)
        )
    ]


def _items(file: Path) -> Iterator[tuple[str, Item]]:
    for row, (where, record) in enumerate(rows_of(file)):
        anchor, full, half, kind = (
            field_of(record, key, where)
            for key in ("anchor", "full_truth", "half_truth", "triplet_type")
        )
        if kind not in KINDS:
            raise SettingsError(
                f"{where}: expected a triplet_type of {', '.join(KINDS)}, got {shown(kind)}"
            )
        inside = file.suffix == ".parquet"
        image = f"{file.name}/image/{row}" if inside else field_of(record, "image", where)
        yield f"{file.stem}_{kind}", Item(f"{row}", image, (full, anchor), (half,))


_TOTALS = {
    subset: Mean(tuple(f"{subset}_{kind}" for kind in KINDS), by_items=True) for subset in SUBSETS
}

BENCHMARK = Benchmark(
    name=NAME,
    label="Half-Truths",
    load=load,
    headline=lambda metric, name: metric == "half_truth",
    averages=dict.fromkeys(("half_truth", "truth_order"), _TOTALS),
    source="huggingface.co/datasets/kbora/Half-Truths: data/<subset>.parquet, with its images",
)
