"""Readers, one per on-disk format: they yield records as the source holds them.

Cleaning, splitting and measuring come later; a record that cannot be read is yielded as rejected,
with the reason.
"""

from __future__ import annotations

from collections.abc import Iterator

from compo_pipeline.configuration import SettingsError, nearest
from compo_pipeline.datasets.readers import (
    cc3m_coca,
    coco_captions,
    cogvlm_laion,
    dreamlip,
    img2dataset,
    neg_clip,
    pixelprose,
    table,
)
from compo_pipeline.datasets.readers.record import RawCaption, Reader
from compo_pipeline.datasets.settings import SCENES, DataSettings
from compo_pipeline.records import Rejected

READERS: dict[str, Reader] = {
    SCENES: coco_captions,
    "coco_captions": coco_captions,
    "table": table,
    "pixelprose": pixelprose,
    "cogvlm_laion": cogvlm_laion,
    "neg_clip": neg_clip,
    "img2dataset": img2dataset,
    "cc3m_coca": cc3m_coca,
    "dreamlip": dreamlip,
}
"""Rendered scenes are written in COCO's own layout."""


def reader(data: DataSettings) -> Reader:
    """The reader of the configured format.

    Raises:
        SettingsError: there is none of that name.
    """
    if data.format not in READERS:
        raise SettingsError(
            f"data.format: unknown format '{data.format}'{nearest(data.format, READERS)} "
            f"(known: {', '.join(READERS)})"
        )
    return READERS[data.format]


def read(data: DataSettings) -> Iterator[RawCaption | Rejected]:
    """All records of a source: split by split, each in the order of its files."""
    chosen = reader(data)
    for split, source in data.sources.items():
        yield from chosen.read(data, split, source)
