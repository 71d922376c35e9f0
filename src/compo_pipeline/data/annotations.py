"""Published hard negatives, positives and images of captions, joined to rows and drawn for views.

The layouts are those of public loaders: NegCLIP's `CsvDataset` (src/training/data.py of
vinid/neg_clip, a copy is in xiaoxing2001/DeGLA) and SPARCL's `COCO_neg_pos`
(finetuning/src/datasets/COCO_neg_pos.py of lihaoxin05/SPARCL).
"""

from __future__ import annotations

import logging
import random
import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from itertools import islice, product, zip_longest
from pathlib import Path
from typing import Any, Literal

import numpy as np
from pydantic import PositiveInt

from compo_pipeline.core.files import DamagedFileError
from compo_pipeline.core.records import Annotation, Caption
from compo_pipeline.core.seeding import digest
from compo_pipeline.core.sentences import bare, clean
from compo_pipeline.core.settings import SettingsError, Share, settings
from compo_pipeline.core.tables import Groups, Table
from compo_pipeline.core.untrusted import parse_list, shown, text_problem
from compo_pipeline.data.readers.delimited import UnreadableRecord, csv_rows, delimiter_of
from compo_pipeline.data.readers.joined import key_of
from compo_pipeline.data.readers.record import SourceError
from compo_pipeline.data.readers.table import SUFFIXES, column_names, records

_EXAMPLES = 3
_DIGITS = 18  # of an image's number
_LAST_NUMBER = re.compile(r"(\d+)(?:\.\w+)?$", re.ASCII)
_SPARCL_FOLDERS = {"negative": "synthetic_negative", "positive": "synthetic_positive"}

log = logging.getLogger(__name__)

Layout = Literal["columns", "neg_clip", "sparcl"]
KEYS = ("sample_id", "image", "caption")
"""Columns by which records are joined to caption rows."""


@settings
class AnnotationColumns:
    """Settings: column names of an external table of annotations, as join keys and contents."""

    sample_id: str | None = None
    """Column with the id of the caption row, with or without the name of its split before it."""
    image: str | None = None
    """Column with the image's path, of which the last parts are compared, or with a number, such as
    the one at the end of COCO's file names."""
    caption: str | None = None
    """Column with the caption, compared regardless of case and closing punctuation. Name at least
    one of `sample_id`, `image` and `caption`. A record belongs to the rows that agree in all
    columns that are named."""
    negatives: tuple[str, ...] = ()
    """Columns with texts that are false of the image. Each holds one text, or a list (of Parquet,
    JSON or Python) of which one is drawn in each epoch. Each column gives a view one negative."""
    positives: tuple[str, ...] = ()
    """Column with further texts that are true of the image: one text or a list."""
    negative_images: str | None = None
    """Column with paths of images that show the negatives, relative to `images`, as many as there
    are negatives."""
    positive_images: str | None = None
    """Column with paths of images that show the positives, relative to `images`, as many as there
    are positives."""
    phrases: str | None = None
    """Column with a list of noun phrases of the caption."""
    neighbours: str | None = None
    """Column with a list of record numbers (from 0) with similar images. One is drawn in each epoch
    and joins the batch with its caption and negatives."""

    @property
    def keys(self) -> tuple[str, ...]:
        """Names of the join keys that are set, out of `sample_id`, `image` and `caption`."""
        return tuple(name for name in KEYS if getattr(self, name) is not None)

    @property
    def contents(self) -> tuple[str, ...]:
        """Names of the content fields that have a column, without the join keys."""
        names = (each.name for each in fields(self))
        return tuple(name for name in names if name not in KEYS and getattr(self, name))


LAYOUTS: Mapping[Layout, AnnotationColumns] = {
    "neg_clip": AnnotationColumns(
        image="filepath", caption="title", negatives=("neg_caption",), neighbours="neg_image"
    ),
    # The columns of SPARCL's file have no fixed names: these are what its rows are cut into.
    "sparcl": AnnotationColumns(
        image="image",
        caption="caption",
        negatives=("negative",),
        positives=("positive",),
        negative_images="negative_image",
        positive_images="positive_image",
    ),
}
"""Columns of published files; docs/how-to/negatives-of-others.md."""


@settings
class AnnotationSettings:
    """Settings of an external table of negatives, positives, phrases or images of captions."""

    file: str | None = None
    """Table with the texts: CSV, TSV, JSON lines or Parquet. The path is relative to the project's
    folder. Null uses no table."""
    layout: Layout = "columns"
    """Layout of the table. `columns` reads the columns that are named below. `neg_clip` is
    NegCLIP's train_neg_clip.tsv, `sparcl` is SPARCL's csv of five captions per image, each with a
    negative and a positive."""
    columns: AnnotationColumns = field(default_factory=AnnotationColumns)
    """Names of the table's columns. Used only with `layout: columns`."""
    drawn: PositiveInt | None = None
    """Number of negatives of a view, drawn without repetition from all negatives of the caption.
    Null takes one of each column. Methods with one negative per text always draw one."""
    images: str = "."
    """Folder of `negative_images` and `positive_images`. For the layout `sparcl`, the folder that
    holds synthetic_negative and synthetic_positive."""
    least_matched: Share = 0.5
    """Smallest share of the rows that must have a record; otherwise the run stops."""

    def __post_init__(self) -> None:
        """Check the layout's columns, the key, and that something is read."""
        named = (*self.columns.keys, *self.columns.contents)
        if self.layout != "columns" and named:
            raise ValueError(
                f"columns: the layout {self.layout} has columns of its own, got "
                f"{', '.join(named)}; leave them out, or set layout to columns"
            )
        if self.file is None or self.layout != "columns":
            return
        if not self.columns.keys:
            raise ValueError(f"columns: expected one of {', '.join(KEYS)}, to join {self.file} by")
        if not self.columns.contents:
            others = [each.name for each in fields(self.columns) if each.name not in KEYS]
            raise ValueError(f"columns: expected one of {', '.join(others)}, to read {self.file}")

    @property
    def read(self) -> AnnotationColumns:
        """The column names of the layout: those of a published file, or the configured ones."""
        return LAYOUTS.get(self.layout, self.columns)

    @property
    def roles(self) -> tuple[Literal["negative", "positive"], ...]:
        """Kinds of edited captions in the external table: negative, positive or both."""
        both: tuple[Literal["negative", "positive"], ...] = ("negative", "positive")
        return tuple(role for role in both if getattr(self.read, f"{role}s"))

    def usable(self, able: Collection[str], key: str, user: str) -> frozenset[str]:
        """The external table's content fields that a method can use.

        Refuses unusable columns.

        Args:
            able: the contents that it has a use for.
            key: YAML key of these settings.
            user: user of the table, for errors.

        Raises:
            SettingsError: a column is named that it has no use for, or the table has nothing else.
        """
        there = self.read.contents
        used = frozenset(there) & frozenset(able)
        unfit = [name for name in there if name not in able]
        uses = f"expected {' or '.join(sorted(able))}" if able else "it uses none"
        if self.layout == "columns" and unfit:
            raise SettingsError(f"{key}.columns.{unfit[0]}: {user} has no use for it; {uses}")
        if not used:
            raise SettingsError(
                f"{key}.layout: {user} has no use for what {self.layout} has "
                f"({', '.join(there)}); {uses}"
            )
        return used


@dataclass(frozen=True)
class Annotations:
    """Negatives, positives, phrases and neighbours of caption rows, from an external table."""

    rows: Mapping[str, Sequence[Annotation]] = field(default_factory=dict)
    """Texts of each row, by sample_id."""

    contents: frozenset[str] = frozenset()
    """Fields of `AnnotationColumns` that are read from the table."""

    columns: tuple[str, ...] = ()
    """Names of the columns of negatives."""

    drawn: int | None = None
    """Number of negatives of a view. None takes one of each column."""

    fingerprint: str = ""
    """Fingerprint of the rows and of how negatives are drawn."""

    @classmethod
    def from_rows(
        cls, rows: Sequence[Annotation], settings: AnnotationSettings, contents: frozenset[str]
    ) -> Annotations:
        """Build the annotations from rows of the table `annotations`."""
        table = Table.of(rows, Annotation)
        columns = settings.read.negatives if "negatives" in contents else ()
        drawn_by = digest(*sorted(contents), *columns, str(settings.drawn))
        return cls(
            Groups(table), contents, columns, settings.drawn, f"{table.fingerprint} {drawn_by:016x}"
        )

    def of_sentence(self, sample_id: str, sentence: int = 0) -> list[Annotation]:
        """The annotation records of one sentence of a caption row."""
        found = self.rows.get(sample_id, ())
        return [each for each in found if each.sentence == sentence]

    def negatives(self, sample_id: str, draws: random.Random) -> list[tuple[str, str] | None]:
        """Draw a view's negatives, each with its column's name, or None where there are too few."""
        pool = self._negatives_of(sample_id)
        if self.drawn is None:
            own = ([one for one in pool if one[1] == name] for name in self.columns)
            return [draws.choice(some) if some else None for some in own]
        drawn = pool if len(pool) <= self.drawn else draws.sample(pool, self.drawn)
        return [*drawn, *[None] * (self.drawn - len(drawn))]

    def negative(
        self, sample_id: str, draws: random.Random, sentence: int = 0
    ) -> tuple[str, str] | None:
        """Draw one negative of a sentence, with its column's name, or None where there is none."""
        pool = self._negatives_of(sample_id, sentence)
        return draws.choice(pool) if pool else None

    def positives(self, sample_id: str) -> list[str]:
        """Positive texts (true of the image) for the first sentence of a caption row."""
        return self._values("positives", sample_id)

    def phrases(self, sample_id: str) -> list[str]:
        """Noun phrases of the first sentence of a caption row, without repeats."""
        return list(dict.fromkeys(self._values("phrases", sample_id)))

    def neighbour(self, sample_id: str, draws: random.Random) -> str | None:
        """Draw the sample_id of a row with a similar image, or None where there is none."""
        pool = self._values("neighbours", sample_id)
        return draws.choice(pool) if pool else None

    def _values(self, name: str, sample_id: str) -> list[str]:
        """Values of an annotation field for a row's first sentence, empty if it is not read."""
        if name not in self.contents:
            return []
        return [value for each in self.of_sentence(sample_id) for value in getattr(each, name)]

    def _negatives_of(self, sample_id: str, sentence: int = 0) -> list[tuple[str, str]]:
        """All negatives of a sentence, each with its column's name, in the table's order."""
        return [
            (text, self.columns[column])
            for each in self.of_sentence(sample_id, sentence)
            for text, column in zip(each.negatives, each.negative_columns, strict=True)
        ]


NO_ANNOTATIONS = Annotations()
"""Of no table."""


Record = Mapping[str, Any] | UnreadableRecord
Place = tuple[int, int]
"""Numbers of a row, and of one of its sentences."""


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
    rows, file = Table.of(captions, Caption), settings.file
    try:
        places = _places(settings, rows, sentences)
        have = np.zeros(len(rows), bool)
        have[[row for found in places for row, sentence in found or () if sentence == 0]] = True
        if have.sum() < settings.least_matched * len(rows):
            raise SettingsError(f"{key}: {_mismatch(settings, rows, have, len(places), key)}")
        reader = _Reader(settings, contents)
        ids = rows.column("sample_id").to_pylist()
        table = Table.spilled(reader.annotations(places, ids), Annotation, None)
    except (SourceError, DamagedFileError) as error:
        raise SettingsError(f"{key}.file: {error}") from error
    text = "%s: %d of %d rows have a record; of %d records %d are of no row."
    log.info(text, file, have.sum(), len(rows), len(places), places.count(()))
    reader.problems["records that cannot be read or have no key"] = places.count(None)
    for what, count in (+reader.problems).items():
        log.warning("%s: %d %s.", file, count, what)
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
    except (SourceError, DamagedFileError) as error:
        raise SettingsError(f"{key}.file: {error}") from error
    spelt = {name.strip().casefold() for name in there}
    for field_, names in _columns(settings, contents).items():
        if missing := [name for name in names if name.strip().casefold() not in spelt]:
            place = f"columns.{field_}" if settings.layout == "columns" else "layout"
            raise SettingsError(
                f"{key}.{place}: {path} has no column {', '.join(missing)} (it has "
                f"{shown(', '.join(there))})"
            )


def _columns(settings: AnnotationSettings, contents: Iterable[str]) -> dict[str, tuple[str, ...]]:
    """Names of the table's columns to read, by field of `AnnotationColumns`."""
    if settings.layout == "sparcl":
        return {}
    there = settings.read
    named = {name: getattr(there, name) for name in (*there.keys, *sorted(contents))}
    return {name: (own,) if isinstance(own, str) else own for name, own in named.items()}


def _records(settings: AnnotationSettings, contents: Iterable[str] = ()) -> Iterator[Record]:
    """Yield the records of the external table, as mappings from column name to value."""
    path = Path(str(settings.file))
    if settings.layout == "sparcl":
        return _sparcl_records(path)
    columns = [name for names in _columns(settings, contents).values() for name in names]
    return records(path, list(dict.fromkeys(columns)))


def _sparcl_header(path: Path) -> list[str]:
    """Header of a file in SPARCL's layout.

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
        if isinstance(row, UnreadableRecord) or len(row) != width:
            yield UnreadableRecord(f"expected {width} fields: {shown(row)}")
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


def _places(
    settings: AnnotationSettings, rows: Table[Caption], sentences: int | None
) -> list[Sequence[Place] | None]:
    """Rows and sentences that each record belongs to, or None for a record without a key."""
    keys = settings.read.keys
    columns = [getattr(settings.read, name) for name in keys]
    given = [
        [key_of(record, column) for column in columns] if isinstance(record, Mapping) else [""]
        for record in _records(settings)
    ]
    names = [values[keys.index("image")] for values in given if all(values) and "image" in keys]
    image = _image_normaliser(settings, names, rows)
    forms: dict[str, Callable[[str], str]]
    forms = {"sample_id": str, "image": image, "caption": _normalised_caption}
    by_key: dict[int, list[Place]] = {}
    for number, row in enumerate(rows):
        ids = {row.sample_id, row.sample_id.removeprefix(f"{row.split}-")}
        path = {image(row.image)}
        for sentence, text in enumerate(row.sentences[:sentences]):
            own = {"sample_id": ids, "image": path, "caption": {_normalised_caption(text)}}
            for shared in product(*(own[name] for name in keys)):
                by_key.setdefault(digest(*shared), []).append((number, sentence))
    found: list[Sequence[Place] | None] = []
    for values in given:
        normalised = (forms[name](value) for name, value in zip(keys, values, strict=False))
        found.append(by_key.get(digest(*normalised), ()) if all(values) else None)
    return found


def _normalised_caption(text: str) -> str:
    """Caption in the normalised form by which captions are compared."""
    return bare(clean(text)[0])


def _image_normaliser(
    settings: AnnotationSettings, names: Sequence[str], rows: Table[Caption]
) -> Callable[[str], str]:
    """Function that normalises image paths for the comparison of rows and records.

    It keeps the number at the end of their names where the table has nothing but numbers, else as
    many parts of their paths, from the last one on, as all have.
    """
    images: list[str] = rows.column("image").unique().to_pylist()
    parts = min((name.count("/") for name in (*images, *names)), default=0) + 1

    def form(name: str) -> str:
        return "/".join(unicodedata.normalize("NFC", name).rsplit("/", parts)[-parts:])

    if all(map(str.isdecimal, names)):
        form = _image_number
    alike: dict[str, str] = {}
    for path in images if settings.read.keys == ("image",) else ():
        other = alike.setdefault(form(path), path)
        if other != path:
            raise SourceError(
                f"{settings.file} cannot tell the images {other} and {path} apart: give longer "
                "paths, or join by the caption too"
            )
    return form


def _image_number(name: str) -> str:
    """Number at the end of an image's file name, without leading zeros."""
    found = _LAST_NUMBER.search(name)
    return found[1].lstrip("0") if found else name


def _mismatch(
    settings: AnnotationSettings, rows: Table[Caption], have: Any, count: int, key: str
) -> str:
    """Error about rows without a record: shows some of them, and what the table has."""
    names = settings.read.keys
    without = [rows[int(place)] for place in (~have).nonzero()[0][:_EXAMPLES]]
    examples = [
        {name: row.sentences[0] if name == "caption" else getattr(row, name) for name in names}
        for row in without
    ]
    first = next((one for one in _records(settings) if isinstance(one, Mapping)), {})
    theirs = {name: first.get(getattr(settings.read, name)) for name in names}
    return (
        f"joined by {' and '.join(names)}, {have.sum()} of {len(have)} rows have one of the "
        f"{count} records of {settings.file}, expected {settings.least_matched:.0%} at least "
        f"({key}.least_matched); without one are {'; '.join(map(str, examples))}; the table "
        f"begins with {theirs}"
    )


@dataclass(frozen=True)
class _Reader:
    """Reads the fields of a table's records, and counts what it cannot use."""

    settings: AnnotationSettings
    contents: frozenset[str]
    problems: Counter[str] = field(default_factory=Counter)

    def annotations(
        self, places: Sequence[Sequence[Place] | None], ids: Sequence[str]
    ) -> Iterator[Annotation]:
        """Yield one annotation for each row and sentence that a record belongs to."""
        every = zip(_records(self.settings, self.contents), places, strict=True)
        for number, (record, found) in enumerate(every):
            if isinstance(record, UnreadableRecord) or not found:
                continue
            negatives = self._texts(record, "negatives")
            if self.settings.read.negatives and not negatives[0]:
                self.problems["records without a negative"] += 1
            positives, _, positive_images = self._texts(record, "positives")
            phrases = tuple(filter(self._is_text, self._values(record, "phrases")))
            near = (self._neighbour(each, places) for each in self._values(record, "neighbours"))
            others = tuple(ids[row] for row in near if row is not None)
            held = *negatives, positives, positive_images, phrases, others
            for row, sentence in found:
                yield Annotation(number, ids[row], sentence, *held)

    def _texts(
        self, record: Mapping[str, Any], name: str
    ) -> tuple[tuple[str, ...], tuple[int, ...], tuple[str, ...]]:
        """Negatives or positives of a record, with their column indices and their images."""
        columns = getattr(self.settings.read, name) if name in self.contents else ()
        found = [(text, n) for n, own in enumerate(columns) for text in self._cell(record.get(own))]
        images = self._values(record, shown_by := f"{name.removesuffix('s')}_images")
        if shown_by in self.contents and len(images) != len(found):
            self.problems[f"records whose {shown_by} are not as many as their {name}"] += 1
            images = [""] * len(found)
        kept = [
            (text.strip(), column, str(image or ""))
            for (text, column), image in zip_longest(found, images)
            if self._is_text(text)
        ]
        texts, numbers, paths = zip(*kept, strict=True) if kept else ((), (), ())
        return texts, numbers, paths if images else ()

    def _values(self, record: Mapping[str, Any], name: str) -> list[Any]:
        """Values of a record in the column of a field, or empty if the field is not read."""
        if name not in self.contents:
            return []
        return self._cell(record.get(getattr(self.settings.read, name)))

    def _cell(self, value: Any) -> list[Any]:
        """Values of a cell that holds one value, a list, or a list as JSON or Python text."""
        text = value.strip() if isinstance(value, str) else ""
        if text.startswith("[") and text.endswith("]"):
            value = parse_list(text)
            if value is None:
                self.problems["lists that cannot be read"] += 1
        if value is None or value == "":
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

    def _neighbour(self, number: Any, places: Sequence[Sequence[Place] | None]) -> int | None:
        """Number of a neighbour's row, given its record's number, or None for an unusable one."""
        if not isinstance(number, int) or not 0 <= number < len(places):
            self.problems["neighbours that are no number of a record"] += 1
        elif found := places[number]:
            return found[0][0]
        else:
            self.problems["neighbours that are of no row"] += 1
        return None
