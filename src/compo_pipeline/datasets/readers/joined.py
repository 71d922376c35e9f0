"""Captions of a table of their own, joined to the images of shards by key or address.

The table is read once into a file without a name; in memory are the hashes of its keys.
"""

from __future__ import annotations

import logging
import unicodedata
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from compo_pipeline.datasets.readers import table
from compo_pipeline.datasets.readers.cc3m_coca import strip_coca_tokens
from compo_pipeline.datasets.readers.record import (
    NOT_CAPTIONED,
    RawCaption,
    SourceError,
    rejected,
    source_files,
)
from compo_pipeline.datasets.settings import DataSettings
from compo_pipeline.run.seeding import digest
from compo_pipeline.storage.records import Rejected
from compo_pipeline.storage.remote import open_file
from compo_pipeline.storage.tables import Table, grouped
from compo_pipeline.storage.untrusted import shown, text_problem

_TEXT = ".txt"
_LEAST_MATCHED = 0.5  # of the images or the captions, of which there are fewer
_EXAMPLES = 3
_WITHOUT_IMAGE, _WITHOUT_CAPTION = "captions_without_image", "images_without_caption"

log = logging.getLogger(__name__)


class HashIndex:
    """Sorted index of key hashes, with the position of each key; twelve bytes per key."""

    def __init__(self, hashes: array[int]) -> None:
        given = np.frombuffer(hashes, np.uint64)
        self.order = np.argsort(given, kind="stable").astype(np.int32)
        """The place of each among those given; of equal ones the first place comes first."""
        self._hashes = given[self.order]

    def ranges(self, wanted: NDArray[np.uint64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Start and end of each wanted hash in the sorted index; both are equal if it is absent."""
        left, right = (self._hashes.searchsorted(wanted, side) for side in ("left", "right"))
        return left, right

    def first_places(self) -> NDArray[np.int32]:
        """Position of the first key with each distinct hash."""
        starts = np.diff(self._hashes, prepend=self._hashes[:1] + 1) != 0
        first: NDArray[np.int32] = self.order[starts]
        return first


def key_of(record: Mapping[str, Any], column: str) -> str:
    """Value of a record's join column as text; empty if the record has no such value."""
    value = record.get(column)
    return "" if value is None else str(value).strip()


def _key_hash(key: str) -> int:
    """Hash of a key; macOS decomposes accents in file names, which keys may be."""
    return digest(unicodedata.normalize("NFC", key))


@dataclass(frozen=True, slots=True)
class _KeyedCaption:
    """Row of the table of captions: the image's key, and the caption."""

    key: str
    caption: str


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
        self._counts: dict[str, Counter[str]] = {
            _WITHOUT_IMAGE: Counter(),
            _WITHOUT_CAPTION: Counter(),
        }
        self._records = 0
        hashes = array("Q")
        self._rows = Table.spilled(self._read_captions(hashes), _KeyedCaption, None)
        self._index = HashIndex(hashes)
        self._places = self._index.first_places()
        self._counts[_WITHOUT_IMAGE]["duplicate_key"] = len(hashes) - len(self._places)
        self._used = np.zeros(len(hashes), bool)
        self._images = 0
        self._examples: list[str] = []

    def _read_captions(self, hashes: array[int]) -> Iterator[_KeyedCaption]:
        """Yield the table's captions that have a key, and count the unusable ones."""
        given, count = self._data.captions, self._counts[_WITHOUT_IMAGE]
        for path in caption_tables(self._data):
            for record in _table_records(path, [given.key, given.caption]):
                self._records += 1
                if not isinstance(record, Mapping) or text_problem(record.get(given.caption)):
                    count["unreadable"] += 1
                    continue
                key = key_of(record, given.key)
                if not key or text_problem(key):
                    count["empty_key"] += 1
                    continue
                hashes.append(_key_hash(key))
                yield _KeyedCaption(key, strip_coca_tokens(record[given.caption]))

    def captioned(
        self, records: Iterable[RawCaption | Rejected]
    ) -> Iterator[RawCaption | Rejected]:
        """Yield the image records with their joined captions; reject images without a caption.

        Of several captions, or images, of a key the first is used.

        Raises:
            SourceError: less than half of the images, or of the captions where these are fewer,
                are matched.
        """
        for group in grouped(records):
            yield from self._join_group(group)
        self._require_matches()
        for what, reasons in self.report().items():
            if isinstance(reasons, Mapping) and reasons:
                text = ", ".join(f"{count} {reason}" for reason, count in reasons.items())
                log.warning("%s: %s: %s.", self._data.captions.file, what, text)

    def _join_group(self, group: list[RawCaption | Rejected]) -> Iterator[RawCaption | Rejected]:
        """Yield a batch of image records with their joined captions, or their rejections."""
        wanted = [_key_hash(each.key) if isinstance(each, RawCaption) else 0 for each in group]
        first, end = self._index.ranges(np.array(wanted, np.uint64))
        there = first < end
        places = np.full(len(group), -1)
        places[there] = self._index.order[first[there]]
        texts = iter(self._rows.column("caption").take(places[there]).to_pylist())
        for record, place in zip(group, places.tolist(), strict=True):
            text = next(texts) if place >= 0 else ""
            if isinstance(record, Rejected):
                self._counts[_WITHOUT_CAPTION]["unreadable"] += 1
                yield record
                continue
            self._images += 1
            if place >= 0 and not self._used[place]:
                self._used[place] = True
                yield replace(record, own=(text,))
                continue
            reason = "not_in_the_table" if record.key else "empty_key"
            reason = "duplicate_key" if place >= 0 else reason
            self._counts[_WITHOUT_CAPTION][reason] += 1
            if reason == "not_in_the_table" and len(self._examples) < _EXAMPLES:
                self._examples.append(shown(record.key))
            detail = f"{reason}: {shown(record.key)} in {self._data.captions.file}"
            yield rejected(record.sample_id, record.image, detail, NOT_CAPTIONED)

    def _unmatched(self) -> NDArray[np.int32]:
        """Positions of captions whose key no image has; only the first one of a repeated key."""
        return np.sort(self._places[~self._used[self._places]])

    def report(self) -> dict[str, Any]:
        """Numbers of images, captions and matches, and of the reasons for missing matches."""
        counts = self._counts
        counts[_WITHOUT_IMAGE]["not_in_the_shards"] = len(self._unmatched())
        return {
            "images": self._images + counts[_WITHOUT_CAPTION]["unreadable"],
            "captions": self._records,
            "matched": int(self._used.sum()),
            **{
                what: {name: n for name, n in sorted(own.items()) if n}
                for what, own in counts.items()
            },
        }

    def _require_matches(self) -> None:
        """Raise an error if too small a share of images and captions was matched.

        Raises:
            SourceError: too few; one line with the keys and examples.
        """
        given, matched = self._data.captions, int(self._used.sum())
        unmatched = self._unmatched()
        fewer = min(self._images, len(self._places))
        if matched and matched >= _LEAST_MATCHED * fewer:
            return
        captions = [shown(self._rows[int(place)].key) for place in unmatched[:_EXAMPLES]]
        raise SourceError(
            f"data.captions.key: joined by '{given.key}' of {given.file} and "
            f"'{given.image_key or 'the key'}' of the images (data.captions.image_key), {matched} "
            f"of {self._images} images have one of {self._records} captions, expected "
            f"{_LEAST_MATCHED:.0%} of the fewer at least; images without one: "
            f"{', '.join(self._examples) or 'none'}; captions without one: "
            f"{', '.join(captions) or 'none'}"
        )
