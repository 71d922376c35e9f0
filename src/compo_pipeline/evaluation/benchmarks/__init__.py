"""Benchmarks: adapters from official files to the canonical table; no scoring here."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path

from compo_pipeline.configuration import SettingsError
from compo_pipeline.evaluation.benchmarks import (
    retrieval,
    sugar_crepe,
    sugar_crepe_pp,
    zero_shot,
)
from compo_pipeline.evaluation.benchmarks.items import Item, Subtask, stated_titles, titles
from compo_pipeline.evaluation.settings import BenchmarksSettings
from compo_pipeline.records import Caption

__all__ = ["Item", "Subtask", "from_files", "gather", "titles"]

# The benchmarks that live in files under `benchmarks.root`; each has a switch of its name.
FILES: dict[str, Callable[[Path, Path], list[Subtask]]] = {
    sugar_crepe.NAME: sugar_crepe.load,
    sugar_crepe_pp.NAME: sugar_crepe_pp.load,
    zero_shot.NAME: zero_shot.load,
}


def from_files(settings: BenchmarksSettings) -> list[Subtask]:
    """The subtasks of the benchmarks that come as files and are switched on.

    Raises:
        SettingsError: one of them has no files.
    """
    if settings.root is None:
        return []
    root = Path(settings.root)
    images = Path(settings.images) if settings.images else root / "images"
    stated = stated_titles(root)
    wanted = [load for name, load in FILES.items() if getattr(settings, name)]
    found = (subtask for load in wanted for subtask in load(root, images))
    return [replace(subtask, title=stated.get(subtask.benchmark)) for subtask in found]


def gather(
    settings: BenchmarksSettings, captions: Iterable[Caption], data_root: Path
) -> list[Subtask]:
    """Every subtask that the settings ask for.

    Args:
        settings: which benchmarks, and where.
        captions: the dataset's own captions, for retrieval.
        data_root: folder under which the captions' images lie.

    Raises:
        SettingsError: a benchmark that is on has no files or captions, or none is on.
    """
    subtasks = from_files(settings)
    if settings.retrieval.split is not None:
        subtasks += retrieval.load(captions, data_root, settings.retrieval)
    if not subtasks:
        raise SettingsError(
            "benchmarks: nothing is scored; name a split at benchmarks.retrieval.split, or the "
            "folder of benchmarks at benchmarks.root"
        )
    return subtasks
