"""PixelProse's parquet files (RedCaps, CC12M, CommonPool), captioned by a vision-language model.

The files name images by address only. Images downloaded with img2dataset as files are at
`<first five digits of key>/<key>.jpg`, and its metadata tables, which carry `vlm_caption` along,
are read just as well. `data.columns` overrides what is assumed here.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from compo_pipeline.datasets.readers import table
from compo_pipeline.datasets.readers.record import RawCaption
from compo_pipeline.datasets.settings import Columns, DataSettings
from compo_pipeline.storage.records import Rejected

caption_files = table.caption_files


def read(data: DataSettings, split: str, source: str) -> Iterator[RawCaption | Rejected]:
    """Yield a caption record per row of the split's Parquet files, with PixelProse's columns."""
    return table.read(_named(data), split, source)


def _named(data: DataSettings) -> DataSettings:
    """Settings with PixelProse's columns."""
    given = data.columns
    columns = Columns(
        id=given.id or "uid",
        image=given.image or "{key:.5}/{key}.jpg",
        caption=None if given.sentences else given.caption or "vlm_caption",
        sentences=given.sentences,
    )
    return replace(data, columns=columns)
