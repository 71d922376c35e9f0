"""The small worlds of the evaluation's tests, and benchmarks read from files."""

from pathlib import Path
from typing import Any

from tests.evaluation.conftest import embedded

from compo_pipeline.benchmarks.items import Subtask
from compo_pipeline.benchmarks.loading import from_files
from compo_pipeline.benchmarks.settings import (
    BenchmarkSet,
    BenchmarksSettings,
    RetrievalSettings,
)

__all__ = ["embedded"]


def load(name: str, root: Path, **settings: Any) -> list[Subtask]:
    """The subtasks of a benchmark whose files are in a folder."""
    sets = {name: BenchmarkSet(str(root))}
    return from_files(BenchmarksSettings(sets=sets, retrieval=RetrievalSettings(None), **settings))
