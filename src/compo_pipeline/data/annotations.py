"""Published hard negatives, positives and images: read from a table and joined to captions.

The layouts are those of public loaders: NegCLIP's `CsvDataset` (src/training/data.py of
vinid/neg_clip, a copy is in xiaoxing2001/DeGLA) and SPARCL's `COCO_neg_pos`
(finetuning/src/datasets/COCO_neg_pos.py of lihaoxin05/SPARCL).
"""

from __future__ import annotations

import logging
import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice, product
from pathlib import Path
from typing import Any

import numpy as np

from compo_pipeline.core.annotations import AnnotationSettings
from compo_pipeline.core.records import Annotation, Caption
from compo_pipeline.core.seeding import digest
from compo_pipeline.core.sentences import bare, clean
from compo_pipeline.core.settings import SettingsError
from compo_pipeline.core.tables import Table
from compo_pipeline.core.untrusted import parse_list, shown, text_problem
from compo_pipeline.data.readers.delimited import UnreadableRecord, csv_rows, delimiter_of
from compo_pipeline.data.readers.joined import key_of
from compo_pipeline.data.readers.record import SourceError
from compo_pipeline.data.readers.table import SUFFIXES, column_names, records

_EXAMPLES = 3
_DIGITS = 18  # of an image's number
_UNREADABLE = "records that cannot be read or have no key"
_LAST_NUMBER = re.compile(r"(\d+)(?:\.\w+)?$", re.ASCII)
_SPARCL_FOLDERS = {"negative": "synthetic_negative", "positive": "synthetic_positive"}

Record = Mapping[str, Any] | UnreadableRecord

log = logging.getLogger(__name__)


def read(
    settings: AnnotationSettings,
    contents: frozenset[str],
    captions: Sequence[Caption],
    key: str,
    sentences: int | None = 1,
) -> Table[Annotation]:
    """Read the annotations of caption rows from an external table, in the order of the table.

    Args:
        settings: the table, with a file.
        contents: fields to read, as `AnnotationSettings.usable` returns them.
        captions: the rows.
        key: YAML key of the settings, for errors.
        sentences: number of sentences of each row to look for. None looks for all.

    Raises:
        SettingsError: the file cannot be read, lacks a column, or has records of too few rows.
    """
    check(settings, contents, key)
    rows = Table.of(captions, Caption)
    try:
        reader = _Reader(settings, contents, rows, sentences)
        reader.require_matches(key)
        table = Table.spilled(reader.annotations(), Annotation, None)
    except SourceError as error:
        raise SettingsError(f"{key}.file: {error}") from error
    of_no_row = sum(not each for each in reader.places) - reader.problems[_UNREADABLE]
    text = "%s: %d of %d rows have a record; of %d records %d are of no row."
    matched = int(reader.have.sum())
    log.info(text, settings.file, matched, len(rows), len(reader.places), of_no_row)
    for what, count in reader.problems.items():
        log.warning("%s: %d %s.", settings.file, count, what)
    return table


def check(settings: AnnotationSettings, contents: frozenset[str], key: str) -> None:
    """Check that an external table of annotations can be opened and has the configured columns.

    Raises:
        SettingsError: it cannot, or has not; names the columns that are there.
    """
    path = Path(str(settings.file))
    if path.suffix not in SUFFIXES:
        raise SettingsError(f"{key}.file: {path} is no table; expected {', '.join(SUFFIXES)}")
    if not path.is_file():
        raise SettingsError(f"{key}.file: there is no file {path} (seen from {Path.cwd()})")
    try:
        there = _sparcl_header(path) if settings.layout == "sparcl" else column_names(path)
    except SourceError as error:
        raise SettingsError(f"{key}.file: {error}") from error
    spelt = {name.strip().casefold() for name in there}
    for field, names in _columns(settings, contents).items():
        missing = [name for name in names if name.strip().casefold() not in spelt]
        if missing:
            place = f"columns.{field}" if settings.layout == "columns" else "layout"
            raise SettingsError(
                f"{key}.{place}: {path} has no column {', '.join(missing)} (it has "
                f"{shown(', '.join(there))})"
            )


def _columns(settings: AnnotationSettings, contents: Iterable[str]) -> dict[str, tuple[str, ...]]:
    """Names of the table's columns to read, by field of `AnnotationColumns`."""
    if settings.layout == "sparcl":
        return {}
    there = settings.read
    named = {field: getattr(there, field) for field in (*there.keys, *sorted(contents))}
    return {field: (own,) if isinstance(own, str) else own for field, own in named.items()}


def _records(settings: AnnotationSettings, contents: Iterable[str]) -> Iterator[Record]:
    """Yield the records of the external table, as mappings from column name to value."""
    path = Path(str(settings.file))
    if settings.layout == "sparcl":
        return _sparcl_records(path)
    columns = [name for names in _columns(settings, contents).values() for name in names]
    return records(path, list(dict.fromkeys(columns)))


def _sparcl_header(path: Path) -> list[str]:
    """Header of a file in SPARCL's layout.

    Raises an error for another layout.

    Raises:
        SourceError: its columns are not those of an image and its captions.
    """
    header = next(csv_rows(path, delimiter_of(path)), [])
    if isinstance(header, UnreadableRecord) or len(header) < 5 or len(header) % 4 != 1:
        raise SourceError(
            f"{path} is not laid out as SPARCL's: expected a column with the image's number, then "
            "four a caption with its number, itself, a negative and a positive, got "
            f"{shown(header)}"
        )
    return header


def _sparcl_records(path: Path) -> Iterator[Record]:
    """Yield a record for each caption of a file in SPARCL's layout.

    Its columns have their meaning by their place: the image, and for each caption its number,
    itself, a negative and a positive. The images of these are named by both numbers.
    """
    width = len(_sparcl_header(path))
    for row in islice(csv_rows(path, delimiter_of(path)), 1, None):
        if isinstance(row, UnreadableRecord):
            yield row
            continue
        if len(row) != width:
            yield UnreadableRecord(f"{len(row)} fields, expected {width}: {shown(row)}")
            continue
        image, *others = row
        for start in range(0, len(others), 4):
            number, caption, *texts = others[start : start + 4]
            if not all(each.isdecimal() and len(each) <= _DIGITS for each in (image, number)):
                yield UnreadableRecord(f"{shown(image)} and {shown(number)}, expected numbers")
                continue
            name, record = f"{int(image):012d}_{int(number):06d}.jpg", dict[str, str]()
            for (role, folder), text in zip(_SPARCL_FOLDERS.items(), texts, strict=True):
                record |= {role: text, f"{role}_image": f"{folder}/{name}"}
            yield {"image": image, "caption": caption, **record}


def _normalised_caption(text: str) -> str:
    """Caption in the normalised form by which captions are compared."""
    return bare(clean(text)[0])


def _image_normaliser(
    settings: AnnotationSettings, contents: Iterable[str], rows: Table[Caption]
) -> Callable[[str], str]:
    """Function that normalises image paths for the comparison of rows and records.

    It keeps the number at the end of their names where the table has nothing but numbers, else as
    many parts of their paths, from the last one on, as all have.
    """
    column = settings.read.image
    if column is None:
        return str
    every = _records(settings, contents)
    given = (key_of(record, column) for record in every if isinstance(record, Mapping))
    images: list[str] = rows.column("image").unique().to_pylist()
    numbers, least = True, min((path.count("/") for path in images), default=0) + 1
    for value in filter(None, given):
        numbers = numbers and value.isdecimal()
        least = min(least, value.count("/") + 1)
    form = _image_number if numbers else partial(_path_end, parts=least)
    alike: dict[str, str] = {}
    for path in images if settings.read.keys == ("image",) else ():
        other = alike.setdefault(form(path), path)
        if other != path:
            raise SourceError(
                f"{settings.file} cannot tell the images {other} and {path} apart: give longer "
                "paths, or join by the caption too"
            )
    return form


def _path_end(path: str, parts: int) -> str:
    """The last `parts` components of a path, in one form of its accents."""
    return "/".join(unicodedata.normalize("NFC", path).rsplit("/", parts)[-parts:])


def _image_number(name: str) -> str:
    """Number at the end of an image's file name, without leading zeros."""
    found = _LAST_NUMBER.search(name)
    return found[1].lstrip("0") if found else name


class _Reader:
    """Joins a table's records to sentences of caption rows, and reads their fields."""

    def __init__(
        self,
        settings: AnnotationSettings,
        contents: frozenset[str],
        rows: Table[Caption],
        sentences: int | None,
    ) -> None:
        self._settings, self._contents, self._rows = settings, contents, rows
        self.problems: Counter[str] = Counter()
        columns, image = settings.read, _image_normaliser(settings, contents, rows)
        forms: dict[str, Callable[[str], str]]
        forms = {"sample_id": str, "image": image, "caption": _normalised_caption}
        named = [(getattr(columns, name), forms[name]) for name in columns.keys]
        by_key: dict[int, list[tuple[int, int]]] = {}
        for number, row in enumerate(rows):
            ids = {row.sample_id, row.sample_id.removeprefix(f"{row.split}-")}
            path = {image(row.image)} if columns.image else set()
            for sentence, text in enumerate(row.sentences[:sentences]):
                values = {"sample_id": ids, "image": path, "caption": {_normalised_caption(text)}}
                for shared in product(*(values[name] for name in columns.keys)):
                    by_key.setdefault(digest(*shared), []).append((number, sentence))
        self.places: list[Sequence[tuple[int, int]]] = []
        """Rows and sentences that each record belongs to."""
        self.have = np.zeros(len(rows), bool)
        """Whether there is a record of each row's first sentence."""
        for record in _records(settings, contents):
            held: Mapping[str, Any] = {} if isinstance(record, UnreadableRecord) else record
            given = [key_of(held, column) for column, _ in named]
            found: Sequence[tuple[int, int]] = ()
            if all(given):
                pairs = zip(named, given, strict=True)
                found = by_key.get(digest(*(form(value) for (_, form), value in pairs)), ())
            else:
                self.problems[_UNREADABLE] += 1
            self.places.append(found)
            for number, sentence in found:
                self.have[number] |= sentence == 0

    def require_matches(self, key: str) -> None:
        """Raise an error if too small a share of the rows has a record.

        Raises:
            SettingsError: too few have; shows rows without one, and what the table has.
        """
        settings, have, names = self._settings, self.have, self._settings.read.keys
        if have.sum() >= settings.least_matched * len(have):
            return
        without = (self._rows[int(place)] for place in (~have).nonzero()[0][:_EXAMPLES])
        examples = [
            {name: row.sentences[0] if name == "caption" else getattr(row, name) for name in names}
            for row in without
        ]
        every = _records(settings, ())
        first = next((one for one in every if isinstance(one, Mapping)), {})
        theirs = {name: first.get(getattr(settings.read, name)) for name in names}
        raise SettingsError(
            f"{key}: joined by {' and '.join(names)}, {int(have.sum())} of {len(have)} rows have "
            f"one of the {len(self.places)} records of {settings.file}, expected "
            f"{settings.least_matched:.0%} at least ({key}.least_matched); without one are "
            f"{'; '.join(map(str, examples))}; the table begins with {theirs}"
        )

    def annotations(self) -> Iterator[Annotation]:
        """Yield one annotation for each row and sentence that a record belongs to."""
        ids = self._rows.column("sample_id").to_pylist()
        records_ = _records(self._settings, self._contents)
        for number, (record, places) in enumerate(zip(records_, self.places, strict=True)):
            if isinstance(record, UnreadableRecord) or not places:
                continue
            negatives = self._texts(record, "negatives")
            if self._settings.read.negatives and not negatives[0]:
                self.problems["records without a negative"] += 1
            positives, _, positive_images = self._texts(record, "positives")
            phrases = tuple(filter(self._is_text, self._field_values(record, "phrases")))
            found = map(self._neighbour, self._field_values(record, "neighbours"))
            near = tuple(ids[place] for place in found if place is not None)
            held = *negatives, positives, positive_images, phrases, near
            for row, sentence in places:
                yield Annotation(number, ids[row], sentence, *held)

    def _texts(
        self, record: Mapping[str, Any], name: str
    ) -> tuple[tuple[str, ...], tuple[int, ...], tuple[str, ...]]:
        """Negatives or positives of a record, with their column indices and their images."""
        if name not in self._contents:
            return (), (), ()
        found = [
            (text, column)
            for column, each in enumerate(getattr(self._settings.read, name))
            for text in self._cell_values(record.get(each))
        ]
        field = f"{name.removesuffix('s')}_images"
        images = self._field_values(record, field)
        if field in self._contents and len(images) != len(found):
            self.problems[f"records whose {field} are not as many as their {name}"] += 1
            images = [""] * len(found)
        usable = [
            (text.strip(), column, str(image or ""))
            for (text, column), image in zip(found, images or [""] * len(found), strict=True)
            if self._is_text(text)
        ]
        texts, columns, shown_images = zip(*usable, strict=True) if usable else ((), (), ())
        return texts, columns, shown_images if images else ()

    def _field_values(self, record: Mapping[str, Any], name: str) -> list[Any]:
        """Values of a record in the column of a field, or empty if the field is not read."""
        if name not in self._contents:
            return []
        return self._cell_values(record.get(getattr(self._settings.read, name)))

    def _cell_values(self, value: Any) -> list[Any]:
        """Values of a cell that holds one value, a list, or a list as JSON or Python text."""
        if value is None or value == "":
            return []
        text = value.strip() if isinstance(value, str) else ""
        if text.startswith("[") and text.endswith("]"):
            value = parse_list(text)
            if value is None:
                self.problems["lists that cannot be read"] += 1
                return []
        return list(value) if isinstance(value, list) else [value]

    def _is_text(self, value: Any) -> bool:
        """Whether a value is non-blank text.

        Counts the values that are no text.
        """
        if text_problem(value):
            self.problems["values that are no text"] += 1
            return False
        return bool(value.strip())

    def _neighbour(self, number: Any) -> int | None:
        """Number of a neighbour's row, given its record's number, or None for an unusable one."""
        if not isinstance(number, int) or not 0 <= number < len(self.places):
            self.problems["neighbours that are no number of a record"] += 1
        elif not self.places[number]:
            self.problems["neighbours that are of no row"] += 1
        else:
            return self.places[number][0][0]
        return None
