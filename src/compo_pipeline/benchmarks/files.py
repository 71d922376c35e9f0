"""Annotation files of benchmarks: reading them into records, and records into items."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

from compo_pipeline.benchmarks.items import Item, Subtask
from compo_pipeline.core.settings import SettingsError
from compo_pipeline.core.untrusted import (
    parse_list,
    read_csv,
    read_json,
    read_json_lines,
    read_lines,
    read_parquet,
    shown,
    text_problem,
)
from compo_pipeline.data.images.decoding import ACCEPTED, crop_name, is_there

_MOST_PIXELS = 10**8
"""More than an edge of any image that is opened."""

_READERS: Mapping[str, Callable[[Path], Any]] = {
    ".csv": read_csv,
    ".jsonl": read_json_lines,
    ".jsonlines": read_json_lines,
    ".parquet": read_parquet,
    ".txt": read_lines,
}


class Record(NamedTuple):
    """Content of a file or of one entry, with its name, and its location for error messages.

    The methods read a field; they raise a SettingsError that names the place where there is none of
    that kind.
    """

    name: str
    where: str
    content: Any

    def get(self, key: str, default: Any = None) -> Any:
        """Unchecked value of a field, or the default if the field is missing."""
        return self.content.get(key, default) if isinstance(self.content, dict) else default

    def with_field(self, key: str, value: Any) -> Record:
        """Record whose only content is a given field, with this record's location for errors."""
        return self._replace(content={key: value})

    def records(self, noun: str = "item") -> list[Record]:
        """Entries of the content as records: list items by number, mapping values by key."""
        content = self.content
        entries = content.items() if isinstance(content, dict) else enumerate(content)
        return [Record(f"{key}", f"{self.where}, {noun} {key}", value) for key, value in entries]

    def text(self, key: str) -> str:
        """Value of a field as non-blank text.

        Raises an error for any other value.
        """
        value = self.get(key)
        if not isinstance(value, str) or not value.strip() or text_problem(value):
            raise SettingsError(
                f"{self.where}: expected a text '{key}', got {shown(self.content)}; is it this "
                "format?"
            )
        return value

    def texts(self, key: str, least: int = 1) -> tuple[str, ...]:
        """Value of a field as a list of at least `least` non-blank texts.

        In a CSV file the list is written as in Python.
        """
        value = self.get(key)
        if isinstance(value, str):
            value = parse_list(value)
        if not isinstance(value, list) or len(value) < least:
            raise SettingsError(
                f"{self.where}: expected {least} or more '{key}', got {shown(self.content)}"
            )
        return tuple(self.with_field(key, text).text(key) for text in value)

    def list_records(self, key: str, noun: str) -> list[Record]:
        """Entries of a field's non-empty list, as records."""
        value = self.get(key)
        if not isinstance(value, list) or not value:
            raise SettingsError(f"{self.where}: expected a list '{key}', got {shown(value)}")
        return self._replace(content=value).records(noun)

    def choice_index(self, key: str, count: int) -> int:
        """Value of a field as an index below `count`."""
        value = self.get(key)
        if str(value) not in map(str, range(count)):
            raise SettingsError(
                f"{self.where}: expected '{key}' from 0 to {count - 1}, got {shown(value)}"
            )
        return int(str(value))

    def crop(self, image: str, keys: Sequence[str]) -> str:
        """Name of an image crop, from the record's box in pixels.

        Edges between pixels are rounded as by Pillow's `crop`, which the official code calls.

        Args:
            image: name of the whole image.
            keys: keys of the left edge, top edge, width and height of the box, in pixels.
        """
        edges = []
        for key in keys:
            value = self.get(key)
            try:
                pixels = math.nan if isinstance(value, bool) else float(value)
            except (TypeError, ValueError, OverflowError):
                pixels = math.nan
            if not abs(pixels) < _MOST_PIXELS:
                raise SettingsError(f"{self.where}: expected '{key}', pixels, got {shown(value)}")
            edges.append(pixels)
        x, y, width, height = edges
        left, top = round(x), round(y)
        return crop_name(image, left, top, round(x + width) - left, round(y + height) - top)


def read_files(root: Path, *patterns: str, kind: type = list) -> list[Record]:
    """Read the files of a folder that match patterns (CSV, JSON, JSON lines, Parquet) as records.

    Args:
        root: folder of the files; where there are none, those in its folder `data` are read.
        patterns: glob patterns of the files. A subtask has the name of its file, without the
            ending.
        kind: type of each file's content, `dict` or `list`.

    Raises:
        SettingsError: there is no such file, two are of one subtask, or one cannot be read, is
            empty or holds something else.
    """
    files = files_of(root, *patterns)
    if not files:
        raise SettingsError(f"there is no {' or '.join(patterns)} in {root}")
    by_name: dict[str, Path] = {}
    for file in files:
        if (other := by_name.setdefault(file.stem, file)) != file:
            raise SettingsError(f"{other} and {file} are both the subtask {file.stem}: remove one")
    return [read_file(file, kind) for file in files]


def files_of(root: Path, *patterns: str) -> list[Path]:
    """Paths of a folder's files that match patterns, or else of files in its subfolder `data`."""
    for folder in (root, root / "data"):
        if found := sorted(file for pattern in patterns for file in folder.glob(pattern)):
            return found
    return []


def read_file(file: Path, kind: type = list) -> Record:
    """Read one CSV, JSON, JSON lines or Parquet file as a record.

    Raises:
        SettingsError: it cannot be read, is empty or holds something else.
    """
    content = read_content(file)
    if not isinstance(content, kind) or not content:
        raise SettingsError(f"{file}: expected a {kind.__name__} of items, got {shown(content)}")
    return Record(file.stem, f"{file}", content)


def subtasks_of(
    benchmark: str, protocol: str, images: Path, items: Iterable[tuple[str, Item]]
) -> list[Subtask]:
    """Group items by the name of their subtask into subtasks with one protocol."""
    found: dict[str, list[Item]] = {}
    for name, item in items:
        found.setdefault(name, []).append(item)
    return [
        Subtask(benchmark, name, (protocol,), images, tuple(members))
        for name, members in found.items()
    ]


def tail_of(name: str, images: Path) -> str:
    """Longest trailing part of a path that is a file in the image folder, else the last component.

    Args:
        name: a path or an address, as the authors' machine had it.
        images: folder of the images here.
    """
    parts = [part for part in PurePosixPath(name).parts if part not in ("/", "..")]
    tails = ["/".join(parts[start:]) for start in range(len(parts))] or [name]
    return next((tail for tail in tails if is_there(images, tail, ACCEPTED)), tails[-1])


def read_content(path: Path) -> Any:
    """Parsed content of a file, in the format that its ending names.

    Raises:
        SettingsError: it cannot be read.
    """
    try:
        return _READERS.get(path.suffix, read_json)(path)
    except ValueError as error:
        raise SettingsError(str(error)) from error
