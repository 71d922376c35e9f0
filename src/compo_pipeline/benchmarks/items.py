"""Canonical benchmark items, which adapters produce from official files and protocols score, and
averages over their subtasks.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from compo_pipeline.data.images.decoding import Limits

Key = tuple[str, str, str]
"""(benchmark, metric, subtask), as in the scores table."""

ALL = "all"
"""Name of the only subtask, or of the average over the items of all subtasks."""


def set_of(name: str) -> str:
    """Name of the set that a subtask belongs to: the part before "/", or the whole name."""
    return name.partition("/")[0]


@dataclass(frozen=True, slots=True)
class Mean:
    """Definition of a mean over subtasks or over other means, weighted equally or by items.

    Without parts it is of every subtask.

    Each part weighs the same; with `by_items`, as much as it has items. A set of subtasks
    (`<set>/<part>`) is named as one.
    """

    parts: tuple[str | Mean, ...]
    by_items: bool = False

    @property
    def subtasks(self) -> tuple[str, ...]:
        """Names of all subtasks that the mean averages, directly or through other means."""
        names = [(part,) if isinstance(part, str) else part.subtasks for part in self.parts]
        return tuple(name for part in names for name in part)

    def resolve(self, sets: Mapping[str, Mean]) -> Mean:
        """The same mean, in which each name of a set is replaced by the set's own mean."""
        parts = self.parts or tuple(sets)
        whole = (sets[part] if isinstance(part, str) else part.resolve(sets) for part in parts)
        return Mean(tuple(whole), self.by_items)

    def weights(self, items: Mapping[str, int]) -> dict[str, float]:
        """Weight of each subtask in the mean.

        The weights sum to 1.

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
    """Equally weighted mean over a set's parts.

    A part with further parts is a mean itself.

    Args:
        subtasks: names of one set, `<set>/<part>` or `<set>/<part>/<further part>`.
        depth: depth of the parts, 1 for those of the set itself.
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


FILES = ("*", "data/*")
"""Patterns of annotation files below the folder of a benchmark."""

Role = Literal["composition", "retrieval", "zero_shot"]
"""What the metrics of a benchmark measure: compositional understanding, retrieval, or zero-shot
classification."""

ImagePlace = tuple[Path, str, Limits]
"""A folder of images, the name of one below it, and what is accepted as an image."""


@dataclass(frozen=True, slots=True)
class Item:
    """Benchmark item: an image, texts that describe it, and texts or images that do not match.

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
    """Part of a benchmark: items that are scored together, and the scoring protocols.

    `classes` and `templates` (with `{}` where the class goes) are those of zero-shot
    classification. `ties_right` says whether a tie is right in a choice; adapters say what it is in
    the official code. `ties_official` says whether that holds whatever `benchmarks.ties` says.
    `dropped` counts items of the files that the official code leaves out, by reason; `deviations`
    say in what else scoring differs from the official run. `official_draw` is the number of items
    that a paper draws of it as they are drawn here, None where no paper is known to. `title` is the
    benchmark's label in reports if its files are not the official ones ("SugarCrepe-style").
    `limits` say what is accepted as an image. `source` is the split, or set of foils, of the
    dataset whose items they are; of a benchmark's files it is their folder.
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
    official_draw: int | None = field(default=None, repr=False, compare=False)
    title: str | None = field(default=None, repr=False, compare=False)
    limits: Limits = field(default=Limits(), repr=False, compare=False)
    source: str = field(default="", repr=False, compare=False)

    def texts(self, unreadable: Container[str] = ()) -> Iterator[str]:
        """Every text to encode for scoring the items, with repeats.

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
                path in unreadable for path in self.paths(item)
            ):
                yield from item.positives
                yield from item.negatives

    def prompts(self, name: str) -> tuple[str, ...]:
        """Zero-shot prompts of a class: each template filled with its name."""
        return tuple(template.replace("{}", name) for template in self.templates)

    def path(self, item: Item) -> Path:
        """Path of an item's image, not checked for links that lead out of the folder.

        `image_locations` is for opening it.
        """
        return self.images / item.image

    def paths(self, item: Item) -> list[str]:
        """Paths of an item's image and its further images, without a check for links."""
        # Text: of a million items, Path objects take longer than their scores.
        folder = str(self.images)
        return [f"{folder}/{image}" for image in (item.image, *item.other_images)]

    def image_locations(self, item: Item) -> tuple[ImagePlace, ...]:
        """Folder, file name and `Limits` with which each of an item's image files is opened.

        The first is the item's image, then come the other images.
        """
        return tuple(
            (self.images, image, self.limits) for image in (item.image, *item.other_images)
        )


def items_by_key(subtasks: Iterable[Subtask]) -> dict[tuple[str, str, str], Item]:
    """Items of subtasks by (benchmark, subtask, item name)."""
    return {
        (task.benchmark, task.name, item.item): item for task in subtasks for item in task.items
    }


def sets_of(subtasks: Iterable[Subtask]) -> dict[tuple[str, str], list[Subtask]]:
    """Subtasks grouped by benchmark and by their set (the part of the name before "/")."""
    found: dict[tuple[str, str], list[Subtask]] = {}
    for task in subtasks:
        found.setdefault((task.benchmark, set_of(task.name)), []).append(task)
    return found


# Of sources that several benchmarks ask about.
COCO_PHOTOS = "each photo's own, on Flickr (cocodataset.org: terms of use)"
FLICKR_PHOTOS = "each photo's own, on Flickr; for research (the authors' form)"


@dataclass(frozen=True, slots=True)
class Benchmark:
    """Declaration of a benchmark: loading function, averages, headline metrics and sources.

    `role` says what its metrics measure. `load(root, images)` reads its annotation files, in the
    folder `root`; None for retrieval and foils, which are of the dataset's own captions. `headline`
    says whether a summary shows a metric of a subtask or average. `averages` maps a metric to its
    averages, as the papers make them. `source` says where the files come from. `ties_right` says
    how its official code counts a tie. `files` are the patterns of its annotation files below
    `root`. `official_items` is the number of items of a subtask that its official run takes, of
    those whose images are there; None for all. Of such a benchmark `benchmarks.sets.<name>.items`
    counts these too. `subtask_in_label` says where a subtask's name stands in the label of a
    metric; those of `unnamed` are in none. `download` has size and licences. `parts` are its sets
    of subtasks, where they are not those of its `averages`. `has_official_files` is false of a
    format whose files are always of one's own.
    """

    name: str
    role: Role
    label: str
    load: Callable[[Path, Path], list[Subtask]] | None
    headline: Callable[[str, str], bool]
    averages: Mapping[str, Mapping[str, Mean]] = field(default_factory=dict)
    source: str = ""
    ties_right: bool = False
    files: tuple[str, ...] = FILES
    official_items: int | None = None
    subtask_in_label: Literal["last", "first"] = "last"
    unnamed: tuple[str, ...] = (ALL,)
    download: str = ""
    parts: tuple[str, ...] = ()
    has_official_files: bool = True

    @property
    def all_parts(self) -> tuple[str, ...]:
        """Names of the sets of subtasks in the benchmark's complete files, if they are known."""
        averages = (mean for means in self.averages.values() for mean in means.values())
        return self.parts or tuple(
            dict.fromkeys(name for mean in averages for name in mean.subtasks)
        )


def titles(subtasks: Iterable[Subtask]) -> dict[str, str]:
    """Display titles by benchmark name, for benchmarks whose items are not the official files'."""
    return {task.benchmark: task.title for task in subtasks if task.title}


def sources(subtasks: Iterable[Subtask]) -> dict[str, str]:
    """Folder, or split of the dataset, that the items of each benchmark were loaded from."""
    return {task.benchmark: task.source for task in subtasks}
