"""Loading of the benchmarks that are switched on: their places, files and items."""

from __future__ import annotations

import logging
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from compo_pipeline.benchmarks import foils as foils_of_captions
from compo_pipeline.benchmarks import retrieval
from compo_pipeline.benchmarks.files import TITLES, custom_titles
from compo_pipeline.benchmarks.items import Benchmark, Item, Subtask
from compo_pipeline.benchmarks.registry import BENCHMARKS
from compo_pipeline.benchmarks.settings import BenchmarkSet, BenchmarksSettings
from compo_pipeline.benchmarks.suites import members
from compo_pipeline.configuration.settings import SettingsError, nearest
from compo_pipeline.images.decoding import ACCEPTED, Limits, is_there
from compo_pipeline.storage.records import Caption, Foil
from compo_pipeline.storage.untrusted import OutsideRoot, files_below, shown, text_problem

# A key of `benchmarks` in an error's message.
_KEY = re.compile(
    r"(?<![\w./])benchmarks\.(?=sets\.|root|images|suite|retrieval\.|foils\.|follow_symlinks)"
)

log = logging.getLogger(__name__)


class Place(NamedTuple):
    """A benchmark that is switched on, and the folders of its files."""

    benchmark: Benchmark
    root: Path
    images: Path
    files: BenchmarkSet

    @property
    def exists(self) -> bool:
        """Whether the folder of its annotation files is there."""
        return self.root.is_dir()

    @property
    def is_left_out(self) -> bool:
        """Whether the folder of the annotation files is absent, and the benchmark is optional."""
        return bool(self.files.optional) and not self.exists

    def items_of(self, subtask: Subtask) -> int | None:
        """The number of items of a subtask to which it is limited; None for all of them."""
        items = self.files.items
        return items.get(subtask.name) if isinstance(items, Mapping) else items


def with_key(message: str, key: str) -> str:
    """Replace the key `benchmarks` in an error message by the YAML key that has these settings."""
    return _KEY.sub(f"{key}.", message)


def places(settings: BenchmarksSettings) -> list[Place]:
    """The enabled benchmarks that are read from files, with their folders, which may not exist.

    Raises:
        SettingsError: a name is not one of a benchmark or suite.
    """
    known = [name for name, benchmark in BENCHMARKS.items() if benchmark.load is not None]
    found = []
    for name, files in members(settings).items():
        if name not in known:
            key = f"sets.{name}" if name in settings.sets else f"suites.{settings.suite}"
            raise SettingsError(
                f"benchmarks.{key}: there is no benchmark '{name}'{nearest(name, known)} "
                f"(allowed: {', '.join(known)})"
            )
        folder = files.root or (settings.root and f"{settings.root}/{name}")
        if not folder:
            continue
        images = files.images or settings.images or _images_of(Path(folder), own=bool(files.root))
        found.append(Place(BENCHMARKS[name], Path(folder), Path(images), files))
    return found


def _images_of(folder: Path, *, own: bool) -> Path:
    """The folder `images` in that of a benchmark; where there is none, that beside it.

    Args:
        folder: of the annotation files.
        own: whether it is named by itself, not below `benchmarks.root`: then nothing is beside it.
    """
    inside = folder / "images"
    return inside if own or inside.is_dir() else folder.parent / "images"


def from_files(settings: BenchmarksSettings) -> list[Subtask]:
    """The subtasks of all benchmarks that are read from files and switched on.

    Raises:
        SettingsError: one of them has no files, or one that cannot be used; names file and item.
            Or none of the suite is there, or the folder of all.
    """
    chosen = places(settings)
    if absent := [place for place in chosen if place.is_left_out]:
        folders = ", ".join(f"{place.benchmark.label} ({place.root})" for place in absent)
        if settings.suite is not None and len(absent) == len(chosen):
            raise SettingsError(
                f"benchmarks.suite: nothing of {settings.suite} is there: {folders}. `kedro run "
                "--pipeline=benchmarks_available` says where its files are from; where there are "
                "none, benchmarks.root=null"
            )
        if len(absent) == len(chosen) and settings.root and not Path(settings.root).is_dir():
            raise SettingsError(
                f"benchmarks.root: there is no folder {absent[0].root}, nor one of another "
                "benchmark; where there are none, benchmarks.root=null"
            )
        log.warning("Not run, as there is no such folder: %s.", folders)
    return [task for place in chosen if place not in absent for task in load_place(place, settings)]


def sources(settings: BenchmarksSettings) -> dict[str, str]:
    """Where the items of each benchmark that is switched on will be from: `Subtask.source`.

    Raises:
        SettingsError: a name is not one of a benchmark or suite.
    """
    found = {place.benchmark.name: str(place.root) for place in places(settings)}
    own = {retrieval.NAME: settings.retrieval.split, foils_of_captions.NAME: settings.foils.split}
    return found | {name: split for name, split in own.items() if split is not None}


def not_run(settings: BenchmarksSettings) -> tuple[str, ...]:
    """Labels of the optional benchmarks whose folders are absent."""
    return tuple(place.benchmark.label for place in places(settings) if place.is_left_out)


def load_place(place: Place, settings: BenchmarksSettings) -> list[Subtask]:
    """The subtasks of one benchmark.

    Raises:
        SettingsError: it has no files, or one that cannot be used; names file and item.
    """
    name, load = place.benchmark.name, place.benchmark.load
    assert load is not None, f"{name} is not read from files"
    if not place.exists:
        others = "" if place.files.root else "; where there are none, benchmarks.root=null"
        raise SettingsError(
            f"benchmarks.sets.{name}: there is no folder {place.root}. Expected: "
            f"{place.benchmark.source}. Name the folder at benchmarks.sets.{name}.root, or leave "
            f"the benchmark out by benchmarks.sets.{name}=null{others}"
        )
    # A folder that is named by itself may be a link, one below `benchmarks.root` may not.
    base = place.root if place.files.root else place.root.parent
    for pattern in place.benchmark.files:
        _refuse_links(base, str(place.root.relative_to(base) / pattern), settings)
    title = _title(place, settings)
    try:
        subtasks = load(place.root, place.images)
    except SettingsError as error:
        line = " ".join(str(error).splitlines())  # ids of items may hold line breaks
        raise SettingsError(f"benchmarks.sets.{name}: {line}") from error
    if not subtasks:
        raise SettingsError(f"benchmarks.sets.{name}: {place.root} holds no items")
    for subtask in subtasks:
        _check_names(subtask)
    limits = Limits(follow_symlinks=settings.follow_symlinks, exif=settings.exif)
    source = str(place.root)
    found = [
        replace(
            _with_ties(subtask, place, settings.ties), title=title, limits=limits, source=source
        )
        for subtask in subtasks
    ]
    _check_items(name, settings, found)
    return [_limited(subtask, place) for subtask in found]


def official(settings: BenchmarksSettings) -> list[str]:
    """The benchmarks that are switched on and whose files are there and are the official ones.

    Raises:
        SettingsError: a name is not one of a benchmark, or `benchmarks.json` cannot be read.
    """
    chosen = places(settings)
    found = (one for one in chosen if one.exists and one.benchmark.has_official_files)
    return [place.benchmark.name for place in found if _title(place, settings) is None]


def _title(place: Place, settings: BenchmarksSettings) -> str | None:
    """The label of files that are not the official ones, from `benchmarks.json` beside them."""
    if settings.root is None or place.files.root:
        return None
    _refuse_links(place.root.parent, TITLES, settings)
    return custom_titles(place.root.parent).get(place.benchmark.name)


def _with_ties(subtask: Subtask, place: Place, ties: str) -> Subtask:
    """A subtask with the rule for ties of `benchmarks.ties`, in place of that of its adapter."""
    right = place.benchmark.ties_right or subtask.ties_right
    if not right or ties == "official" or subtask.ties_official:
        return replace(subtask, ties_right=right)
    deviation = "a tie is wrong, in the official code it is right (benchmarks.ties=official)"
    return replace(subtask, ties_right=False, deviations=(*subtask.deviations, deviation))


def _check_items(name: str, settings: BenchmarksSettings, subtasks: Iterable[Subtask]) -> None:
    """Refuse a number of items for a subtask that does not exist, unless a suite sets it."""
    own, known = settings.sets.get(name), sorted(subtask.name for subtask in subtasks)
    wanted = own.items if own is not None and isinstance(own.items, Mapping) else {}
    for subtask in wanted:
        if subtask not in known:
            raise SettingsError(
                f"benchmarks.sets.{name}.items: there is no subtask '{subtask}'"
                f"{nearest(subtask, known)} (there are {', '.join(known)})"
            )


def _limited(subtask: Subtask, place: Place) -> Subtask:
    """A subtask with as many items as settings allow, and how it then differs from the whole."""
    count, official = place.items_of(subtask), place.benchmark.official_items
    if count is None:
        return subtask
    if official is not None:
        limited, limit = _first_with_images(subtask, count), f"at most {count} items a subtask"
    else:
        official = subtask.official_draw
        limited = replace(subtask, items=_drawn(subtask.items, count))
        limit = f"{count} items a subtask are drawn at random by us"
    if count == official or len(subtask.items) <= count:
        return limited
    deviation = f"{limit} (benchmarks.sets.{place.benchmark.name}.items)"
    return replace(limited, deviations=(*subtask.deviations, deviation))


def _drawn(items: Sequence[Item], count: int) -> tuple[Item, ...]:
    """Items drawn at random, in the order of the files.

    As in CLIC's evaluation (`shuffle_and_select` of github.com/AmitPeleg/CLIC, eval/eval_utils.py
    lines 9 to 16, under `--seed` 1 of eval/general_eval.py): the first ones after a shuffle by
    NumPy's legacy generator, whose stream is frozen.
    """
    places = list(range(len(items)))
    np.random.RandomState(1).shuffle(places)
    return tuple(items[place] for place in sorted(places[:count]))


def _first_with_images(subtask: Subtask, count: int) -> Subtask:
    """A subtask of the first items whose images are there; those without one are dropped.

    Raises:
        SettingsError: no item has its image.
    """
    found: list[Item] = []
    passed = 0
    for item in subtask.items:
        if all(is_there(*place) for place in subtask.places(item)):
            found.append(item)
        else:
            passed += 1
        if len(found) == count:
            break
    if not found:
        raise SettingsError(
            f"benchmarks.sets.{subtask.benchmark}.items: no image of {subtask.name} is in "
            f"{subtask.images}; name their folder at benchmarks.sets.{subtask.benchmark}.images"
        )
    dropped = {**subtask.dropped, "no image is there": passed} if passed else subtask.dropped
    return replace(subtask, items=tuple(found), dropped=dropped)


def _refuse_links(root: Path, pattern: str, settings: BenchmarksSettings) -> None:
    """Refuse links in a benchmark's files that lead out of its folder, unless settings allow it."""
    try:
        files_below(root, pattern, follow_symlinks=settings.follow_symlinks)
    except OutsideRoot as error:
        raise SettingsError(
            f"benchmarks.root: {error}; copy it there, or set benchmarks.follow_symlinks=true"
        ) from error


def _check_names(subtask: Subtask) -> None:
    """Refuse a subtask without items, and two items of one name."""
    where = f"benchmarks.root: {subtask.benchmark}/{subtask.name}"
    if not subtask.items:
        raise SettingsError(f"{where}: there are no items")
    for name, count in Counter(item.item for item in subtask.items).items():
        if count > 1:
            raise SettingsError(f"{where}: {count} items have the id {shown(name)}")
        if problem := text_problem(name):
            raise SettingsError(f"{where}: the id {problem}")


def gather_foils(
    settings: BenchmarksSettings, foils: Iterable[Foil], data_root: Path
) -> list[Subtask]:
    """The kinds of foils that are scored; see `gather`."""
    if settings.foils.split is None:
        return []
    limits = replace(ACCEPTED, exif=settings.exif)
    return foils_of_captions.load(foils, settings.foils.split, data_root, limits)


def gather(
    settings: BenchmarksSettings,
    captions: Iterable[Caption],
    data_root: Path,
    foils: Iterable[Foil] = (),
) -> list[Subtask]:
    """All subtasks that are switched on.

    Args:
        settings: which benchmarks, and where.
        captions: the dataset's own captions, for retrieval.
        data_root: folder that the captions' image paths are relative to.
        foils: of the dataset's own captions.

    Raises:
        SettingsError: a benchmark that is on has no files or captions, or none is on.
    """
    subtasks = [*from_files(settings), *gather_foils(settings, foils, data_root)]
    if settings.retrieval.split is not None:
        limits = replace(ACCEPTED, exif=settings.exif)
        subtasks += retrieval.load(captions, data_root, settings.retrieval, limits)
    if not subtasks:
        raise SettingsError(
            "benchmarks: nothing is scored; name a split at benchmarks.retrieval.split or "
            "benchmarks.foils.split, of which a kind must be used, or the folder of benchmarks at "
            "benchmarks.root"
        )
    return subtasks
