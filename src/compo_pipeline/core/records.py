"""Row types of the tables on disk, and their arrow schemas: the interface between the packages.

Every table is parquet with exactly the columns named here, in this order; `table_files` writes and
reads them.
"""

from __future__ import annotations

import types
import typing
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields
from functools import cache
from itertools import pairwise
from typing import TYPE_CHECKING, Any, TypeVar, cast

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True, slots=True)
class Caption:
    """Row of the table `captions`: an image and the sentences about it.

    `image` is a path relative to the dataset's root, never outside it.

    `sentences[0]` is the row's own caption, the others say more about the same image. Width and
    height are in pixels, 0 where the image could not be read. `image_id` groups the rows of one
    image.
    """

    sample_id: str
    image_id: str
    image: str
    width: int
    height: int
    sentences: tuple[str, ...]
    source: str
    split: str

    @property
    def whole(self) -> str:
        """All sentences of the caption row, joined to one text."""
        return " ".join(self.sentences)


@dataclass(frozen=True, slots=True)
class Fact:
    """Row of the table `facts`: measurements of a caption row, for the validation rules.

    `row` is the row's number in `captions`. `image_hash` is the sha256 of the file's bytes, empty
    where there is none. `decode_error` is None for a readable image, else `reason: detail`. The
    flags say whether an earlier row holds the same sample_id, or, in the same split, the same
    image and caption, and whether the same image (by bytes) is in a later split: of a
    leak the row that trains is the one to drop, so that held-out data stay.
    """

    row: int
    sample_id: str
    image: str
    split: str
    image_hash: str
    decode_error: str | None
    width: int
    height: int
    sentences: int
    least_words: int
    most_words: int
    repeats_id: bool
    repeats_pair: bool
    leaks: bool


@dataclass(frozen=True, slots=True)
class Rejected:
    """Row of the table `quarantine`: a rejected row or record, and the rule that it broke.

    `rule` is the rule's name in parameters_validation.yml (or of the reader), `detail` what was
    found. `row` is -1 for a record that never became a row.
    """

    row: int
    sample_id: str
    image: str
    rule: str
    detail: str


@dataclass(frozen=True, slots=True)
class Recaption:
    """Row of the table `recaptions`: a caption that a model wrote of an image.

    It is as it is used: checked, and without the phrase that introduces it as an image.

    `image` is a path as in `Caption`, `image_hash` the sha256 of the file's bytes. `originals` are
    the captions that the source has of the image. `captioner` is the name in the settings, `model`
    its model, `prompt` what it was asked, `date` when it answered, in UTC.
    """

    image: str
    image_hash: str
    caption: str
    originals: tuple[str, ...]
    captioner: str
    model: str
    prompt: str
    date: str


@dataclass(frozen=True, slots=True)
class Parse:
    """Row of the table `parses`: words, tags and noun phrases of one sentence of a caption.

    The text is in its original case. `sentence` is its index in the caption's sentences; `offsets`
    are character positions of the words in `text`; noun phrases are half-open word spans
    `[start, end)`, flattened: start0, end0, start1, end1, ...
    """

    sample_id: str
    sentence: int
    text: str
    words: tuple[str, ...]
    offsets: tuple[int, ...]
    upos: tuple[str, ...]
    tags: tuple[str, ...]
    noun_phrases: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Counterfactual:
    """Row of the table `counterfactuals`: an edited caption, and the image generated for it.

    `sentence` is the index of the edited caption in the sample's sentences, `caption` itself;
    `role` says whether the edit changes the meaning ("negative") or not ("positive"). `text`
    is what became of the caption, `image` a path below the counterfactuals' own image folder,
    empty while there is none. `caption_editor` and `image_generator` are names
    (`image_generator` is empty where no images are asked for); `fingerprint` is a short hash of
    all that text and image depend on. `state` is "edited" (a text, no image asked for),
    "generated" (both) or "failed". `detail` names the edit or, of a failed row, says why there is
    no text or no image.
    """

    sample_id: str
    sentence: int
    caption: str
    role: str
    text: str
    image: str
    caption_editor: str
    image_generator: str
    fingerprint: str
    state: str
    detail: str


@dataclass(frozen=True, slots=True)
class Annotation:
    """Row of the table `annotations`: an external table's texts and images for one sentence.

    `record` is the record's number in the table. `negatives` are false of the image, `positives`
    true; `negative_columns` has the number of the column that each negative is from.
    `negative_images` and `positive_images` are paths of images that show these texts, parallel to
    them, empty where there is none, and are empty lists where no column names any. `phrases` are
    noun phrases of the sentence, `neighbours` sample_ids of rows with a similar image.
    """

    record: int
    sample_id: str
    sentence: int
    negatives: tuple[str, ...]
    negative_columns: tuple[int, ...]
    negative_images: tuple[str, ...]
    positives: tuple[str, ...]
    positive_images: tuple[str, ...]
    phrases: tuple[str, ...]
    neighbours: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class View:
    """Row of the table `views`: the training example of one caption row in one epoch.

    `sample_ids` and `images` have one entry (`kind` single, or long: the positives are the whole
    caption, and there are no negatives) or two (composite, pair): the anchor is first in
    `sample_ids`, `images` of a composite are in display order along `axis` ("vertical": one above
    the other, "horizontal": side by side, None for other kinds). `positives` are ordered p1..p5 and
    a run uses the first k; `negatives` hold None where a generator found nothing. A pair is the
    anchor and a row with a similar image: the image of each, a caption of each as positives, and as
    many negatives of each, the anchor's first. `phrases` are noun phrases of p1, `phrase_spans`
    their half-open character spans in it, flattened: start0, end0, start1, end1, ...
    `counterfactuals` are paths of the images of the negative and of the second positive, empty
    where there is none. `provenance` is JSON: generator, category, words, language model. The
    anchor's single view (its image, its first sentence) is derived from `captions`, never stored
    here.
    """

    sample_id: str
    kind: str
    sample_ids: tuple[str, ...]
    images: tuple[str, ...]
    axis: str | None
    positives: tuple[str, ...]
    negatives: tuple[str | None, ...]
    phrases: tuple[str, ...]
    phrase_spans: tuple[int, ...]
    counterfactuals: tuple[str, ...]
    provenance: str


@dataclass(frozen=True, slots=True)
class Score:
    """Row of the table `scores`: one benchmark item's similarities and verdict under one model.

    `model` is its name in the run (base, control, clic, ...).

    `metric` is what `correct` is about (accuracy, itt, tot, i2t_r1, top1, ...). `group` names the
    image, the unit of which items are no independent samples. `similarities` are every cosine
    that decided the item, in the protocol's documented order; `correct` is None for an item
    that could not be scored, and `skipped` then says why. In `GRADED` metrics no item is right or
    wrong: the first of the similarities is its value, from 0 to 1.
    """

    model: str
    benchmark: str
    subtask: str
    metric: str
    item: str
    group: str
    similarities: tuple[float, ...]
    correct: bool | None
    skipped: str | None

    @property
    def value(self) -> float | None:
        """Score of the item from 0 (wrong) to 1 (right), or None if it could not be scored."""
        if self.metric in GRADED:
            return self.similarities[0] if self.similarities else None
        return None if self.correct is None else float(self.correct)


@dataclass(frozen=True, slots=True)
class ScoredItem:
    """Row of the table `scored_items`: a benchmark item and its slices, such as `attribute=red`."""

    benchmark: str
    subtask: str
    item: str
    slices: tuple[str, ...]


GRADED = frozenset(("average_precision",))
"""Metrics whose items have a value, not a verdict."""


@dataclass(frozen=True, slots=True)
class ItemChange:
    """A benchmark item that exactly one of two models gets right, with all texts and similarities.

    `change` is `fixed` if `model` is right and `baseline` wrong, `broken` if it is the reverse.
    `shortfall` is how far the cosines of the wrong model are from right. Images and texts are those
    of the item, for a query of retrieval its own caption; similarities are as in `Score`.
    """

    baseline: str
    model: str
    benchmark: str
    subtask: str
    metric: str
    item: str
    change: str
    shortfall: float
    image: str
    other_images: tuple[str, ...]
    positives: tuple[str, ...]
    negatives: tuple[str, ...]
    baseline_similarities: tuple[float, ...]
    model_similarities: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Foil:
    """Row of the table `foils`: a caption, and a copy that one changed expression makes false.

    `item` is unique. `kind` is what the foil has changed, `split` the name of its set
    (`foils.splits`), `state` whether the items of kind and set measure something: "used"; "few",
    where there are too few; "guessable", where a classifier of texts tells captions from foils.
    `sample_id`, `image_id` and `image` are those of a caption row, `image_hash` the sha256 of the
    image's bytes, `source` the caption that both texts are made of. `words` are the expressions
    that differ, the caption's first, or two that are exchanged. `preference` is by how much the
    text model prefers the caption, in nats. `partner` is the item of another image that balances
    this one.
    """

    item: str
    kind: str
    split: str
    state: str
    sample_id: str
    image_id: str
    image: str
    image_hash: str
    caption: str
    foil: str
    source: str
    words: tuple[str, ...]
    preference: float
    partner: str


PER_CLASS = "per_class"
"""The metric whose subtasks, `<set>/<class>`, hold the items of a zero-shot set once more."""

Row = TypeVar("Row")


def _arrow_type(hint: Any) -> tuple[pa.DataType, bool]:
    """Arrow type of a dataclass field's annotation, and whether the field may be null."""
    import pyarrow as pa

    scalars = {str: pa.string(), int: pa.int64(), float: pa.float64(), bool: pa.bool_()}
    if isinstance(hint, types.UnionType):
        inner = next(arg for arg in typing.get_args(hint) if arg is not type(None))
        return _arrow_type(inner)[0], True
    if typing.get_origin(hint) is tuple:
        item, nullable = _arrow_type(typing.get_args(hint)[0])
        return pa.list_(pa.field("item", item, nullable=nullable)), False
    return scalars[hint], False


@cache
def schema(row_type: type) -> pa.Schema:
    """Arrow schema of a row type (a dataclass) of this module."""
    import pyarrow as pa

    hints = typing.get_type_hints(row_type)
    columns = []
    for field in fields(row_type):
        kind, nullable = _arrow_type(hints[field.name])
        columns.append(pa.field(field.name, kind, nullable=nullable))
    return pa.schema(columns)


def to_table(rows: Iterable[Any], row_type: type) -> pa.Table:
    """Convert rows of one type to an Arrow table."""
    import pyarrow as pa

    rows = list(rows)
    names = [field.name for field in fields(row_type)]
    columns = {name: [getattr(row, name) for row in rows] for name in names}
    return pa.table(columns, schema=schema(row_type))


def check_columns(found: pa.Schema, row_type: type) -> None:
    """Check that an Arrow schema has exactly the columns of a row type, and their types.

    Raises:
        ValueError: they are not.
    """
    expected = schema(row_type)
    if not found.equals(expected):
        wanted, got = (
            ", ".join(f"{column.name} ({column.type})" for column in columns)
            for columns in (expected, found)
        )
        raise ValueError(
            f"a table of {row_type.__name__} rows has the columns {wanted}, "
            f"got {got}: it was written by another version"
        )


def decoded(batch: pa.RecordBatch, row_type: type[Row]) -> Iterator[Row]:
    """Convert an Arrow batch to rows of one type, column by column."""
    return map(row_type, *map(_values, batch.columns))


def _values(column: pa.Array) -> list[Any]:
    """The values of an Arrow column as Python objects, lists as tuples."""
    import pyarrow as pa

    if not pa.types.is_list(column.type):
        return cast("list[Any]", column.to_numpy(zero_copy_only=False).tolist())
    items, places = _values(column.flatten()), column.offsets.to_numpy()
    places = (places - places[0]).tolist()
    return [tuple(items[start:end]) for start, end in pairwise(places)]
