"""CC3M with captions by CoCa, as FSC-CLIP trains on it: img2dataset's files and one more column.

The caption is in the column `coca_captions`, or in a folder of that name beside the shards,
as `<key>.txt`; `data.columns.caption` names another.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

from compo_pipeline.datasets.readers import img2dataset
from compo_pipeline.datasets.readers.record import RawCaption
from compo_pipeline.datasets.settings import DataSettings
from compo_pipeline.storage.records import Rejected

_COLUMN = "coca_captions"
# CoCa's decoder writes the marks of its tokenizer out; a text encoder would read them as such.
_MARKED = re.compile(r"^\s*<start_of_text>|<end_of_text>.*$", re.DOTALL)


def strip_coca_tokens(text: str) -> str:
    """A caption without CoCa's tokens `<start_of_text>` and `<end_of_text>`."""
    return _MARKED.sub("", text).strip()


caption_files = img2dataset.caption_files


def read(data: DataSettings, split: str, source: str) -> Iterator[RawCaption | Rejected]:
    """Yield a caption record per row of img2dataset's files, without CoCa's special tokens."""
    for record in img2dataset.read(data, split, source, _COLUMN):
        if isinstance(record, RawCaption):
            yield replace(record, own=tuple(map(strip_coca_tokens, record.own)))
        else:
            yield record
