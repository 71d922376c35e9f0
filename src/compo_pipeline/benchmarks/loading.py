"""Loading of the benchmarks that are switched on, and which of their files and images are there."""

from __future__ import annotations

import logging
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from compo_pipeline.benchmarks import foils as foils_of_captions
from compo_pipeline.benchmarks import retrieval
from compo_pipeline.benchmarks.files import read_content
from compo_pipeline.benchmarks.items import Benchmark, ImagePlace, Item, Subtask, sets_of
from compo_pipeline.benchmarks.settings import BENCHMARKS, BenchmarkSet, BenchmarksSettings
from compo_pipeline.benchmarks.suites import enabled_sets
from compo_pipeline.core.records import Caption, Foil
from compo_pipeline.core.settings import SettingsError, nearest
from compo_pipeline.core.untrusted import OutsideRoot, files_below, shown, text_problem
from compo_pipeline.data.images.decoding import ACCEPTED, Limits, is_there

TITLES = "benchmarks.json"
# A key of `benchmarks` in an error's message.
_KEY = re.compile(
    r"(?<![\w./])benchmarks\.(?=sets\.|root|images|suite|retrieval\.|foils\.|follow_symlinks)"
)

log = logging.getLogger(__name__)


class BenchmarkFolders(NamedTuple):
    """An enabled benchmark with the folders of its annotation files and images."""

    benchmark: Benchmark
    root: Path
    images: Path
    files: BenchmarkSet

    @property
    def exists(self) -> bool:
        """Whether the folder of the annotation files exists."""
        return self.root.is_dir()

    @property
    def is_left_out(self) -> bool:
        """Whether the benchmark is optional and its folder of annotation files is absent."""
        return bool(self.files.optional) and not self.exists


def with_yaml_key(message: str, key: str) -> str:
    """An error message in which the key `benchmarks` is replaced by another YAML key."""
    return _KEY.sub(f"{key}.", message)


def enabled_folders(settings: BenchmarksSettings) -> list[BenchmarkFolders]:
    """Enabled benchmarks that are read from files, with their folders, which may not exist.

    Raises:
        SettingsError: a name is not one of a benchmark or suite.
    """
    known = [name for name, benchmark in BENCHMARKS.items() if benchmark.load is not None]
    found = []
    for name, files in enabled_sets(settings).items():
        if name not in known:
            raise SettingsError(
                f"benchmarks.sets.{name}: there is no benchmark '{name}'{nearest(name, known)} "
                f"(allowed: {', '.join(known)})"
            )
        folder = files.root or (settings.root and f"{settings.root}/{name}")
        if not folder:
            continue
        images = (
            files.images or settings.images or _image_folder(Path(folder), own=bool(files.root))
        )
        found.append(BenchmarkFolders(BENCHMARKS[name], Path(folder), Path(images), files))
    return found


def _image_folder(folder: Path, *, own: bool) -> Path:
    """Image folder of a benchmark: `images` in its own folder, or else beside that folder.

    Args:
        folder: folder of the annotation files.
        own: whether it is named by itself, not below `benchmarks.root`: then nothing is beside it.
    """
    inside = folder / "images"
    return inside if own or inside.is_dir() else folder.parent / "images"


def from_files(settings: BenchmarksSettings) -> list[Subtask]:
    """Load the subtasks of all enabled benchmarks that are read from files.

    Raises:
        SettingsError: one of them has no files, or one that cannot be used; names file and item.
            Or none of the suite is there, or the folder of all.
    """
    chosen = enabled_folders(settings)
    if absent := [place for place in chosen if place.is_left_out]:
        folders = ", ".join(f"{place.benchmark.label} ({place.root})" for place in absent)
        wrong_root = settings.root is not None and not Path(settings.root).is_dir()
        if len(absent) == len(chosen) and (wrong_root or settings.suite is not None):
            raise SettingsError(
                f"benchmarks.{'root' if wrong_root else 'suite'}: nothing is there: {folders}. "
                "`compo-pipeline benchmarks` says where the files are from; where there are none, "
                "benchmarks.root=null"
            )
        log.warning("Not run, as there is no such folder: %s.", folders)
    return [
        task for place in chosen if place not in absent for task in load_benchmark(place, settings)
    ]


def sources(settings: BenchmarksSettings) -> dict[str, str]:
    """Folder, or split of the dataset, from which each enabled benchmark would be loaded.

    Raises:
        SettingsError: a name is not one of a benchmark or suite.
    """
    found = {place.benchmark.name: str(place.root) for place in enabled_folders(settings)}
    own = {retrieval.NAME: settings.retrieval.split, foils_of_captions.NAME: settings.foils.split}
    return found | {name: split for name, split in own.items() if split is not None}


def not_run_labels(settings: BenchmarksSettings) -> tuple[str, ...]:
    """Labels of the optional benchmarks whose folders of annotation files are absent."""
    return tuple(place.benchmark.label for place in enabled_folders(settings) if place.is_left_out)


def load_benchmark(place: BenchmarkFolders, settings: BenchmarksSettings) -> list[Subtask]:
    """Load the subtasks of one benchmark from its folders, and check them.

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
    title = _unofficial_title(place, settings)
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
    return [_limit_items(subtask, place) for subtask in found]


def official_benchmarks(settings: BenchmarksSettings) -> list[str]:
    """Names of the enabled benchmarks whose official files are there.

    Raises:
        SettingsError: a name is not one of a benchmark, or `benchmarks.json` cannot be read.
    """
    chosen = enabled_folders(settings)
    found = (one for one in chosen if one.exists and one.benchmark.has_official_files)
    return [place.benchmark.name for place in found if _unofficial_title(place, settings) is None]


def _unofficial_title(place: BenchmarkFolders, settings: BenchmarksSettings) -> str | None:
    """Label for unofficial files from `benchmarks.json`, or None for official ones.

    Official files come without it. Self-made files in an official format need it beside their
    folders: {"source": "...", "titles": {"sugar_crepe": "SugarCrepe-style"}}.
    """
    path = place.root.parent / TITLES
    if settings.root is None or place.files.root:
        return None
    _refuse_links(place.root.parent, TITLES, settings)
    if not path.is_file():
        return None
    content = read_content(path)
    found = content.get("titles") if isinstance(content, dict) else None
    if not isinstance(found, dict):
        raise SettingsError(f'{path}: expected {{"titles": {{...}}}}, got {shown(content)}')
    return str(title) if (title := found.get(place.benchmark.name)) is not None else None


def _with_ties(subtask: Subtask, place: BenchmarkFolders, ties: str) -> Subtask:
    """The subtask with the rule for ties that `benchmarks.ties` configures."""
    right = place.benchmark.ties_right or subtask.ties_right
    if not right or ties == "official" or subtask.ties_official:
        return replace(subtask, ties_right=right)
    deviation = "a tie is wrong, in the official code it is right (benchmarks.ties=official)"
    return replace(subtask, ties_right=False, deviations=(*subtask.deviations, deviation))


def _check_items(name: str, settings: BenchmarksSettings, subtasks: Iterable[Subtask]) -> None:
    """Raise an error if `items` of the settings names a subtask that does not exist."""
    own, known = settings.sets.get(name), sorted(subtask.name for subtask in subtasks)
    wanted = own.items if own is not None and isinstance(own.items, Mapping) else {}
    for subtask in wanted:
        if subtask not in known:
            raise SettingsError(
                f"benchmarks.sets.{name}.items: there is no subtask '{subtask}'"
                f"{nearest(subtask, known)} (there are {', '.join(known)})"
            )


def _limit_items(subtask: Subtask, place: BenchmarkFolders) -> Subtask:
    """The subtask cut to the configured number of items.

    Deviations from the official run are noted.
    """
    count, official = place.files.items, place.benchmark.official_items
    if isinstance(count, Mapping):
        count = count.get(subtask.name)
    if count is None:
        return subtask
    if official is not None:
        limited, limit = _first_with_images(subtask, count), f"at most {count} items a subtask"
    else:
        official = subtask.official_draw
        limited = replace(subtask, items=_draw_items(subtask.items, count))
        limit = f"{count} items a subtask are drawn at random by us"
    if count == official or len(subtask.items) <= count:
        return limited
    deviation = f"{limit} (benchmarks.sets.{place.benchmark.name}.items)"
    return replace(limited, deviations=(*subtask.deviations, deviation))


def _draw_items(items: Sequence[Item], count: int) -> tuple[Item, ...]:
    """Draw items at random with a fixed seed, as CLIC's evaluation does, and keep their order.

    As in CLIC's evaluation (`shuffle_and_select` of github.com/AmitPeleg/CLIC, eval/eval_utils.py
    lines 9 to 16, under `--seed` 1 of eval/general_eval.py): the first ones after a shuffle by
    NumPy's legacy generator, whose stream is frozen.
    """
    places = list(range(len(items)))
    np.random.RandomState(1).shuffle(places)
    return tuple(items[place] for place in sorted(places[:count]))


def _first_with_images(subtask: Subtask, count: int) -> Subtask:
    """The subtask cut to its first `count` items whose image files all exist.

    Those without one before them are counted as dropped.

    Raises:
        SettingsError: no item has its image.
    """
    found: list[Item] = []
    passed = 0
    for item in subtask.items:
        if all(is_there(*place) for place in subtask.image_locations(item)):
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
    """Raise an error if benchmark files are links out of their folder, unless settings allow it."""
    try:
        files_below(root, pattern, follow_symlinks=settings.follow_symlinks)
    except OutsideRoot as error:
        raise SettingsError(
            f"benchmarks.root: {error}; copy it there, or set benchmarks.follow_symlinks=true"
        ) from error


def _check_names(subtask: Subtask) -> None:
    """Raise an error if a subtask has no items, or two items with one name."""
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
    """Load the subtasks of foils, if the settings name a split of foils."""
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
    """Load all enabled subtasks: benchmarks from files, foils and retrieval.

    Args:
        settings: settings of the benchmarks to load.
        captions: the dataset's own captions, for retrieval.
        data_root: folder that the captions' image paths are relative to.
        foils: foils of the dataset's own captions.

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
