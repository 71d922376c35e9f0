"""Nodes of the pipeline `rescore`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from compo_pipeline.evaluation.contamination import TrainingRows
from compo_pipeline.evaluation.evaluate import BenchmarkItems
from compo_pipeline.evaluation.settings import EvaluationSettings
from compo_pipeline.models.settings import ModelSettings
from compo_pipeline.storage.records import Caption
from compo_pipeline.tracking import runs as store
from compo_pipeline.tracking.settings import TrackingSettings
from compo_pipeline.versions.rescoring import Benchmarking, TrainingDataset, rescore
from compo_pipeline.versions.settings import RegistrationSettings


def describe_data(
    valid_captions: Sequence[Caption], manifest: Mapping[str, Any], known: TrainingRows, root: Path
) -> TrainingDataset:
    """Training data of the version to rescore: captions, image folder, hashes."""
    return TrainingDataset(valid_captions, Path(root), known, manifest["data_hash"])


def describe_scoring(
    items: BenchmarkItems,
    data: TrainingDataset,
    model: ModelSettings,
    evaluation: EvaluationSettings,
) -> Benchmarking:
    """Benchmark items, training data and settings with which a version is scored again."""
    return Benchmarking(items, data, model, evaluation)


def rescore_version(
    asked: Benchmarking,
    registration: RegistrationSettings,
    tracking: TrackingSettings,
    settle: float,
) -> dict[str, Any]:
    """Score the version with the registration's alias again, and register it anew."""
    store.configure(tracking, Path.cwd())
    return asdict(rescore(asked, registration, settle))
