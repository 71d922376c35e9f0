"""Captions of a table of their own, joined to the images of shards by key or address."""

from __future__ import annotations

import logging
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

from compo_pipeline.core.records import Rejected
from compo_pipeline.core.remote import open_file
from compo_pipeline.core.untrusted import shown, text_problem
from compo_pipeline.data.readers import table
from compo_pipeline.data.readers.record import (
    NOT_CAPTIONED,
    RawCaption,
    SourceError,
    rejected,
    source_files,
)
from compo_pipeline.data.settings import CaptionTable, DataSettings

_TEXT = ".txt"
_LEAST_MATCHED = 0.5  # of the images or the captions, of which there are fewer
_EXAMPLES = 3

log = logging.getLogger(__name__)


def key_of(record: Mapping[str, Any], column: str) -> str:
    """Value of a record's join column as text, empty if the record has no such value."""
    value = record.get(column)
    return "" if value is None else str(value).strip()


def _normalised(key: str) -> str:
    """A key in one form of its accents, because macOS decomposes them in file names."""
    return unicodedata.normalize("NFC", key)


def caption_tables(data: DataSettings) -> list[Path]:
    """Paths of the tables of captions (`data.captions.file`), empty without that setting.

    Raises:
        SourceError: there is no such file, or it lacks a column.
    """
    given = data.captions
    if given.file is None:
        return []
    try:
        found = source_files(data, given.file)
        if not found:
            raise SourceError(f"no file below {data.root} matches '{given.file}'")
        for path in found:
            _require_columns(path, given)
    except ValueError as error:
        raise SourceError(f"data.captions.file: {error}") from error
    return found


def _require_columns(path: Path, given: CaptionTable) -> None:
    """Raise an error for a file that is not a table or lacks the columns of key and caption."""
    if path.suffix == _TEXT:
        return
    if path.suffix not in table.SUFFIXES:
        raise SourceError(f"{path} is no table; expected {', '.join((*table.SUFFIXES, _TEXT))}")
    there = table.column_names(path)
    for name, column in (("key", given.key), ("caption", given.caption)):
        if table.own_spelling(column, there) is None:
            raise SourceError(
                f"{path} has no column {column} (it has {shown(', '.join(there))}): set "
                f"data.captions.{name}"
            )


def _table_records(path: Path, columns: list[str]) -> Iterator[table.Values]:
    """Yield the records of a table of captions, or the stem and first line of a text file."""
    if path.suffix != _TEXT:
        yield from table.records(path, columns)
        return
    key, caption = columns
    with open_file(path) as file:
        line = file.readline().decode("utf-8", "surrogateescape").strip()
    yield {key: path.stem, caption: line}


def joined(
    records: Iterable[RawCaption | Rejected], data: DataSettings, report: dict[str, Any]
) -> Iterator[RawCaption | Rejected]:
    """Yield the image records with the captions of `data.captions`.

    Images without one are rejected.

    Of several captions, or images, of a key the first is used.

    Args:
        records: records of the images.
        data: data of the source.
        report: receives, once all are read, the numbers of images, captions and matches, and of the
            reasons for missing matches.

    Raises:
        SourceError: less than half of the images, or of the captions where these are fewer, are
            matched.
    """
    given = data.captions
    captions: dict[str, str | None] = {}  # by key; None once an image has it
    without_image, without_caption = Counter[str](), Counter[str]()
    for path in caption_tables(data):
        for row in _table_records(path, [given.key, given.caption]):
            if not isinstance(row, Mapping) or text_problem(row.get(given.caption)):
                without_image["unreadable"] += 1
            elif not (key := _normalised(key_of(row, given.key))) or text_problem(key):
                without_image["empty_key"] += 1
            elif key in captions:
                without_image["duplicate_key"] += 1
            else:
                captions[key] = row[given.caption]
    count = len(captions) + without_image.total()
    matched, examples = 0, list[str]()
    for record in records:
        if isinstance(record, Rejected):
            without_caption["unreadable"] += 1
            yield record
            continue
        key = _normalised(record.key)
        if (text := captions.get(key)) is not None:
            captions[key] = None
            matched += 1
            yield replace(record, own=(text,))
            continue
        reason = "duplicate_key" if key in captions else "not_in_the_table" if key else "empty_key"
        if reason == "not_in_the_table" and len(examples) < _EXAMPLES:
            examples.append(shown(record.key))
        without_caption[reason] += 1
        detail = f"{reason}: {shown(record.key)} in {given.file}"
        yield rejected(record.sample_id, record.image, detail, NOT_CAPTIONED)
    images = matched + without_caption.total()
    readable = images - without_caption["unreadable"]
    if not matched or matched < _LEAST_MATCHED * min(readable, len(captions)):
        unmatched = (shown(key) for key, text in captions.items() if text is not None)
        raise SourceError(
            f"data.captions.key: joined by '{given.key}' of {given.file} and "
            f"'{given.image_key or 'the key'}' of the images (data.captions.image_key), "
            f"{matched} of {readable} images have one of {count} captions, expected "
            f"{_LEAST_MATCHED:.0%} of the fewer at least; images without one: "
            f"{', '.join(examples) or 'none'}; captions without one: "
            f"{', '.join(islice(unmatched, _EXAMPLES)) or 'none'}"
        )
    without_image["not_in_the_shards"] = len(captions) - matched
    report |= {"images": images, "captions": count, "matched": matched}
    report["captions_without_image"] = dict(sorted((+without_image).items()))
    report["images_without_caption"] = dict(sorted(without_caption.items()))
    level = logging.WARNING if without_caption.total() + without_image.total() else logging.INFO
    log.log(level, "%s: %s", given.file, report)
