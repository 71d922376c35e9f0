"""Nodes of the part `training_rows`."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

from compo_pipeline.benchmarks.items import Subtask
from compo_pipeline.evaluation.contamination import TrainingRows, training_captions, training_rows
from compo_pipeline.evaluation.evaluate import BenchmarkItems
from compo_pipeline.evaluation.settings import EvaluationSettings
from compo_pipeline.language.parsing import parses_of
from compo_pipeline.storage.records import Caption, Fact
from compo_pipeline.storage.tables import Splits


def slice_items(
    items: Sequence[Subtask],
    valid_captions: Sequence[Caption],
    evaluation: EvaluationSettings,
    language_model: str,
    split: Splits,
) -> BenchmarkItems:
    """Benchmark items with their slices, by training captions, sources and texts."""
    training = training_captions(valid_captions, split)
    parser = partial(parses_of, language_model)
    return BenchmarkItems.with_slices(items, evaluation.slices, training, parser, valid_captions)


def identify_training_rows(
    valid_captions: Sequence[Caption],
    facts: Sequence[Fact],
    root: Path,
    evaluation: EvaluationSettings,
    split: Splits,
) -> TrainingRows:
    """Hashes of training images and captions, to find them among benchmark items."""
    return training_rows(valid_captions, facts, Path(root), evaluation, split)
