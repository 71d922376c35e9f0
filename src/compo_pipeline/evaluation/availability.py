"""Which benchmarks can be scored: files, items and images that are there."""

from __future__ import annotations

from dataclasses import dataclass, replace

from compo_pipeline.benchmarks.items import sets_of
from compo_pipeline.benchmarks.loading import Place, load_place, places
from compo_pipeline.benchmarks.registry import BENCHMARKS
from compo_pipeline.benchmarks.settings import BenchmarksSettings
from compo_pipeline.configuration.settings import SettingsError
from compo_pipeline.images.decoding import is_there


@dataclass(frozen=True, slots=True)
class Available:
    """What is there of a benchmark. `problem` is empty if it can be scored."""

    name: str
    label: str
    source: str
    enabled: bool = False
    subtasks: int = 0
    items: int = 0
    images: int = 0
    missing_images: int = 0
    problem: str = ""


def available(settings: BenchmarksSettings) -> list[Available]:
    """What is there of every known benchmark that is read from files."""
    enabled = {place.benchmark.name: place for place in places(settings)}
    found = []
    for name, benchmark in BENCHMARKS.items():
        if name in enabled:
            found.append(_inspected(enabled[name], settings))
        elif benchmark.load is not None:
            found.append(Available(name, benchmark.label, benchmark.source))
    return found


def _inspected(place: Place, settings: BenchmarksSettings) -> Available:
    """The counts of a benchmark's items and images, or why it cannot be scored."""
    name, label, source = place.benchmark.name, place.benchmark.label, place.benchmark.source
    plain = Available(name, label, source, enabled=True)
    try:
        subtasks = load_place(place, settings)
    except SettingsError as error:
        return replace(plain, problem=error.message)
    images = {each for task in subtasks for item in task.items for each in task.places(item)}
    missing = sum(not is_there(*each) for each in images)
    folders = dict.fromkeys(str(task.images) for task in subtasks)
    return replace(
        plain,
        subtasks=len(sets_of(subtasks)),
        items=sum(len(task.items) for task in subtasks),
        images=len(images),
        missing_images=missing,
        problem=f"none of the images is below {' or '.join(folders)}"
        if missing == len(images)
        else "",
    )
