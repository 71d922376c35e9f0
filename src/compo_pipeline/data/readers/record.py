"""The interface of readers, the records they yield, and the files that they open."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any, Protocol

from compo_pipeline.core.records import Rejected
from compo_pipeline.core.seeding import digest
from compo_pipeline.core.settings import PlainError
from compo_pipeline.core.untrusted import files_below, listed, parse_list, text_problem
from compo_pipeline.data.settings import DataSettings

UNPARSEABLE = "unparseable"
"""Quarantine rule of records that could not be parsed into rows."""

NOT_DOWNLOADED = "not_downloaded"
"""Quarantine rule of records whose image was never downloaded; they do not count as bad."""

NOT_CAPTIONED = "not_captioned"
"""Quarantine rule of images without a caption in `data.captions`, or in a file beside them; they do
not count as bad."""

OTHER_SPLIT = "other_split"
"""Quarantine rule of records of a split that `data.splits` leaves out; they do not count as bad."""

NOT_BAD = (NOT_DOWNLOADED, NOT_CAPTIONED, OTHER_SPLIT)
"""Quarantine rules of records that are no use and do not count as bad."""

ENDINGS = (
    *(".jpg", ".jpeg", ".png", ".webp", ".gif", ".bmp", ".ppm", ".npy"),
    *(".avif", ".heic", ".heif"),
)
"""Endings of the names of image files, in lower case."""

CAPTION_NAMES = ("caption", "captions", "text", "title", "description", "alt", "sentences", "raw")
"""Usual names of a caption's column or field, the most usual first."""

_SPLIT_NAMES = {
    "train": ("train", "training", "restval"),
    "val": ("val", "validation", "valid", "dev"),
    "test": ("test", "testing"),
}


class SourceError(PlainError, ValueError):
    """Error about a data source that cannot be read.

    Its message names the YAML key to change.
    """


@dataclass(frozen=True, slots=True)
class RawCaption:
    """Caption record as read from a source, not yet cleaned or split into sentences.

    `own` is the row's caption, as one text or as its sentences, an empty one where the source has
    none; `further` are other captions of the same image. `image` is relative to the data's root,
    as the source says: it may be missing, or lead anywhere. `source` is the name of one of several
    sources, `key` what joins the image to `data.captions`.
    """

    sample_id: str
    image_id: str
    image: str
    own: tuple[str, ...]
    further: tuple[str, ...]
    split: str
    source: str = ""
    key: str = ""


class Reader(Protocol):
    """Interface of readers, each for one on-disk data format.

    `source` is the source's own name of a split (`data.splits`).
    """

    def caption_files(self, data: DataSettings, source: str) -> list[Path]:
        """Paths of the files that hold a split's captions.

        Raises:
            SourceError: there are none.
        """

    def read(self, data: DataSettings, split: str, source: str) -> Iterator[RawCaption | Rejected]:
        """Yield the records of a split, in the order of its files."""


def source_files(data: DataSettings, pattern: str) -> list[Path]:
    """Paths of the files below the data's root that match a pattern, sorted by name.

    Raises:
        SourceError: the pattern or one of the files leads out of the root.
    """
    try:
        return files_below(data.root, pattern, follow_symlinks=data.follow_symlinks)
    except ValueError as error:
        raise SourceError(
            f"{error}; expected files below data.root (data.follow_symlinks allows links)"
        ) from error


def split_files(data: DataSettings, source: str, *suffixes: str) -> list[Path]:
    """Paths of a split's files, sorted by name.

    Raises:
        SourceError: there are none, or one has another suffix than these.
    """
    found = source_files(data, source)
    if not found:
        beside = sorted(path.name for path in (data.root / source).parent.glob("*.*"))
        raise SourceError(
            f"no file below {data.root} matches '{source}' (beside it there is "
            f"{listed(beside) or 'none'}): set data.root or data.splits; images without a table "
            "are of data.format=folder, for which recaption.captioner writes captions"
        )
    if other := next((path for path in found if suffixes and path.suffix not in suffixes), None):
        raise SourceError(f"{other}: expected one of {', '.join(suffixes)}; set data.splits")
    return found


def shard_files(data: DataSettings, source: str, *suffixes: str) -> list[Path]:
    """Paths of the split's shards, for formats whose images are in or beside them.

    Raises:
        SourceError: as `split_files`, or a setting is of another format.
    """
    if data.images or data.columns.sentences:
        raise SourceError(
            "data.images and data.columns.sentences say nothing of shards: their images are in or "
            "beside them, and a caption is one text"
        )
    return split_files(data, source, *suffixes)


def named_split(name: Any, splits: Container[str]) -> str | None:
    """Split of ours that a value or a part of a file's name means, or None for an unknown one.

    Besides its own name, `train` is training and restval, `val` validation, valid and dev, in any
    case. One of these names that `splits` lacks is still known.
    """
    word = name.strip() if isinstance(name, str) else ""
    if word in splits:
        return word
    known = (split for split, names in _SPLIT_NAMES.items() if word.casefold() in names)
    return next(known, word.casefold() if word.casefold() in splits else None)


def by_share(
    data: DataSettings, split: str, source: str, records: Iterable[RawCaption | Rejected]
) -> Iterator[RawCaption | Rejected]:
    """Yield a split's records of a source that may serve several splits, by `data.shares`.

    The hash of an image's path determines its split. Rejected records are of the first split.

    Raises:
        SourceError: the source serves several splits, and one of them has no share.
    """
    splits = data.sharing(source)
    if len(splits) < 2:
        yield from records
        return
    if missing := [each for each in splits if each not in data.shares]:
        raise SourceError(
            f"'{source}' serves the splits {', '.join(splits)}, and data.shares has none of "
            f"{', '.join(missing)}: set it, name files of its own for each split, or, of a table, "
            "set data.columns.split to the column that says which record is of which split"
        )
    shares = [data.shares[each] for each in splits]
    for record in records:
        if isinstance(record, Rejected):
            own = splits[0]
        else:
            place = digest(0, record.image) / 2**64 * sum(shares)
            # The last split also takes what rounding leaves over.
            bounds = zip(splits, accumulate(shares), strict=True)
            own = next((each for each, bound in bounds if place < bound), splits[-1])
        if own == split:
            yield record


def rejected(sample_id: Any, image: Any, detail: str, rule: str = UNPARSEABLE) -> Rejected:
    """Rejected record for the quarantine.

    Values that a table cannot hold are escaped.
    """
    return Rejected(-1, _storable(sample_id), _storable(image), rule, _storable(detail))


def checked(
    sample_id: str,
    image_id: str,
    image: str,
    own: Sequence[Any],
    further: Sequence[Any],
    split: str,
    key: str = "",
) -> RawCaption | Rejected:
    """Caption record of the given values, or its rejection if one of them is invalid."""
    if not image.strip():
        return rejected(sample_id, image, f"the image's name is {image!r}")
    for text in (sample_id, image_id, image, *own, *further):
        if problem := text_problem(text):
            return rejected(sample_id, image, problem)
    return RawCaption(sample_id, image_id, image, tuple(own), tuple(further), split, key=key)


def captions_of(value: Any) -> list[Any]:
    """Captions in a cell or field: one, or a list of several, each a text or an object with one."""
    if isinstance(value, str):
        several = parse_list(value) if value.startswith("[") else None  # as CSV files have lists
        return several or [value]
    return [
        next((each[name] for name in CAPTION_NAMES if name in each), each)
        if isinstance(each, Mapping)
        else each
        for each in (value if isinstance(value, list) else [value])
    ]


def caption_records(
    sample_id: str, image_id: str, image: str, captions: Sequence[Any], split: str
) -> Iterator[RawCaption | Rejected]:
    """Yield a record for each caption of an image, with the other captions as further ones."""
    if not captions:
        yield rejected(sample_id, image, "no caption of this image")
    elif len(captions) == 1:
        yield checked(sample_id, image_id, image, captions, (), split)
    else:
        for number, caption in enumerate(captions):
            others = [*captions[:number], *captions[number + 1 :]]
            further = [each for each in others if text_problem(each) is None]
            yield checked(f"{sample_id}-{number}", image_id, image, (caption,), further, split)


def _storable(value: Any) -> str:
    """A value as text that Parquet accepts, with lone surrogates escaped."""
    text = "" if value is None else str(value)
    return text.encode("utf-8", "backslashreplace").decode()
