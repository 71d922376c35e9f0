"""A table of captions: CSV, TSV, JSON lines or parquet, with columns named by configuration.

One file may serve several splits: a column says which record is of which split, or images are
divided at random. Where records may lack captions, the table needs no column of them, and a folder
without a table is read as images.
"""

from __future__ import annotations

import re
import shlex
import string
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from compo_pipeline.datasets.readers import folder
from compo_pipeline.datasets.readers.delimited import (
    UnreadableRecord,
    csv_rows,
    delimiter_of,
    log_once,
    open_text,
    without_halves,
)
from compo_pipeline.datasets.readers.record import (
    RawCaption,
    SourceError,
    checked,
    no_files,
    rejected,
    source_files,
    split_by_share,
)
from compo_pipeline.datasets.settings import DataSettings
from compo_pipeline.storage.records import Rejected
from compo_pipeline.storage.remote import open_file
from compo_pipeline.storage.untrusted import parse_json, shown

if TYPE_CHECKING:
    import pyarrow.parquet as pq

_BATCH = 4096
_SPLIT = "split"
_DEFAULTS = ("image", "caption")
_IMAGE_NAME = re.compile(r"\.(?:jpe?g|png|webp|gif|bmp|ppm|npy)\s*$", re.IGNORECASE)


def caption_files(data: DataSettings, source: str) -> list[Path]:
    """Paths of the split's tables, sorted by name; empty for a folder of images alone."""
    found = source_files(data, source)
    if not found:
        if data.may_lack_captions:
            return _require_image_folder(data, source)
        problem = no_files(data, source).message
        raise SourceError(
            f"{problem}; where there are no captions, recaption.captioner writes them"
        )
    for path in found:
        if path.suffix not in _RECORDS:
            raise SourceError(
                f"{path} is no table: expected one of {', '.join(_RECORDS)}; set data.splits"
            )
    return found


def _require_image_folder(data: DataSettings, source: str) -> list[Path]:
    """Check that the folder has images and no table; returns an empty list, as there are no tables.

    Raises:
        SourceError: there is a table, which the settings do not name; or there is no image.
    """
    tables = sorted(path for path in data.root.iterdir() if path.suffix in _RECORDS)
    if tables:
        raise SourceError(
            f"no file below {data.root} matches '{source}', and there is {tables[0].name}: name it "
            "in data.splits, or move it away to have all images of the folder read"
        )
    folder.require_images(data, data.images)
    log_once(f"{data.root} has no table '{source}': all images below it are read.")
    return []


def image_folder(data: DataSettings, source: str) -> Path:
    """Folder from which the table's image paths start, the same for every split."""
    return data.root / data.images


def count(data: DataSettings, source: str) -> int:
    """Number of records of a split, or of its images if there is no table."""
    found, total = caption_files(data, source), 0
    if not found:
        return folder.count_images(data, data.images)
    for path in found:
        if path.suffix == ".parquet":
            total += parquet_count(path)
        else:
            total += sum(1 for _ in _RECORDS[path.suffix](path, []))
    return total


def read(data: DataSettings, split: str, source: str) -> Iterator[RawCaption | Rejected]:
    """Yield a caption record per row of the split's tables that belongs to the split."""
    meaning = _RowParser(data)
    number, found = 0, caption_files(data, source)
    if not found:
        yield from folder.records(data, split, source, data.images)
    for path in found:
        division = _SplitAssigner(data, source, path)
        for values in records(path, [*meaning.columns_in(path), *division.columns]):
            record: RawCaption | Rejected
            if isinstance(values, UnreadableRecord):
                record = rejected(f"{split}-{number}", "", f"{path.name}: {values}")
            else:
                record = division.checked(meaning.record(values, split, number), values)
            number += 1
            if division.split(record, values) == split:
                yield record


class _RowParser:
    """Parses a table's row, by the configured columns, to a caption record."""

    def __init__(self, data: DataSettings) -> None:
        given = data.columns
        # A pattern of columns; one name alone is the simplest of them.
        image = given.image or "image"
        self.image = image if "{" in image else f"{{{image}}}"
        self.folder = f"{data.images.rstrip('/')}/" if data.images else ""
        self.id, self.listed = given.id, bool(given.sentences)
        self.text = given.sentences or given.caption or "caption"
        named = filter(None, [given.id, *columns_in_pattern(self.image)])
        self.needed = list(dict.fromkeys(named))
        self.optional = data.may_lack_captions
        if not self.optional:
            self.needed = list(dict.fromkeys([*self.needed, self.text]))

    def columns_in(self, path: Path) -> list[str]:
        """Names of the columns to read from a table."""
        written = self.optional and own_spelling(self.text, column_names(path)) is not None
        return list(dict.fromkeys([*self.needed, *([self.text] if written else [])]))

    def record(self, values: Mapping[str, Any], split: str, number: int) -> RawCaption | Rejected:
        """Caption record of a table's row, or its rejection with the reason."""
        given = values.get(self.id) if self.id else number
        sample_id = f"{split}-{given}"
        missing = [name for name in self.needed if values.get(name) is None]
        if missing:
            held = shown({name: values.get(name) for name in self.needed})
            detail = f"nothing in {', '.join(missing)}; found {held}"
            return rejected(f"{split}-{number}" if given is None else sample_id, "", detail)
        try:
            name = self.image.format_map(values)
        except (ValueError, TypeError, LookupError, AttributeError) as error:
            detail = f"data.columns.image '{self.image}' does not fit {shown(values)}: {error}"
            return rejected(sample_id, "", detail)
        image = name if name.startswith("/") else self.folder + name
        text = values.get(self.text)
        own = _sentences(text) if self.listed else (text,)
        if self.optional and text is None:
            own = ("",)
        if not own:
            detail = f"{self.text} is {shown(text)}, expected a list of texts"
            return rejected(sample_id, image, detail)
        return checked(sample_id, f"{split}-{image}", image, own, (), split)


class _SplitAssigner:
    """Assigns each record of a shared file to a split, by a split column or by shares."""

    def __init__(self, data: DataSettings, source: str, path: Path) -> None:
        """The division of one of a source's files.

        Raises:
            SourceError: neither a column nor shares say how the file is divided.
        """
        self.splits, self.column = data.sharing(source), data.columns.split
        self.data = data
        if (
            self.column is None
            and len(self.splits) > 1
            and own_spelling(_SPLIT, column_names(path))
        ):
            self.column = _SPLIT
        missing = [split for split in self.splits if split not in data.shares]
        if self.column is None and len(self.splits) > 1 and missing:
            raise SourceError(
                f"{path} serves the splits {', '.join(self.splits)}, and data.shares has none of "
                f"{', '.join(missing)}: set it, or data.columns.split to the column that says "
                "which record is of which split"
            )

    @property
    def columns(self) -> list[str]:
        """List with the name of the split column to read; empty if there is no split column."""
        return [self.column] if self.column else []

    def checked(
        self, record: RawCaption | Rejected, values: Mapping[str, Any]
    ) -> RawCaption | Rejected:
        """The record, or its rejection if its split column holds an unknown split."""
        if self.column and isinstance(record, RawCaption):
            named = _strip_text(values.get(self.column))
            if named not in self.splits:
                splits = ", ".join(self.splits)
                detail = f"{self.column} is {shown(named)}, expected one of {splits}"
                return rejected(record.sample_id, record.image, detail)
        return record

    def split(self, record: RawCaption | Rejected, values: Values) -> str:
        """Name of the split to which a record is assigned."""
        if len(self.splits) == 1 or isinstance(record, Rejected):
            return self.splits[0]
        if self.column and isinstance(values, Mapping):
            return str(_strip_text(values[self.column]))
        return split_by_share(self.data, self.splits, record.image)


def _strip_text(value: Any) -> Any:
    """Strip whitespace from a text; return any other value unchanged."""
    return value.strip() if isinstance(value, str) else value


def records(path: Path, columns: list[str]) -> Iterator[Values]:
    """Yield the records of a table, as mappings with the wanted columns' names.

    The file may write these in another case.
    """
    there = column_names(path)
    own_names = {name: own_spelling(name, there) or name for name in columns}
    other = {name: own for name, own in own_names.items() if own != name}
    if other:
        named = ", ".join(f"{shown(own)} as {name}" for name, own in other.items())
        log_once(f"{path}: columns are read by another spelling: {named}")
    for values in _RECORDS[path.suffix](path, list(dict.fromkeys(own_names.values()))):
        if other and isinstance(values, Mapping):
            values = {**values, **{name: values.get(own) for name, own in other.items()}}
        yield values


def own_spelling(name: str, there: list[str]) -> str | None:
    """Column of a file that equals a name but for case and spaces; None unless exactly one does."""
    if name in there:
        return name
    alike = [each for each in there if each.strip().casefold() == name.strip().casefold()]
    return alike[0] if len(alike) == 1 else None


def column_names(path: Path) -> list[str]:
    """Names of a table's columns, by its header, schema or first record."""
    if path.suffix == ".parquet":
        with parquet_file(path) as file:
            return list(file.schema_arrow.names)
    if path.suffix == ".jsonl":
        first = next(_json_records(path, []), None)
        return list(first) if isinstance(first, Mapping) else []
    header = next(csv_rows(path, delimiter_of(path)), [])
    return [] if isinstance(header, UnreadableRecord) else header


def columns_in_pattern(pattern: str) -> list[str]:
    """Names of the columns that a pattern such as `{folder}/{name}.jpg` refers to."""
    return [name for _, name, _, _ in string.Formatter().parse(pattern) if name]


def _sentences(value: Any) -> tuple[Any, ...]:
    """Sentences in a cell with a list, or with a list in JSON; empty for any other cell."""
    if isinstance(value, str):
        try:
            value = parse_json(value)
        except ValueError:
            return ()
    return tuple(value) if isinstance(value, list) else ()


Values = Mapping[str, Any] | UnreadableRecord


def _csv_records(path: Path, columns: list[str]) -> Iterator[Values]:
    """Yield the rows of a CSV or TSV file, as mappings by its header."""
    rows = csv_rows(path, delimiter_of(path))
    header = next(rows, [])
    if isinstance(header, UnreadableRecord):
        raise SourceError(f"{path}: the header cannot be read: {header}")
    _require_columns(path, columns, header)
    for row in without_halves(rows, len(header)):
        if isinstance(row, UnreadableRecord):
            yield row
        elif len(row) != len(header):
            yield UnreadableRecord(f"{len(row)} fields, expected {len(header)}: {shown(row)}")
        else:
            yield dict(zip(header, row, strict=True))


def _json_records(path: Path, columns: list[str]) -> Iterator[Values]:
    """Yield the objects of a JSON lines file."""
    with open_text(path) as file:
        for number, line in enumerate(file, start=1):
            if not line.strip():
                continue
            try:
                values = parse_json(line)
            except ValueError as error:
                yield UnreadableRecord(f"line {number}: {error}")
                continue
            if isinstance(values, dict):
                yield values
            else:
                yield UnreadableRecord(f"line {number}: {shown(values)}, expected an object")


def _parquet_records(path: Path, columns: list[str]) -> Iterator[Values]:
    """Yield the rows of a Parquet file, as mappings with the given columns."""
    with parquet_file(path) as file:
        _require_columns(path, columns, file.schema_arrow.names)
        yield from parquet_rows(file, columns)


@contextmanager
def parquet_file(path: Path) -> Iterator[pq.ParquetFile]:
    """Context manager: open a Parquet file; read errors name the file.

    Raises:
        SourceError: it cannot be read, now or later.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with open_file(path) as opened, pq.ParquetFile(opened) as file:
            _refuse_repeated_columns(path, file.schema_arrow.names)
            yield file
    except (OSError, pa.ArrowException) as error:
        problem = " ".join(str(error).split())
        raise SourceError(f"{path} cannot be read as parquet: {problem}; fetch it again") from error


def parquet_count(path: Path) -> int:
    """Number of rows of a Parquet file."""
    with parquet_file(path) as file:
        count: int = file.metadata.num_rows
        return count


def parquet_rows(
    file: pq.ParquetFile, columns: list[str], groups: list[int] | None = None
) -> Iterator[Values]:
    """Yield the rows of an open Parquet file, or of some of its row groups, read in batches."""
    for batch in file.iter_batches(batch_size=_BATCH, row_groups=groups, columns=columns):
        try:
            yield from batch.to_pylist()
        except (ValueError, OverflowError):  # texts that are not UTF-8, times beyond Python's
            for row in range(len(batch)):
                try:
                    (values,) = batch.slice(row, 1).to_pylist()
                except (ValueError, OverflowError) as error:
                    values = UnreadableRecord(str(error))
                yield values


def _require_columns(path: Path, columns: list[str], header: list[str]) -> None:
    """Raise an error for a table that lacks one of the columns, or has one of them twice."""
    missing = [name for name in columns if name not in header]
    if missing:
        raise missing_columns(path, missing, header)
    _refuse_repeated_columns(path, [name for name in header if name in columns])


def missing_columns(path: Path, missing: list[str], header: list[str]) -> SourceError:
    """The error to raise for a file that lacks configured columns, with the remedy."""
    there, names = shown(", ".join(header)), ", ".join(missing)
    problem = f"{path} has no column {names} (it has {there})"
    if any(_IMAGE_NAME.search(name) for name in header):
        return SourceError(
            f"{problem}, and its first line is a record: put a line with the names of the columns "
            f"above it, such as {_example_header(missing, header)}"
        )
    others = [name for name in header if name not in _DEFAULTS and "," not in name]
    wanted = [name for name in missing if name in _DEFAULTS]
    named = ",".join(
        f"data.columns.{key}={name}" for key, name in zip(wanted, others, strict=False)
    )
    example = f", such as by --params {shlex.quote(named)}" if named else ""
    none = " (where there are none, recaption.captioner writes them)"
    return SourceError(
        f"{problem}{none if 'caption' in missing else ''}: set data.columns{example}"
    )


def _example_header(missing: list[str], record: list[str]) -> str:
    """Example header for a table that lacks a header; `image` marks the column with image names."""
    place = next(n for n, value in enumerate(record) if _IMAGE_NAME.search(value))
    others = iter([name for name in missing if name != "image"])
    return ",".join(
        "image" if number == place else next(others, f"column{number + 1}")
        for number in range(len(record))
    )


def _refuse_repeated_columns(path: Path, names: list[str]) -> None:
    """Raise an error for a table with a repeated column name."""
    repeated = next((name for name in names if names.count(name) > 1), None)
    if repeated is not None:
        raise SourceError(f"{path} has the column {shown(repeated)} more than once; rename one")


_RECORDS = {
    ".csv": _csv_records,
    ".tsv": _csv_records,
    ".jsonl": _json_records,
    ".parquet": _parquet_records,
}
SUFFIXES = tuple(_RECORDS)
"""Endings of the files that are tables."""
