"""What img2dataset leaves on disk with `--output_format files`: images and their metadata.

Each shard is a table `00000.parquet` beside the folder `00000` that holds `<key>.jpg`; each
image also has `00000/<key>.json` with the same values. `data.splits` names either kind, as
`*.parquet` or `0*/*.json`. Values: `key`, `status` (`success`, or how the download failed),
`error_message`, `caption`, and the columns that were carried along with
`--save_additional_columns`: `data.columns.caption` names the one that holds the caption, and
`data.columns.image` another pattern of file names than `{key}.jpg`.

A row that was never downloaded is not bad, and is counted apart in the reports. Tars
are not read, because everything after ingest reads images as files below the root.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from compo_pipeline.core.records import Rejected
from compo_pipeline.core.remote import open_file
from compo_pipeline.core.untrusted import path_below, read_json, shown
from compo_pipeline.data.readers import table
from compo_pipeline.data.readers.delimited import UnreadableRecord
from compo_pipeline.data.readers.record import (
    NOT_DOWNLOADED,
    RawCaption,
    SourceError,
    checked,
    rejected,
    shard_files,
    source_files,
)
from compo_pipeline.data.settings import DataSettings

_KEY, _STATUS, _ERROR = "key", "status", "error_message"
_SUCCESS = "success"
# Where output_format is parquet the images themselves are in this column.
_PIXELS = "jpg"
_TARS = "[0-9]*.tar"


def caption_files(data: DataSettings, source: str) -> list[Path]:
    """Paths of the split's metadata files (Parquet or JSON), sorted by name."""
    _refuse_packed(source_files(data, source), data.root)
    return shard_files(data, source, ".parquet", ".json")


def _refuse_packed(found: list[Path], root: Path) -> None:
    """Raise an error if the images are still packed in tar files, with the remedy."""
    beside = {path.parent.parent if path.suffix == ".json" else path.parent for path in found}
    tars = {tar for folder in beside for tar in folder.glob(_TARS)}
    if not found:
        tars = set(root.glob(f"**/{_TARS}"))
    packed = sorted(tar for tar in tars if not tar.with_suffix("").is_dir())
    if packed:
        raise SourceError(
            f"{packed[0]} holds its images packed: read captions and images in place with "
            "data.format=webdataset and data.splits of '*.tar', or download with "
            "--output_format files"
        )


def read(
    data: DataSettings, split: str, source: str, caption: str = "caption"
) -> Iterator[RawCaption | Rejected]:
    """Yield a caption record per metadata row; `caption` is the default of `data.columns.caption`.

    Where a table has no such column, it may be a folder of that name beside it with a text file
    `<key>.txt` for each image, of which the first line counts.
    """
    for path in caption_files(data, source):
        yield from _Shard(data, path, caption).records(split)


class _Shard:
    """A metadata file of img2dataset, and the folder of its images."""

    def __init__(self, data: DataSettings, path: Path, caption: str) -> None:
        self.data, self.path = data, path
        self.text = data.columns.caption or caption
        self.image = data.columns.image or f"{{{_KEY}}}.jpg"
        self.named = table.columns_in_pattern(self.image)
        self.id = data.columns.id or _KEY
        is_table = path.suffix == ".parquet"
        folder = path.with_suffix("") if is_table else path.parent
        self.images = folder.relative_to(data.root).as_posix()
        self.texts = folder.parent / self.text

    def records(self, split: str) -> Iterator[RawCaption | Rejected]:
        """Yield the caption records or rejections of the metadata rows, in order."""
        read = self._from_table if self.path.suffix == ".parquet" else self._from_file
        for number, values in enumerate(read()):
            if isinstance(values, UnreadableRecord):
                yield rejected(f"{split}-{self.path.stem}-{number}", "", str(values))
            else:
                yield self._record(values, split, number)

    def _from_table(self) -> Iterator[table.Values]:
        """Yield the values of each row of a Parquet metadata file."""
        with table.parquet_file(self.path) as file:
            there = file.schema_arrow.names
            self._check(there)
            wanted = [self.id, _STATUS, _ERROR, self.text, _KEY, *self.named]
            columns = [name for name in dict.fromkeys(wanted) if name in there]
            yield from table.parquet_rows(file, columns)

    def _check(self, there: list[str]) -> None:
        """Raise an error for a Parquet file that contains images, or lacks a needed column."""
        if _PIXELS in there:
            raise SourceError(
                f"{self.path} holds images: read them in place with data.format=image_parquet, or "
                "download with --output_format files"
            )
        missing = [name for name in (self.id, *self.named) if name not in there]
        if self.text not in there and not (self.texts.is_dir() and _KEY in there):
            missing.append(self.text)
        if missing:
            raise table.missing_columns(self.path, missing, there)

    def _from_file(self) -> Iterator[table.Values]:
        """Yield the values of a JSON metadata file of one image, or its error."""
        try:
            values = read_json(self.path)
        except ValueError as error:
            yield UnreadableRecord(str(error))
            return
        if isinstance(values, dict):
            yield values
        else:
            yield UnreadableRecord(f"{self.path.name}: {shown(values)}, expected an object")

    def _record(self, values: Mapping[str, Any], split: str, number: int) -> RawCaption | Rejected:
        """Caption record of a metadata row, or its rejection with the reason."""
        given = values.get(self.id)
        sample_id = f"{split}-{f'{self.path.stem}-{number}' if given is None else given}"
        status = values.get(_STATUS, _SUCCESS)
        if status != _SUCCESS:
            detail = f"{status}: {values.get(_ERROR)}"
            return rejected(sample_id, "", detail, NOT_DOWNLOADED)
        try:
            name = table.image_name(self.image, (self.id, *self.named), values)
        except ValueError as error:
            return rejected(sample_id, "", str(error))
        image = f"{self.images}/{name}"
        text = values[self.text] if self.text in values else self._first_line(values.get(_KEY))
        if text is None and self.text not in values:
            return rejected(sample_id, image, f"neither a {self.text} nor a text file of it")
        return checked(sample_id, f"{split}-{image}", image, (text,), (), split)

    def _first_line(self, key: Any) -> str | None:
        """First line of the text file beside an image, its caption; None without such a file."""
        try:
            name = self.texts.relative_to(self.data.root) / f"{key}.txt"
            path = path_below(self.data.root, str(name), follow_symlinks=self.data.follow_symlinks)
            with open_file(path) as file:
                return file.readline().decode("utf-8", "surrogateescape").strip()
        except (OSError, ValueError):
            return None
