"""NegCLIP's COCO captions (train_neg_clip.tsv): one row per caption, tab separated.

Columns: an index without a name, `title` (the caption), `filepath` (such as
`coco/train2014/COCO_train2014_000000000009.jpg`, from `data.images` on), `neg_caption` and
`neg_image` (lists of hard negatives computed in advance). The last two are not data of a row:
`views.from_table` with the layout `neg_clip` takes them, else methods make their negatives.

The row's caption comes first; the other captions of its image are the further ones.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from compo_pipeline.datasets.readers import table
from compo_pipeline.datasets.readers.record import RawCaption
from compo_pipeline.datasets.settings import DataSettings
from compo_pipeline.storage.records import Rejected

caption_files = table.caption_files


def read(data: DataSettings, split: str, source: str) -> Iterator[RawCaption | Rejected]:
    """Yield a record per caption, in the file's order, with the image's other captions.

    The file is read twice: once for the captions that each image has.
    """
    named = _named(data)
    of_image: dict[str, list[tuple[str, str]]] = {}
    for record in table.read(named, split, source):
        if isinstance(record, RawCaption):
            of_image.setdefault(record.image, []).append((record.sample_id, record.own[0]))
    for record in table.read(named, split, source):
        if isinstance(record, RawCaption):
            others = of_image[record.image]
            further = tuple(text for sample, text in others if sample != record.sample_id)
            yield replace(record, further=further)
        else:
            yield record


def _named(data: DataSettings) -> DataSettings:
    """Settings with NegCLIP's columns."""
    given = data.columns
    columns = replace(given, image=given.image or "filepath", caption=given.caption or "title")
    return replace(data, columns=columns)
