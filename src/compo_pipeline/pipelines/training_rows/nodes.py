"""Nodes of the part `training_rows`."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

from compo_pipeline.benchmarks.items import Subtask
from compo_pipeline.evaluation.contamination import TRAINING_SPLIT, TrainingRows, training_rows
from compo_pipeline.evaluation.evaluate import BenchmarkItems
from compo_pipeline.evaluation.settings import EvaluationSettings
from compo_pipeline.language.parsing import parses_of
from compo_pipeline.storage.records import Caption, Fact


def slice_items(
    items: Sequence[Subtask],
    valid_captions: Sequence[Caption],
    evaluation: EvaluationSettings,
    language_model: str,
) -> BenchmarkItems:
    """The items with their slices; one kind of slice is by what the training captions name."""
    training = (row for row in valid_captions if row.split == TRAINING_SPLIT)
    parser = partial(parses_of, language_model)
    return BenchmarkItems.sliced(items, evaluation.slices, training, parser)


def identify_training_rows(
    valid_captions: Sequence[Caption],
    facts: Sequence[Fact],
    root: Path,
    evaluation: EvaluationSettings,
) -> TrainingRows:
    """What identifies the training rows among the items."""
    return training_rows(valid_captions, facts, Path(root), evaluation)
