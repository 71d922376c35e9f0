"""Availability of benchmarks: files, items and images that exist, and missing ones."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from compo_pipeline.benchmarks.items import Benchmark, ImagePlace, Subtask, sets_of
from compo_pipeline.benchmarks.loading import BenchmarkFolders, enabled_folders, load_benchmark
from compo_pipeline.benchmarks.registry import BENCHMARKS
from compo_pipeline.benchmarks.settings import BenchmarkSet, BenchmarksSettings
from compo_pipeline.core.settings import SettingsError
from compo_pipeline.data.images.decoding import is_there

_NAMED = 3


@dataclass(frozen=True, slots=True)
class BenchmarkAvailability:
    """Availability of a benchmark's files: numbers of items, of images and of missing images.

    Attributes:
        benchmark: benchmark of the registry.
        folder: folder where its annotation files are looked for. Empty if nowhere.
        enabled: whether it is scored.
        subtasks: number of its sets of subtasks.
        items: items of all subtasks.
        images: number of distinct images of the items.
        missing_parts: sets of subtasks whose annotation files are not there.
        missing: number of missing images, of all images, and examples, by set.
        absent: paths of all images that are not there.
        problem: why it cannot be scored; empty if it can.
    """

    benchmark: Benchmark
    folder: str = ""
    enabled: bool = False
    subtasks: int = 0
    items: int = 0
    images: int = 0
    missing_parts: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    absent: tuple[str, ...] = ()
    problem: str = ""

    @property
    def missing_images(self) -> int:
        """Number of images that are not there."""
        return len(self.absent)

    @property
    def state(self) -> str:
        """Availability as a short phrase, such as "ready" or "in part, not enabled"."""
        if self.problem:
            return self.problem
        if self.missing_parts or self.missing_images:
            return "in part" if self.enabled else "in part, not enabled"
        if not self.items:
            return "not there" if self.enabled else "not enabled"
        return "ready" if self.enabled else "there, not enabled"

    @property
    def lines(self) -> list[str]:
        """Lines that say which files are missing and where to get them, empty if all are there."""
        found = []
        if self.missing_parts:
            there, count = self.subtasks, self.subtasks + len(self.missing_parts)
            found.append(
                f"annotation files of {there} of {count} subtasks; missing: "
                f"{', '.join(self.missing_parts)}"
            )
        if self.missing_images:
            there = self.images - self.missing_images
            found.append(f"{there:,} of {self.images:,} images; missing: {'; '.join(self.missing)}")
        if found or self.problem or not self.items:
            found += filter(None, [f"from {self.benchmark.source}", self.benchmark.download])
        return found


def benchmark_availability(settings: BenchmarksSettings) -> list[BenchmarkAvailability]:
    """Availability of every benchmark that is read from files, the enabled ones first."""
    enabled = {place.benchmark.name: place for place in enabled_folders(settings)}
    found = [_inspect_benchmark(place, settings, enabled=True) for place in enabled.values()]
    for name, benchmark in BENCHMARKS.items():
        if name in enabled or benchmark.load is None:
            continue
        alone = replace(settings, suite=None, sets={name: BenchmarkSet(optional=True)})
        found += [
            _inspect_benchmark(place, settings, enabled=False) for place in enabled_folders(alone)
        ] or [BenchmarkAvailability(benchmark)]
    return found


def _inspect_benchmark(
    place: BenchmarkFolders, settings: BenchmarksSettings, *, enabled: bool
) -> BenchmarkAvailability:
    """Count a benchmark's items and images on disk, or note why it cannot be scored."""
    plain = BenchmarkAvailability(place.benchmark, f"{place.root}", enabled)
    if place.is_left_out:
        return plain
    try:
        subtasks = load_benchmark(place, settings)
    except SettingsError as error:
        return replace(plain, problem=error.message)
    there = {
        each: is_there(*each)
        for task in subtasks
        for item in task.items
        for each in task.image_locations(item)
    }
    sets = sets_of(subtasks)
    names = {name for _, name in sets} | {task.name for task in subtasks}
    folders = dict.fromkeys(str(task.images) for task in subtasks)
    absent = sum(not each for each in there.values())
    return replace(
        plain,
        subtasks=len(sets),
        items=sum(len(task.items) for task in subtasks),
        images=len(there),
        missing_parts=tuple(name for name in place.benchmark.all_parts if name not in names),
        missing=tuple(
            f"{name}: {text}"
            for (_, name), tasks in sets.items()
            if (text := _missing_images(tasks, there))
        ),
        absent=tuple(
            sorted(f"{root / name}" for (root, name, _), found in there.items() if not found)
        ),
        problem=f"none of the images is below {' or '.join(folders)}"
        if absent == len(there)
        else "",
    )


def _missing_images(tasks: Iterable[Subtask], there: Mapping[ImagePlace, bool]) -> str:
    """How many images of the subtasks are missing, with some of their names, empty if none is."""
    own = {each for task in tasks for item in task.items for each in task.image_locations(item)}
    absent = sorted(name for _, name, _ in (each for each in own if not there[each]))
    names = ", ".join(absent[:_NAMED]) + (", ..." if len(absent) > _NAMED else "")
    return f"{len(absent):,} of {len(own):,} ({names})" if absent else ""
