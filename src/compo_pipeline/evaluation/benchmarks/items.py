"""Canonical benchmark items: what adapters produce from official files and protocols score."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

from compo_pipeline.configuration import SettingsError
from compo_pipeline.images.decoding import ACCEPTED, Limits, crop_name, is_there
from compo_pipeline.untrusted import (
    read_csv,
    read_json,
    read_json_lines,
    read_parquet,
    shown,
    text_problem,
)

ALL = "all"
"""Name of the only subtask, or of the average over the items of all subtasks."""
TITLES = "benchmarks.json"
FILES = ("*", "data/*")
"""Patterns of annotation files below the folder of a benchmark."""
_MOST_PIXELS = 10**8
"""More than an edge of any image that is opened."""

_READERS: Mapping[str, Callable[[Path], Any]] = {
    ".csv": read_csv,
    ".jsonl": read_json_lines,
    ".jsonlines": read_json_lines,
    ".parquet": read_parquet,
}

ImagePlace = tuple[Path, str, Limits]
"""A folder of images, the name of one below it, and what is accepted as an image."""


@dataclass(frozen=True, slots=True)
class Item:
    """One image with the texts that describe it and those that do not.

    `item` is unique in its subtask. `image` is a path under the subtask's image folder, or a crop
    of one (`images.decoding`). For zero-shot classification the only positive is the name of the
    class. `other_images` are not described by the positives, of average precision those after the
    first `right_images`; in a group of two images with a caption each, the only one is described
    by the only negative. In a joint item each image has a positive and an equal share of the
    negatives, in their order.
    """

    item: str
    image: str
    positives: tuple[str, ...]
    negatives: tuple[str, ...] = ()
    other_images: tuple[str, ...] = ()
    right_images: int = 1


@dataclass(frozen=True, slots=True)
class Subtask:
    """Items that are scored together, and the protocols that score them.

    `classes` and `templates` (with `{}` where the class goes) are those of zero-shot
    classification. `ties_right` says whether a tie is right in a choice; adapters say what it is in
    the official code. `ties_official` says whether that holds whatever `benchmarks.ties` says.
    `dropped` counts items of the files that the official code leaves out, by reason; `deviations`
    say in what else scoring differs from the official run. `title` is the benchmark's label in
    reports if its files are not the official ones ("SugarCrepe-style"). `limits` say what is
    accepted as an image.
    """

    benchmark: str
    name: str
    protocols: tuple[str, ...]
    images: Path
    items: tuple[Item, ...]
    classes: tuple[str, ...] = ()
    templates: tuple[str, ...] = ()
    ties_right: bool = False
    ties_official: bool = False
    # Not part of the items: they change no score.
    dropped: Mapping[str, int] = field(default_factory=dict, repr=False, compare=False)
    deviations: tuple[str, ...] = field(default=(), repr=False, compare=False)
    title: str | None = field(default=None, repr=False, compare=False)
    limits: Limits = field(default=Limits(), repr=False, compare=False)

    def texts(self, unreadable: Container[str] = ()) -> Iterator[str]:
        """Every text that a model must encode to score the items, repeats included.

        Args:
            unreadable: paths without a usable image; the texts of such items are left out where
                every protocol needs the image.
        """
        if self.classes:
            for name in self.classes:
                yield from self.prompts(name)
            return
        for item in self.items:
            if "text_only" in self.protocols or not any(
                str(path) in unreadable for path in self.paths(item)
            ):
                yield from item.positives
                yield from item.negatives

    def prompts(self, name: str) -> tuple[str, ...]:
        """The templates filled with a class."""
        return tuple(template.replace("{}", name) for template in self.templates)

    def path(self, item: Item) -> Path:
        """Path of an item's image, which may lead anywhere: `place` opens it."""
        return self.images / item.image

    def paths(self, item: Item) -> tuple[Path, ...]:
        """Paths of an item's image and of its other images."""
        return tuple(self.images / image for image in (item.image, *item.other_images))

    def places(self, item: Item) -> tuple[ImagePlace, ...]:
        """What `images.decoding` needs to open an item's image and its other images."""
        return tuple(
            (self.images, image, self.limits) for image in (item.image, *item.other_images)
        )

    def place(self, item: Item) -> ImagePlace:
        """What `images.decoding` needs to open an item's image."""
        return self.places(item)[0]


def items_by_key(subtasks: Iterable[Subtask]) -> dict[tuple[str, str, str], Item]:
    """Items by benchmark, subtask and name."""
    return {
        (task.benchmark, task.name, item.item): item for task in subtasks for item in task.items
    }


def set_of(name: str) -> str:
    """The set of a subtask named `<set>/<part>`; other subtasks are a set of their own."""
    return name.partition("/")[0]


def sets_of(subtasks: Iterable[Subtask]) -> dict[tuple[str, str], list[Subtask]]:
    """Subtasks by benchmark and set."""
    found: dict[tuple[str, str], list[Subtask]] = {}
    for task in subtasks:
        found.setdefault((task.benchmark, set_of(task.name)), []).append(task)
    return found


@dataclass(frozen=True, slots=True)
class Mean:
    """A mean of parts: of subtasks, by name, or of other means; without parts, of every subtask.

    Each part weighs the same; with `by_items`, as much as it has items. A set of subtasks
    (`<set>/<part>`) is named as one.
    """

    parts: tuple[str | Mean, ...]
    by_items: bool = False

    @property
    def subtasks(self) -> tuple[str, ...]:
        """The names of all subtasks in it."""
        names = [(part,) if isinstance(part, str) else part.subtasks for part in self.parts]
        return tuple(name for part in names for name in part)

    def over(self, sets: Mapping[str, Mean]) -> Mean:
        """The same mean with each name replaced by the mean that has it."""
        parts = self.parts or tuple(sets)
        whole = (sets[part] if isinstance(part, str) else part.over(sets) for part in parts)
        return Mean(tuple(whole), self.by_items)

    def weights(self, items: Mapping[str, int]) -> dict[str, float]:
        """The weight of each subtask; their sum is 1.

        Args:
            items: number of items of each subtask.
        """
        found: dict[str, float] = defaultdict(float)
        for part in self.parts:
            shares = {part: 1.0} if isinstance(part, str) else part.weights(items)
            size = sum(items[name] for name in shares) if self.by_items else 1
            for name, share in shares.items():
                found[name] += size * share
        total = sum(found.values()) or 1.0
        return {name: weight / total for name, weight in found.items()}


def mean_of_set(subtasks: Iterable[str], depth: int = 1) -> Mean:
    """The mean over the parts of a set, in which a part with further parts is the mean of these.

    Args:
        subtasks: names of one set, `<set>/<part>` or `<set>/<part>/<further part>`.
        depth: of the parts, 1 for those of the set itself.
    """
    parts: dict[str, list[str]] = {}
    for name in subtasks:
        parts.setdefault("/".join(name.split("/")[: depth + 1]), []).append(name)
    return Mean(
        tuple(
            part if names == [part] else mean_of_set(names, depth + 1)
            for part, names in parts.items()
        )
    )


@dataclass(frozen=True, slots=True)
class Benchmark:
    """A benchmark: its adapter, and the metrics that reports show of it.

    `load(root, images)` reads its annotation files, in the folder `root`; None for retrieval, which
    reads the dataset's own captions. `headline` says whether a summary shows a metric of a subtask
    or average. `averages` maps a metric to its averages, as the papers make them. `source` says
    where the files come from. `ties_right` says how its official code counts a tie. `files` are the
    patterns of its annotation files below `root`. `official_items` is the number of items of a
    subtask that its official run takes, of those whose images are there; None for all. Of such a
    benchmark `benchmarks.sets.<name>.items` counts these too.
    """

    name: str
    label: str
    load: Callable[[Path, Path], list[Subtask]] | None
    headline: Callable[[str, str], bool]
    averages: Mapping[str, Mapping[str, Mean]] = field(default_factory=dict)
    source: str = ""
    ties_right: bool = False
    files: tuple[str, ...] = FILES
    official_items: int | None = None


def titles(subtasks: Iterable[Subtask]) -> dict[str, str]:
    """Labels of the benchmarks whose files are not the official ones."""
    return {task.benchmark: task.title for task in subtasks if task.title}


def custom_titles(root: Path) -> dict[str, str]:
    """Labels of benchmarks whose files are not the official ones, from `benchmarks.json`.

    Official files come without it. Self-made files in an official format need it beside their
    folders: {"source": "...", "titles": {"sugar_crepe": "SugarCrepe-style"}}.

    Raises:
        SettingsError: the file has another format.
    """
    path = root / TITLES
    if not path.is_file():
        return {}
    content = read_content(path)
    found = content.get("titles") if isinstance(content, dict) else None
    if not isinstance(found, dict):
        raise SettingsError(f'{path}: expected {{"titles": {{...}}}}, got {shown(content)}')
    return {str(name): str(title) for name, title in found.items()}


class Record(NamedTuple):
    """What a file or a part of it holds, with its name in the file and its place for messages.

    The methods read a field; they raise a SettingsError that names the place where there is none of
    that kind.
    """

    name: str
    where: str
    content: Any

    def get(self, key: str, default: Any = None) -> Any:
        """A field, unchecked; the default where there is none."""
        return self.content.get(key, default) if isinstance(self.content, dict) else default

    def part(self, key: str, value: Any) -> Record:
        """A record of one field, at the same place."""
        return self._replace(content={key: value})

    def records(self, noun: str = "item") -> list[Record]:
        """The records of which it is a list, by their number, or a mapping, by their key."""
        content = self.content
        entries = content.items() if isinstance(content, dict) else enumerate(content)
        return [Record(f"{key}", f"{self.where}, {noun} {key}", value) for key, value in entries]

    def text(self, key: str) -> str:
        """A text that is not blank."""
        value = self.get(key)
        if not isinstance(value, str) or not value.strip() or text_problem(value):
            raise SettingsError(
                f"{self.where}: expected a text '{key}', got {shown(self.content)}; is it this "
                "format?"
            )
        return value

    def texts(self, key: str, least: int = 1) -> tuple[str, ...]:
        """A list of `least` or more texts; in a CSV as Python writes it."""
        value = self.get(key)
        if isinstance(value, str):
            try:
                value = ast.literal_eval(value)
            except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
                value = None
        if not isinstance(value, list) or len(value) < least:
            raise SettingsError(
                f"{self.where}: expected {least} or more '{key}', got {shown(self.content)}"
            )
        return tuple(self.part(key, text).text(key) for text in value)

    def listed(self, key: str, noun: str) -> list[Record]:
        """The records of a list that is not empty."""
        value = self.get(key)
        if not isinstance(value, list) or not value:
            raise SettingsError(f"{self.where}: expected a list '{key}', got {shown(value)}")
        return self._replace(content=value).records(noun)

    def place(self, key: str, count: int) -> int:
        """A place, from 0, among `count` candidates."""
        value = self.get(key)
        if str(value) not in map(str, range(count)):
            raise SettingsError(
                f"{self.where}: expected '{key}' from 0 to {count - 1}, got {shown(value)}"
            )
        return int(str(value))

    def crop(self, image: str, keys: Sequence[str]) -> str:
        """The name of the part of an image that is in the record's box.

        Edges between pixels are rounded as by Pillow's `crop`, which the official code calls.

        Args:
            image: name of the whole image.
            keys: of the left edge, top edge, width and height of the box, in pixels.
        """
        edges = []
        for key in keys:
            value = self.get(key)
            try:
                edges.append(_pixels(value))
            except (TypeError, ValueError) as error:
                raise SettingsError(
                    f"{self.where}: expected '{key}', pixels, got {shown(value)}"
                ) from error
        x, y, width, height = edges
        left, top = round(x), round(y)
        return crop_name(image, left, top, round(x + width) - left, round(y + height) - top)


def _pixels(value: Any) -> float:
    """A number of pixels, which may be a text and a fraction.

    Raises:
        ValueError, TypeError: it is none, or more than any image has.
    """
    pixels = float(value)
    if isinstance(value, bool) or not abs(pixels) < _MOST_PIXELS:
        raise ValueError
    return pixels


def read_files(root: Path, *patterns: str, kind: type = list) -> list[Record]:
    """The content of files of CSV with a header, JSON, JSON lines or Parquet, each as a record.

    Args:
        root: folder of the files; where there are none, those in its folder `data` are read.
        patterns: of their names; a file's subtask is named as it is, without its ending.
        kind: what each file holds, `dict` or `list`.

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
    """The files of a folder that match a pattern; where there are none, those of its `data`."""
    for folder in (root, root / "data"):
        if found := sorted(file for pattern in patterns for file in folder.glob(pattern)):
            return found
    return []


def read_file(file: Path, kind: type = list) -> Record:
    """The content of one of the files that `read_files` reads.

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
    """Subtasks of items that come with the name of theirs."""
    found: dict[str, list[Item]] = {}
    for name, item in items:
        found.setdefault(name, []).append(item)
    return [
        Subtask(benchmark, name, (protocol,), images, tuple(members))
        for name, members in found.items()
    ]


def tail_of(name: str, images: Path) -> str:
    """The longest tail of a path that is a file below a folder; without any, its last part.

    Args:
        name: a path or an address, as the authors' machine had it.
        images: folder of the images here.
    """
    parts = [part for part in PurePosixPath(name).parts if part not in ("/", "..")]
    tails = ["/".join(parts[start:]) for start in range(len(parts))] or [name]
    return next((tail for tail in tails if is_there(images, tail, ACCEPTED)), tails[-1])


def read_content(path: Path) -> Any:
    """The content of a file in one of the formats that are read here, by its ending.

    Raises:
        SettingsError: it cannot be read.
    """
    try:
        return _READERS.get(path.suffix, read_json)(path)
    except ValueError as error:
        raise SettingsError(str(error)) from error
