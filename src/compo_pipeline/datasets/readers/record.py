"""The interface of readers, the records they yield, and the files that they open."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any, Protocol

from compo_pipeline.configuration.settings import PlainError
from compo_pipeline.datasets.settings import DataSettings
from compo_pipeline.run.seeding import digest
from compo_pipeline.storage.records import Rejected
from compo_pipeline.storage.untrusted import files_below, text_problem

UNPARSEABLE = "unparseable"
"""Quarantine rule of records that could not be parsed into rows."""

NOT_DOWNLOADED = "not_downloaded"
"""Quarantine rule of records whose image was never downloaded; they do not count as bad."""

NOT_CAPTIONED = "not_captioned"
"""Quarantine rule of images for which `data.captions` has no caption; they do not count as bad."""

NOT_BAD = (NOT_DOWNLOADED, NOT_CAPTIONED)
"""Quarantine rules of records that are no use and do not count as bad."""


class SourceError(PlainError, ValueError):
    """Error about a data source that cannot be read; its message names the YAML key to change."""


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

    def image_folder(self, data: DataSettings, source: str) -> Path:
        """Folder that holds a split's images."""

    def count(self, data: DataSettings, source: str) -> int:
        """Number of records of a split, including unparseable ones."""

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


def no_files(data: DataSettings, source: str) -> SourceError:
    """The error to raise if no file matches the pattern of a split."""
    return SourceError(
        f"no file below {data.root} matches '{source}': set data.root or data.splits"
    )


def shard_files(data: DataSettings, source: str, suffix: str) -> list[Path]:
    """Paths of the split's shards, sorted by name, for formats whose shards contain the images.

    Raises:
        SourceError: there are none, one has another suffix, or a setting is of another format.
    """
    found = source_files(data, source)
    if not found:
        raise no_files(data, source)
    for path in found:
        if path.suffix != suffix:
            raise SourceError(f"{path} is no {suffix} shard; set data.splits")
    if data.images or data.columns.sentences:
        raise SourceError(
            "data.images and data.columns.sentences say nothing of shards: they hold their images, "
            "and a caption is one text"
        )
    return found


def split_by_share(data: DataSettings, splits: Sequence[str], image: str) -> str:
    """Split of an image by the hash of its path, if several splits share one source file.

    Args:
        data: with a share of each of the splits.
        splits: our names of them.
        image: the image's path.
    """
    shares = [data.shares[split] for split in splits]
    place = digest(data.shares_seed, image) / 2**64 * sum(shares)
    # The last split also takes what rounding leaves over.
    bounds = zip(splits, accumulate(shares), strict=True)
    return next((split for split, bound in bounds if place < bound), splits[-1])


def rejected(sample_id: Any, image: Any, detail: str, rule: str = UNPARSEABLE) -> Rejected:
    """Rejected record for the quarantine; values that a table cannot hold are escaped."""
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


def _storable(value: Any) -> str:
    """A value as text that Parquet accepts, with lone surrogates escaped."""
    text = "" if value is None else str(value)
    return text.encode("utf-8", "backslashreplace").decode()
