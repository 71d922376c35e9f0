"""Nodes of the pipeline `registration`."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from compo_pipeline.benchmarks.items import Role
from compo_pipeline.benchmarks.settings import BenchmarksSettings
from compo_pipeline.core.records import Caption, Score, ScoredItem
from compo_pipeline.core.settings import SettingsError
from compo_pipeline.core.tables import Table
from compo_pipeline.evaluation.evaluate import Comparison
from compo_pipeline.evaluation.settings import EvaluationSettings
from compo_pipeline.registry import runs as tracking
from compo_pipeline.registry.materials import Material
from compo_pipeline.registry.registration import export_with_card, register, write_measured
from compo_pipeline.registry.settings import RegistrationSettings
from compo_pipeline.tuning import selection


def export_checkpoint(
    checkpoint: Path,
    run: Mapping[str, Any],
    manifest: Mapping[str, Any],
    materials: Sequence[Material],
    comparison: Comparison,
    scores: Sequence[Score],
    items: Sequence[ScoredItem],
    valid_captions: Sequence[Caption],
    root: Path,
    evaluation: EvaluationSettings,
    registration: RegistrationSettings,
    waive: tuple[Role, ...],
    tuned: BenchmarksSettings,
) -> Path:
    """Write the checkpoint as an open_clip folder with card and evidence.

    Returns the folder.

    The evidence's reference is of the exported weights.

    Raises:
        SettingsError: the version would get an alias, and was scored on items that select.
    """
    selecting = selection.selecting_benchmarks(
        comparison.sources, selection.recorded_validation(checkpoint), tuned
    )
    if selecting and registration.alias is not None:
        lines = "\n".join(selection.describe_selecting(comparison.sources, selecting))
        raise SettingsError(f"{lines}\n`kedro run --pipeline=evaluation` scores others")
    folder = checkpoint.with_name(".registering")
    shutil.rmtree(folder, ignore_errors=True)
    about = run, manifest, materials, comparison
    export_with_card(checkpoint, folder, *about, registration, waive)
    measured = comparison, Table.of(scores, Score), items, valid_captions, root
    write_measured(folder, *measured, evaluation, selecting)
    return folder


def register_export(
    export: Path,
    run: Mapping[str, Any],
    manifest: Mapping[str, Any],
    comparison: Comparison,
    registration: RegistrationSettings,
    root: Path,
) -> dict[str, Any]:
    """Log the exported model to its MLflow run and register it, unless it is registered."""
    with tracking.adopt(run["run_id"]) as log:
        return asdict(register(export, log, manifest, comparison, root, registration))
