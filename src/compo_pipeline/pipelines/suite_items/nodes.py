"""Nodes of the part `suite_items`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from compo_pipeline.configuration import SettingsError
from compo_pipeline.datasets.settings import DataSettings
from compo_pipeline.evaluation.benchmarks.items import Subtask
from compo_pipeline.evaluation.benchmarks.loading import from_files
from compo_pipeline.evaluation.contamination import named_rows
from compo_pipeline.evaluation.settings import BenchmarksSettings, SuiteSettings
from compo_pipeline.records import Caption
from compo_pipeline.scenes.dataset import SceneSettings, write


def gather_suite_items(
    benchmarks: BenchmarksSettings, data: DataSettings, scenes: SceneSettings
) -> Sequence[Subtask]:
    """The items of all benchmarks that are on; those of scenes are rendered first.

    Raises:
        SettingsError: none is on.
    """
    root = benchmarks.root
    if data.rendered and root is not None and data.root in Path(root).parents:
        write(scenes, data.root)
    subtasks = from_files(benchmarks)
    if not subtasks:
        raise SettingsError("benchmarks: none is enabled; name one at benchmarks.sets")
    return subtasks


def read_named_captions(suite: SuiteSettings) -> Sequence[Caption]:
    """The training rows whose overlap with the items is counted; often none."""
    captions, _ = named_rows(suite.training)
    return captions
