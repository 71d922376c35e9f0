"""Published hard negatives, positives and images of captions: settings and sampling.

`compo_pipeline.data.annotations` reads them from a table.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Literal

from pydantic import PositiveInt

from compo_pipeline.core.records import Annotation
from compo_pipeline.core.seeding import digest
from compo_pipeline.core.settings import SettingsError, Share, settings
from compo_pipeline.core.tables import Groups, Table

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
        there = self.read
        found: dict[Literal["negative", "positive"], tuple[str, ...]] = {
            "negative": there.negatives,
            "positive": there.positives,
        }
        return tuple(role for role, columns in found.items() if columns)

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
