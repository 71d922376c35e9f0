"""Nodes of the pipeline `rescore`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from compo_pipeline.evaluation.benchmarks.loading import gather
from compo_pipeline.evaluation.contamination import TRAINING_SPLIT, training_rows
from compo_pipeline.evaluation.settings import BenchmarksSettings, EvaluationSettings
from compo_pipeline.evaluation.slices import item_slices
from compo_pipeline.language.parsing import parses_of
from compo_pipeline.models.settings import ModelSettings
from compo_pipeline.records import Caption, Fact
from compo_pipeline.registry import tracking as store
from compo_pipeline.registry.rescoring import Benchmarking, rescore
from compo_pipeline.registry.settings import RegistrationSettings, TrackingSettings


def rescore_version(
    valid_captions: Sequence[Caption],
    facts: Sequence[Fact],
    manifest: Mapping[str, Any],
    registration: RegistrationSettings,
    tracking: TrackingSettings,
    evaluation: EvaluationSettings,
    benchmarks: BenchmarksSettings,
    model: ModelSettings,
    data_root: Path,
    language_model: str,
    settle: float,
) -> dict[str, Any]:
    """Score the version with the registration's alias and its base, and register it again."""
    root = Path(data_root)
    store.configure(tracking, Path.cwd())
    subtasks = gather(benchmarks, valid_captions, root)
    sentences = (
        text for row in valid_captions if row.split == TRAINING_SPLIT for text in row.sentences
    )
    parser = partial(parses_of, language_model)
    asked = Benchmarking(
        subtasks=subtasks,
        slices=item_slices(subtasks, frozenset(evaluation.slices), parser, sentences),
        evaluation=evaluation,
        base=model,
        captions=valid_captions,
        root=root,
        known=training_rows(valid_captions, facts, root, evaluation),
        data_hash=manifest["data_hash"],
    )
    return asdict(rescore(asked, registration, settle))
