"""LAION images captioned by CogVLM, as CLIC's authors publish them: CSV without a header.

First the image's address or path, of which the file's name counts (they download it under that
name, into the folder `data.images`), then its caption, or its sentences in columns of their own.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from compo_pipeline.datasets.readers import table
from compo_pipeline.datasets.readers.delimited import (
    UnreadableRecord,
    csv_rows,
    without_halves,
)
from compo_pipeline.datasets.readers.record import RawCaption, checked, rejected
from compo_pipeline.datasets.settings import DataSettings
from compo_pipeline.storage.records import Rejected

caption_files = table.caption_files


def read(data: DataSettings, split: str, source: str) -> Iterator[RawCaption | Rejected]:
    """Yield a caption record per row of the split's CSV files, or its rejection."""
    number = 0
    for path in caption_files(data, source):
        for row in without_halves(csv_rows(path), 2):
            yield _record(row, data, split, number)
            number += 1


def _record(
    row: list[str] | UnreadableRecord, data: DataSettings, split: str, number: int
) -> RawCaption | Rejected:
    """Caption record of a CSV row, or its rejection with the reason."""
    sample_id = f"{split}-{number}"
    if isinstance(row, UnreadableRecord):
        return rejected(sample_id, "", str(row))
    if len(row) < 2:
        return rejected(sample_id, row[0], "one column, expected an image and its caption")
    # Rows of different lengths share one file, so short ones may be filled up with empty cells.
    texts = tuple(text for text in row[1:] if text) or ("",)
    name = row[0].rsplit("/", 1)[-1]
    image = (Path(data.images) / name).as_posix() if name else ""
    return checked(sample_id, f"{split}-{image}", image, texts, (), split)
