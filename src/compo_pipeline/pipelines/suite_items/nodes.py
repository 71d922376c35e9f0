"""Nodes of the part `suite_items`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from compo_pipeline.benchmarks.items import Subtask
from compo_pipeline.benchmarks.loading import from_files
from compo_pipeline.benchmarks.settings import BenchmarksSettings
from compo_pipeline.configuration.settings import SettingsError
from compo_pipeline.datasets.generators import GENERATORS
from compo_pipeline.datasets.settings import DataSettings
from compo_pipeline.evaluation.contamination import read_training_tables
from compo_pipeline.evaluation.settings import SuiteSettings
from compo_pipeline.storage.records import Caption


def gather_suite_items(
    benchmarks: BenchmarksSettings, data: DataSettings, generator_settings: Mapping[str, Any]
) -> Sequence[Subtask]:
    """Benchmark items of all enabled benchmarks; generated data are generated first.

    Raises:
        SettingsError: none is on.
    """
    root = benchmarks.root
    made = data.generated
    if made is not None and root is not None and made.root in Path(root).parents:
        GENERATORS[made.format].generate(generator_settings, made.root)
    subtasks = from_files(benchmarks)
    if not subtasks:
        raise SettingsError(
            "benchmarks: none has a folder of files; name the folder of all at benchmarks.root, or "
            "one at benchmarks.sets.<name>.root"
        )
    return subtasks


def read_named_captions(suite: SuiteSettings) -> Sequence[Caption]:
    """Training captions of the tables named in `suite.training`; empty if none is named."""
    captions, _ = read_training_tables(suite.training)
    return captions
