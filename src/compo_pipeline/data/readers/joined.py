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
from compo_pipeline.data.settings import DataSettings

_TEXT = ".txt"
_LEAST_MATCHED = 0.5  # of the images or the captions, of which there are fewer
_EXAMPLES = 3

log = logging.getLogger(__name__)


def key_of(record: Mapping[str, Any], column: str) -> str:
    """Value of a record's join column as text; empty if the record has no such value."""
    value = record.get(column)
    return "" if value is None else str(value).strip()


def _normalised(key: str) -> str:
    """A key in one form of its accents; macOS decomposes them in file names, which keys may be."""
    return unicodedata.normalize("NFC", key)


def caption_tables(data: DataSettings) -> list[Path]:
    """Paths of the tables of captions (`data.captions.file`); empty without that setting.

    Raises:
        SourceError: there is no such file, or it lacks a column.
    """
    given = data.captions
    if given.file is None:
        return []
    try:
        found = source_files(data, given.file)
        tables = {path: table.column_names(path) for path in found if path.suffix in table.SUFFIXES}
    except SourceError as error:
        raise SourceError(f"data.captions.file: {error}") from error
    if not found:
        raise SourceError(
            f"data.captions.file: no file below {data.root} matches '{given.file}'; expected the "
            "table of captions"
        )
    for path in found:
        if path.suffix == _TEXT:
            continue
        if path not in tables:
            expected = ", ".join((*table.SUFFIXES, _TEXT))
            raise SourceError(f"data.captions.file: {path} is no table; expected {expected}")
        for name in ("key", "caption"):
            column = getattr(given, name)
            if table.own_spelling(column, tables[path]) is None:
                raise SourceError(
                    f"data.captions.{name}: {path} has no column {column} (it has "
                    f"{shown(', '.join(tables[path]))})"
                )
    return found


def _table_records(path: Path, columns: list[str]) -> Iterator[table.Values]:
    """Yield the records of a table of captions; for a text file, its stem and first line."""
    if path.suffix != _TEXT:
        yield from table.records(path, columns)
        return
    key, caption = columns
    with open_file(path) as file:
        line = file.readline().decode("utf-8", "surrogateescape").strip()
    yield {key: path.stem, caption: line}


class CaptionJoin:
    """Joins the captions of a separate table (`data.captions`) to image records, by key."""

    def __init__(self, data: DataSettings) -> None:
        """Read the captions."""
        self._data = data
        self._captions: dict[str, str | None] = {}  # by key; None once an image has it
        self._without_image, self._without_caption = Counter[str](), Counter[str]()
        self._records = self._images = self._matched = 0
        self._examples: list[str] = []
        given, count = data.captions, self._without_image
        for path in caption_tables(data):
            for record in _table_records(path, [given.key, given.caption]):
                self._records += 1
                if not isinstance(record, Mapping) or text_problem(record.get(given.caption)):
                    count["unreadable"] += 1
                elif not (key := _normalised(key_of(record, given.key))) or text_problem(key):
                    count["empty_key"] += 1
                elif key in self._captions:
                    count["duplicate_key"] += 1
                else:
                    self._captions[key] = record[given.caption]

    def captioned(
        self, records: Iterable[RawCaption | Rejected]
    ) -> Iterator[RawCaption | Rejected]:
        """Yield the image records with their joined captions; reject images without a caption.

        Of several captions, or images, of a key the first is used.

        Raises:
            SourceError: less than half of the images, or of the captions where these are fewer,
                are matched.
        """
        for record in records:
            self._images += 1
            if isinstance(record, Rejected):
                self._without_caption["unreadable"] += 1
                yield record
                continue
            key = _normalised(record.key)
            if (text := self._captions.get(key)) is not None:
                self._captions[key] = None
                self._matched += 1
                yield replace(record, own=(text,))
                continue
            reason = "not_in_the_table" if key else "empty_key"
            if key in self._captions:
                reason = "duplicate_key"
            elif key and len(self._examples) < _EXAMPLES:
                self._examples.append(shown(record.key))
            self._without_caption[reason] += 1
            detail = f"{reason}: {shown(record.key)} in {self._data.captions.file}"
            yield rejected(record.sample_id, record.image, detail, NOT_CAPTIONED)
        self._require_matches()
        for what, reasons in self.report().items():
            if isinstance(reasons, Mapping) and reasons:
                text = ", ".join(f"{count} {reason}" for reason, count in reasons.items())
                log.warning("%s: %s: %s.", self._data.captions.file, what, text)

    def report(self) -> dict[str, Any]:
        """Numbers of images, captions and matches, and of the reasons for missing matches."""
        left = {"not_in_the_shards": len(self._captions) - self._matched}
        return {
            "images": self._images,
            "captions": self._records,
            "matched": self._matched,
            "captions_without_image": dict(sorted((self._without_image + Counter(left)).items())),
            "images_without_caption": dict(sorted(self._without_caption.items())),
        }

    def _require_matches(self) -> None:
        """Raise an error if too small a share of images and captions was matched.

        Raises:
            SourceError: too few; one line with the keys and examples.
        """
        given, readable = self._data.captions, self._images - self._without_caption["unreadable"]
        least = _LEAST_MATCHED * min(readable, len(self._captions))
        if self._matched and self._matched >= least:
            return
        unmatched = (shown(key) for key, text in self._captions.items() if text is not None)
        raise SourceError(
            f"data.captions.key: joined by '{given.key}' of {given.file} and "
            f"'{given.image_key or 'the key'}' of the images (data.captions.image_key), "
            f"{self._matched} of {readable} images have one of {self._records} captions, expected "
            f"{_LEAST_MATCHED:.0%} of the fewer at least; images without one: "
            f"{', '.join(self._examples) or 'none'}; captions without one: "
            f"{', '.join(islice(unmatched, _EXAMPLES)) or 'none'}"
        )
