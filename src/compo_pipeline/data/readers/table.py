"""A table of captions: CSV, TSV, JSON, JSON lines or parquet, with columns named by configuration.

One file may serve several splits: a column says which record is of which split, or images are
divided at random. A cell with several captions of an image becomes as many records. Where records
may lack captions, the table needs no column of them.
"""

from __future__ import annotations

import re
import shlex
import string
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import lru_cache
from itertools import chain, islice
from itertools import count as counting
from pathlib import Path
from typing import Any

from compo_pipeline.core.files import size_and_time
from compo_pipeline.core.records import Rejected
from compo_pipeline.core.tables import batches, parquet_file
from compo_pipeline.core.untrusted import holds_images, parse_json, read_json, shown
from compo_pipeline.data.readers.delimited import (
    UnreadableRecord,
    csv_rows,
    delimiter_of,
    log_once,
    open_text,
    without_halves,
)
from compo_pipeline.data.readers.record import (
    CAPTION_NAMES,
    ENDINGS,
    OTHER_SPLIT,
    RawCaption,
    SourceError,
    by_share,
    caption_records,
    captions_of,
    checked,
    named_split,
    rejected,
    split_files,
)
from compo_pipeline.data.settings import DataSettings

METADATA = "metadata"
"""Name of the hub's tables of a folder of images, whose paths start from the table's folder."""

_JSON = (".json", ".jsonl", ".ndjson")
SUFFIXES = (".csv", ".tsv", *_JSON, ".parquet")
"""Endings of the files that are tables."""
_BATCH = 4096
_SAMPLE = 100  # records that tell the columns
_SPLIT, _CAPTION = "split", "caption"
_DEFAULTS = ("image", _CAPTION)
_IMAGE_NAMES = (
    *("filepath", "path", "imagepath", "filename", "image", "imagename", "imagefile", "img"),
    *("file", "url", "imageurl"),
)
_FOLDER_NAMES = ("filepath", "folder", "directory")
_LISTS = ("images", "data", "annotations")  # of a JSON object with several lists
_IMAGE_NAME = re.compile(rf"\.(?:{'|'.join(each[1:] for each in ENDINGS)})\s*$", re.IGNORECASE)

_GUESSED = re.compile(r"[\w -]+")  # a column's name that patterns and --params take as it is


def caption_files(data: DataSettings, source: str) -> list[Path]:
    """Paths of the split's tables, sorted by name."""
    return split_files(data, source, *SUFFIXES)


def read(data: DataSettings, split: str, source: str) -> Iterator[RawCaption | Rejected]:
    """Yield a caption record per caption of the split's tables that belongs to the split."""
    numbers = counting()
    for path in caption_files(data, source):
        column = _split_column(data, source, path)
        found = _file_records(data, split, source, path, column, numbers)
        yield from found if column else by_share(data, split, source, found)


def _file_records(
    data: DataSettings,
    split: str,
    source: str,
    path: Path,
    column: str | None,
    numbers: Iterator[int],
) -> Iterator[RawCaption | Rejected]:
    """Yield the records of a table, or those of one split if it has a column of splits.

    Rows whose split is not among those of the table are rejected, in its first split.
    """
    parser, splits = _RowParser(data, path), data.sharing(source)
    for values in records(path, [*parser.columns, *([column] if column else [])]):
        number = next(numbers)
        if isinstance(values, UnreadableRecord):
            if not column or split == splits[0]:
                yield rejected(f"{split}-{number}", "", f"{path.name}: {values}")
            continue
        own = named_split(values.get(column), splits) if column else split
        if own not in splits and split == splits[0]:
            detail = f"{column} is {shown(values.get(column or ''))}, expected one of "
            detail += ", ".join(splits)
            for record in parser.records(values, split, number):
                if isinstance(record, RawCaption):
                    rule = {} if own is None else {"rule": OTHER_SPLIT}
                    record = rejected(record.sample_id, record.image, detail, **rule)
                yield record
        elif own == split:
            yield from parser.records(values, split, number)


def _split_column(data: DataSettings, source: str, path: Path) -> str | None:
    """Column of a table that says the split of a record, or None where there is none."""
    if data.columns.split is None and len(data.sharing(source)) > 1:
        return _SPLIT if own_spelling(_SPLIT, column_names(path)) else None
    return data.columns.split


class _RowParser:
    """Parses a table's row, by the configured columns, to caption records."""

    def __init__(self, data: DataSettings, path: Path) -> None:
        given = data.columns
        # A pattern of columns; one name alone is the simplest of them.
        image = given.image or "image"
        self.image = image if "{" in image else f"{{{image}}}"
        folder = Path(data.images)
        if not data.images and path.stem == METADATA:
            folder = path.parent.relative_to(data.root)
        self.folder = "" if folder == Path() else f"{folder.as_posix()}/"
        self.id, self.listed = given.id, bool(given.sentences)
        self.text = given.sentences or given.caption or _CAPTION
        self.optional = data.may_lack_captions
        named = [given.id, *columns_in_pattern(self.image), None if self.optional else self.text]
        self.needed = list(dict.fromkeys(filter(None, named)))
        written = self.optional and own_spelling(self.text, column_names(path)) is not None
        self.columns = list(dict.fromkeys([*self.needed, *([self.text] if written else [])]))

    def records(
        self, values: Mapping[str, Any], split: str, number: int
    ) -> Iterator[RawCaption | Rejected]:
        """Yield the caption records of a table's row, or its rejection with the reason."""
        given = values.get(self.id) if self.id else None
        sample_id = f"{split}-{number if given is None else given}"
        try:
            name = image_name(self.image, self.needed, values)
        except ValueError as error:
            yield rejected(sample_id, "", str(error))
            return
        image = name if name.startswith("/") else self.folder + name
        text, image_id = values.get(self.text), f"{split}-{image}"
        if self.optional and text in (None, []):
            yield checked(sample_id, image_id, image, ("",), (), split)
        elif not self.listed:
            yield from caption_records(sample_id, image_id, image, captions_of(text), split)
        elif own := _sentences(text):
            yield checked(sample_id, image_id, image, own, (), split)
        else:
            detail = f"{self.text} is {shown(text)}, expected a list of texts"
            yield rejected(sample_id, image, detail)


def records(path: Path, columns: list[str]) -> Iterator[Values]:
    """Yield the records of a table, as mappings with the wanted columns' names.

    The file may write these in another case.
    """
    there = column_names(path)
    own_names = {name: own_spelling(name, there) or name for name in columns}
    if there and (missing := [name for name in own_names.values() if name not in there]):
        raise missing_columns(path, missing, there)
    if repeated := [name for name in own_names.values() if there.count(name) > 1]:
        raise SourceError(f"{path} has the column {shown(repeated[0])} more than once; rename one")
    other = {name: own for name, own in own_names.items() if own != name}
    if other:
        named = ", ".join(f"{shown(own)} as {name}" for name, own in other.items())
        log_once(f"{path}: columns are read by another spelling: {named}")
    for values in _records(path, list(dict.fromkeys(own_names.values()))):
        if other and isinstance(values, Mapping):
            values = {**values, **{name: values.get(own) for name, own in other.items()}}
        yield values


def own_spelling(name: str, there: list[str]) -> str | None:
    """Column of a file that equals a name except for case and spaces, or None if not unique."""
    if name in there:
        return name
    alike = [each for each in there if each.strip().casefold() == name.strip().casefold()]
    return alike[0] if len(alike) == 1 else None


def column_names(path: Path) -> list[str]:
    """Names of a table's columns, by its header, schema or first records."""
    if path.suffix == ".parquet":
        with parquet_file(path, trusted=False) as file:
            return list(file.schema_arrow.names)
    if path.suffix in _JSON:
        return list(dict.fromkeys(chain.from_iterable(_sample(_records(path, [])))))
    header = next(csv_rows(path, delimiter_of(path)), [])
    return [] if isinstance(header, UnreadableRecord) else header


def _sample(rows: Iterable[Values]) -> list[Mapping[str, Any]]:
    """The first records of a table that can be read."""
    return [row for row in islice(rows, _SAMPLE) if isinstance(row, Mapping)]


def columns_in_pattern(pattern: str) -> list[str]:
    """Names of the columns that a pattern such as `{folder}/{name}.jpg` refers to."""
    return [name for _, name, _, _ in string.Formatter().parse(pattern) if name]


def image_name(pattern: str, needed: Iterable[str], values: Mapping[str, Any]) -> str:
    """Name of a row's image by the pattern of its columns.

    Raises:
        ValueError: the pattern does not fit, or the row has nothing in a column that is needed.
    """
    held = {name: values.get(name) for name in needed}
    if missing := [name for name, value in held.items() if value is None]:
        raise ValueError(f"nothing in {', '.join(missing)}; found {shown(held)}")
    try:
        return pattern.format_map(values)
    except (ValueError, TypeError, LookupError, AttributeError) as error:
        raise ValueError(
            f"data.columns.image '{pattern}' does not fit {shown(values)}: {error}"
        ) from error


def _sentences(value: Any) -> tuple[Any, ...]:
    """Sentences in a cell with a list, or with a list in JSON, empty for any other cell."""
    if isinstance(value, str):
        try:
            value = parse_json(value)
        except ValueError:
            return ()
    return tuple(value) if isinstance(value, list) else ()


Values = Mapping[str, Any] | UnreadableRecord


def _records(path: Path, columns: list[str]) -> Iterator[Values]:
    """Yield the records of a table; of Parquet, some columns, or all but images."""
    if path.suffix == ".parquet":
        yield from parquet_records(path, columns)
    elif path.suffix not in _JSON:
        yield from _csv_records(path)
    elif path.suffix == ".json" and (rows := parsed_json(path, size_and_time(path))) is not None:
        yield from (_object(values, f"entry {n}") for n, values in enumerate(rows, start=1))
    else:
        yield from _json_lines(path)


def _csv_records(path: Path) -> Iterator[Values]:
    """Yield the rows of a CSV or TSV file, as mappings by its header."""
    rows = csv_rows(path, delimiter_of(path))
    header = next(rows, [])
    if isinstance(header, UnreadableRecord):
        raise SourceError(f"{path}: the header cannot be read: {header}")
    for row in without_halves(rows, len(header)):
        if isinstance(row, UnreadableRecord):
            yield row
        elif len(row) != len(header):
            yield UnreadableRecord(f"{len(row)} fields, expected {len(header)}: {shown(row)}")
        else:
            yield dict(zip(header, row, strict=True))


def _json_lines(path: Path) -> Iterator[Values]:
    """Yield the objects of a JSON lines file."""
    with open_text(path) as file:
        for number, line in enumerate(file, start=1):
            try:
                if line.strip():
                    yield _object(parse_json(line), f"line {number}")
            except ValueError as error:
                yield UnreadableRecord(f"line {number}: {error}")


def _object(values: Any, place: str) -> Values:
    if isinstance(values, dict):
        return values
    return UnreadableRecord(f"{place}: {shown(values)}, expected an object")


@lru_cache(maxsize=1)
def parsed_json(path: Path, version: tuple[int, int]) -> list[Any] | None:
    """Records of a JSON file, or None for JSON lines under that name.

    The last file is kept, as each split reads it anew; `cache_clear` releases its memory.

    Raises:
        SourceError: it cannot be parsed, or holds no list of records.
    """
    try:
        content = read_json(path)
    except ValueError as error:
        if isinstance(next(_json_lines(path), None), Mapping):
            return None
        raise SourceError(f"{error}; fetch it again") from error
    rows = _rows_of(content)
    if rows is None:
        raise SourceError(
            f"{path} is no table: expected a list of objects, an object that holds one "
            f"({', '.join(_LISTS)}, or the names of splits), or captions by the name of the image"
        )
    return rows


def _rows_of(content: Any) -> list[Any] | None:
    """Records that a JSON value is or holds, or None if it holds none.

    COCO's lists `images` and `annotations` are joined: an image has the captions that name its id.
    Lists under the names of splits say the records' split.
    """
    if isinstance(content, list):
        return content
    if not isinstance(content, dict):
        return None
    lists = {name: each for name, each in content.items() if isinstance(each, list)}
    if {"images", "annotations"} <= lists.keys():
        return _joined(lists["images"], lists["annotations"])
    if lists and all(named_split(name, ()) for name in lists):
        parts = ((name, row) for name, rows in lists.items() for row in rows)
        return [{_SPLIT: name, **row} if isinstance(row, dict) else row for name, row in parts]
    if content and all(map(_IMAGE_NAME.search, content)):
        return [
            {"image": name, **(value if isinstance(value, dict) else {_CAPTION: value})}
            for name, value in content.items()
        ]
    named = (lists[name] for name in _LISTS if name in lists)
    return next(named, next(iter(lists.values())) if len(lists) == 1 else None)


def _joined(images: list[Any], annotations: list[Any]) -> list[Any]:
    """Entries of `images` with their captions.

    Annotations of no image are entries of their own.
    """
    captions: dict[str, list[Any]] = {}
    for entry in annotations:
        image = entry.get("image_id") if isinstance(entry, dict) else None
        captions.setdefault(str(image), []).append(captions_of([entry])[0])
    rows = [
        {**entry, _CAPTION: captions.pop(str(entry.get("id")), [])}
        if isinstance(entry, dict)
        else entry
        for entry in images
    ]
    return rows + [{_CAPTION: text} for texts in captions.values() for text in texts]


def parquet_records(path: Path, columns: list[str]) -> Iterator[Values]:
    """Yield the rows of a Parquet file, as mappings with the given columns, or all but images."""
    with parquet_file(path, trusted=False) as file:
        plain = [each.name for each in file.schema_arrow if not holds_images(each.type)]
        for batch in batches(file, _BATCH, columns or plain):
            try:
                yield from batch.to_pylist()
            except (ValueError, OverflowError):  # texts that are not UTF-8, times beyond Python's
                for row in range(len(batch)):
                    try:
                        (values,) = batch.slice(row, 1).to_pylist()
                    except (ValueError, OverflowError) as error:
                        values = UnreadableRecord(str(error))
                    yield values


def missing_columns(path: Path, missing: list[str], header: list[str]) -> SourceError:
    """The error to raise for a file that lacks configured columns, with the remedy."""
    there, names = shown(", ".join(header)), ", ".join(missing)
    problem = f"{path} has no column {names} (it has {there})"
    if any(_IMAGE_NAME.search(name) for name in header):
        others = iter(name for name in missing if name != "image")
        columns = ("image" if _IMAGE_NAME.search(cell) else next(others, "_") for cell in header)
        return SourceError(
            f"{problem}, and its first line is a record: put a line with the names of the columns "
            f"above it, such as {','.join(columns)}"
        )
    guesses = guessed_columns(path)
    named = ",".join(
        f"data.columns.{name}={next(iter(guesses[name]), f'<column of the {name}>')}"
        for name in _DEFAULTS
        if name in missing
    )
    example = f", such as by --params {shlex.quote(named)}" if named else ""
    none = " (where there are none, recaption.captioner writes them)"
    return SourceError(f"{problem}{none if _CAPTION in missing else ''}: set data.columns{example}")


def guessed_columns(path: Path) -> dict[str, list[str]]:
    """Columns that may hold a table's images and captions, the likeliest first.

    Those of images are found by their values, names of image files, else by their names; those of
    captions by their names, else by their values, texts of several words. Karpathy's file names
    without a folder are a pattern of two columns.
    """
    rows = _sample(_records(path, []))
    names = list(filter(_GUESSED.fullmatch, dict.fromkeys(chain.from_iterable(rows))))
    texts = {
        name: [text for row in rows for text in captions_of(row.get(name)) if text]
        for name in names
    }

    def mostly(name: str, fits: Callable[[str], Any]) -> bool:
        found = [isinstance(text, str) and bool(fits(text)) for text in texts[name]]
        return sum(found) * 2 > len(found)

    images = [name for name in names if mostly(name, _IMAGE_NAME.search)]
    files = [name for name in images if not mostly(name, lambda text: "://" in text)]
    images = _by_name(files, _IMAGE_NAMES, others=True) or _by_name(
        images or names, _IMAGE_NAMES, others=bool(images)
    )
    folders = _by_name([name for name in names if name not in images], _FOLDER_NAMES)
    if len(images) == 1 and folders and not mostly(images[0], lambda text: "/" in text):
        images = [f"{{{folders[0]}}}/{{{images[0]}}}"]
    left = [name for name in names if name not in images]
    written = [name for name in left if mostly(name, lambda text: len(text.split()) > 2)]
    return {"image": images, _CAPTION: _by_name(left, CAPTION_NAMES) or written}


def _by_name(names: Iterable[str], wanted: tuple[str, ...], others: bool = False) -> list[str]:
    """Columns in the order of the wanted names that they have, but for case, spaces and _."""
    place = {name: re.sub(r"[\W_]+", "", name.casefold()) for name in names}
    ranked = sorted(place, key=lambda name: (*wanted, place[name]).index(place[name]))
    return [name for name in ranked if others or place[name] in wanted]
