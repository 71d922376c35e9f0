"""Parquet shards of images, in the rows themselves or in a folder beside the shard.

Shards with images in a column (records {bytes, path}, or bytes) are read in place, as mirrors on
the Hugging Face hub and `img2dataset --output_format parquet` have them. `data.columns.image` names
that column, which it need not where there is but one.

`img2dataset --output_format files` leaves a shard `00000.parquet` beside the folder `00000` with
`<key>.jpg`; `data.columns.image` names another pattern than `{key}.jpg`. A row that was never
downloaded (`status`) is not bad, and is counted apart in the reports.

The caption is in the column `data.columns.caption` (`caption`), or in the table `data.captions`.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from compo_pipeline.core.archives import image_columns
from compo_pipeline.core.records import Rejected
from compo_pipeline.core.tables import parquet_file
from compo_pipeline.core.untrusted import shown
from compo_pipeline.data.readers import table
from compo_pipeline.data.readers.delimited import UnreadableRecord
from compo_pipeline.data.readers.joined import key_of
from compo_pipeline.data.readers.record import (
    NOT_DOWNLOADED,
    RawCaption,
    SourceError,
    checked,
    rejected,
    shard_files,
)
from compo_pipeline.data.settings import DataSettings

_KEYS = ("__key__", "key")
_STATUS, _ERROR = "status", "error_message"


def caption_files(data: DataSettings, source: str) -> list[Path]:
    """Paths of the split's shards, sorted by name."""
    return shard_files(data, source, ".parquet")


def read(data: DataSettings, split: str, source: str) -> Iterator[RawCaption | Rejected]:
    """Yield a caption record per row of the shards."""
    for path in caption_files(data, source):
        with parquet_file(path, trusted=False) as file:
            shard = _Shard(data, path, file.schema_arrow.names, image_columns(file))
        for row, values in enumerate(table.parquet_records(path, shard.columns)):
            yield shard.record(values, split, row)


class _Shard:
    """A shard: which of its columns hold image, caption, id and join key."""

    def __init__(self, data: DataSettings, path: Path, there: list[str], images: list[str]) -> None:
        """Find the columns.

        Raises:
            SourceError: one is missing, or several could hold the images.
        """
        given = data.columns
        self.name = path.relative_to(data.root).as_posix().removesuffix(".parquet")
        self.pattern, self.id, self.images = "", given.id, self.name
        if not images and (given.image or "key" in there):
            self.pattern, self.id = given.image or "{key}.jpg", given.id or "key"
            if (tar := path.with_suffix(".tar")).is_file() and not path.with_suffix("").is_dir():
                raise SourceError(
                    f"{tar} holds its images packed: read captions and images in place with "
                    "data.format=webdataset and data.splits of '*.tar', or download with "
                    "--output_format files"
                )
        else:
            column = images[0] if given.image is None and len(images) == 1 else given.image
            if column not in images:
                raise SourceError(
                    f"data.columns.image: {path} has images (bytes, or records with the field "
                    f"bytes) in {', '.join(images) or 'no column'}, of the columns "
                    f"{shown(', '.join(there))}; expected one of these, got {column}"
                )
            self.images = f"{self.name}.parquet/{column}"
        joined = data.captions.file is not None
        self.text = None if joined else given.caption or "caption"
        self.key = data.captions.image_key or next((name for name in _KEYS if name in there), "")
        if joined and self.key not in there:
            raise SourceError(
                f"data.captions.image_key: {path} has no column "
                f"{self.key or ' or '.join(_KEYS)} (it has {shown(', '.join(there))})"
            )
        self.needed = [*filter(None, [self.id]), *table.columns_in_pattern(self.pattern)]
        wanted = dict.fromkeys([*self.needed, self.key if joined else str(self.text)])
        if missing := [name for name in wanted if name not in there]:
            raise table.missing_columns(path, missing, there)
        downloads = (_STATUS, _ERROR) if {"key", _STATUS} <= {*there} else ()
        self.columns = [*wanted, *(name for name in downloads if name in there)]

    def record(self, values: table.Values, split: str, row: int) -> RawCaption | Rejected:
        """Caption record of a row, or its rejection with the reason."""
        sample_id, image = f"{split}-{self.name}/{row}", f"{self.images}/{row}"
        if isinstance(values, UnreadableRecord):
            return rejected(sample_id, "" if self.pattern else image, str(values))
        if self.id and values[self.id] is not None:
            sample_id = f"{split}-{values[self.id]}"
        if (status := values.get(_STATUS, "success")) != "success":
            return rejected(sample_id, "", f"{status}: {values.get(_ERROR)}", NOT_DOWNLOADED)
        try:
            name = table.image_name(self.pattern, self.needed, values)
        except ValueError as error:
            return rejected(sample_id, "" if self.pattern else image, str(error))
        if self.pattern:
            image = f"{self.images}/{name}"
        text = values[self.text] if self.text else ""
        key = "" if self.text else key_of(values, self.key)
        return checked(sample_id, f"{split}-{image}", image, (text,), (), split, key)
