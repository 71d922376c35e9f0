"""Parquet files with the images in them, read in place, as mirrors on the Hugging Face hub have.

`data.columns.image` names the column of images (records {bytes, path}, or bytes), which it need not
where there is but one, and `data.columns.caption` that of captions (`caption`). So does img2dataset
write them with `--output_format parquet`.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from compo_pipeline.core.archives import image_columns
from compo_pipeline.core.records import Rejected
from compo_pipeline.core.untrusted import shown
from compo_pipeline.data.readers import table
from compo_pipeline.data.readers.delimited import UnreadableRecord
from compo_pipeline.data.readers.joined import key_of
from compo_pipeline.data.readers.record import (
    RawCaption,
    SourceError,
    checked,
    rejected,
    shard_files,
)
from compo_pipeline.data.settings import DataSettings

_CAPTION = "caption"
_KEYS = ("__key__", "key")


def caption_files(data: DataSettings, source: str) -> list[Path]:
    """Paths of the split's Parquet files, sorted by name."""
    return shard_files(data, source, ".parquet")


def _open(path: Path) -> tuple[list[str], list[str], list[int]]:
    """Columns of a Parquet file, those that hold images, and the rows of each row group.

    Raises:
        SourceError: it cannot be read: nobody knows how many rows it had.
    """
    with table.parquet_file(path) as file:
        groups = [file.metadata.row_group(k).num_rows for k in range(file.num_row_groups)]
        return file.schema_arrow.names, image_columns(file), groups


def read(data: DataSettings, split: str, source: str) -> Iterator[RawCaption | Rejected]:
    """Yield a caption record per row of the Parquet files."""
    for path in caption_files(data, source):
        shard = path.relative_to(data.root).as_posix()
        name = f"{split}-{shard.removesuffix('.parquet')}"
        there, images, groups = _open(path)
        columns = _Columns(data, path, there, images)
        start = 0
        for group, rows in enumerate(groups):
            done = 0
            try:
                with table.parquet_file(path) as file:
                    for values in table.parquet_rows(file, columns.read, [group]):
                        yield columns.record(values, split, name, shard, start + done)
                        done += 1
            except ValueError as error:
                for row in range(start + done, start + rows):
                    detail = f"row group {group} is damaged: {error}"
                    yield rejected(f"{name}/{row}", f"{shard}/{columns.image}/{row}", detail)
            start += rows


class _Columns:
    """Columns of a Parquet file that hold image, caption, id and join key."""

    def __init__(self, data: DataSettings, path: Path, there: list[str], images: list[str]) -> None:
        """Find them.

        Raises:
            SourceError: one is missing, or several could hold the images.
        """
        given = data.columns
        if given.image is None and len(images) != 1:
            found = f"several columns of images, {', '.join(images)}" if images else "no images"
            raise SourceError(
                f"{path} has {found} (its columns are {shown(', '.join(there))}): set "
                "data.columns.image to a column of bytes, or of records with the field bytes"
            )
        self.image = given.image or images[0]
        if self.image not in images:
            raise SourceError(
                f"data.columns.image: {path} has no images in a column {self.image}; expected one "
                f"of {', '.join(images) or 'none'}"
            )
        joined = data.captions.file is not None
        self.text = None if joined else given.caption or _CAPTION
        self.key = data.captions.image_key or next((name for name in _KEYS if name in there), "")
        if joined and self.key not in there:
            raise SourceError(
                f"data.captions.image_key: {path} has no column "
                f"{self.key or ' or '.join(_KEYS)} (it has {shown(', '.join(there))})"
            )
        self.id = given.id
        wanted = [self.text, self.id, self.key if joined else None]
        self.read = list(dict.fromkeys(name for name in wanted if name))
        missing = [name for name in self.read if name not in there]
        if missing:
            raise table.missing_columns(path, missing, there)

    def record(
        self, values: table.Values, split: str, name: str, shard: str, row: int
    ) -> RawCaption | Rejected:
        """Caption record of a row, or its rejection with the reason."""
        image, sample_id = f"{shard}/{self.image}/{row}", f"{name}/{row}"
        if isinstance(values, UnreadableRecord):
            return rejected(sample_id, image, str(values))
        if self.id:
            if values[self.id] is None:
                return rejected(sample_id, image, f"nothing in {self.id} (data.columns.id)")
            sample_id = f"{split}-{values[self.id]}"
        text = values[self.text] if self.text else ""
        key = "" if self.text else key_of(values, self.key)
        return checked(sample_id, f"{split}-{image}", image, (text,), (), split, key)
