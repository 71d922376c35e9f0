"""Half-truths: a caption, the same with a true detail added, and with a false one.

`<subset>.parquet` or `<subset>.jsonl` with the columns image, anchor (the caption), full_truth,
half_truth and triplet_type (entity or relation). `image` names an image; the authors' Parquet
files hold them.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from compo_pipeline.benchmarks.files import Record, read_files, subtasks_of
from compo_pipeline.benchmarks.items import Benchmark, Item, Mean, Subtask
from compo_pipeline.core.settings import SettingsError
from compo_pipeline.core.untrusted import shown

NAME = "half_truths"
SUBSETS = ("coco_qwen", "coco_mistral", "cc3m_qwen")
KINDS = ("entity", "relation")


def load(root: Path, images: Path) -> list[Subtask]:
    """Load Half-Truths: a subtask for each file and kind of detail (entity or relation)."""
    found = []
    for file in read_files(root, "*.parquet", "*.jsonl"):
        named = file.where.endswith(".jsonl") or "image" in file.content[0]
        items = _items(file, None if named else Path(file.where).relative_to(root))
        found += subtasks_of(NAME, "half_truth", images if named else root, items)
    return found


def _items(file: Record, inside: Path | None) -> Iterator[tuple[str, Item]]:
    """Yield subtask name and item of each record.

    Images may be inside the Parquet file.
    """
    for record in file.records():
        anchor, full, half, kind = map(
            record.text, ("anchor", "full_truth", "half_truth", "triplet_type")
        )
        if kind not in KINDS:
            raise SettingsError(
                f"{record.where}: expected a triplet_type of {', '.join(KINDS)}, got {shown(kind)}"
            )
        image = f"{inside}/image/{record.name}" if inside else record.text("image")
        yield f"{file.name}_{kind}", Item(record.name, image, (full, anchor), (half,))


_TOTALS = {
    subset: Mean(tuple(f"{subset}_{kind}" for kind in KINDS), by_items=True) for subset in SUBSETS
}

BENCHMARK = Benchmark(
    name=NAME,
    role="composition",
    label="Half-Truths",
    load=load,
    headline=lambda metric, name: metric == "half_truth",
    averages=dict.fromkeys(("half_truth", "truth_order"), _TOTALS),
    source="huggingface.co/datasets/kbora/Half-Truths: data/<subset>.parquet, with its images",
    parts=tuple(f"{subset}_{kind}" for subset in SUBSETS for kind in KINDS),
)
