"""Nodes of the pipeline `half_truths`."""

from __future__ import annotations

import logging
from collections import Counter
from functools import partial

from compo_pipeline.benchmarks.half_truths import build
from compo_pipeline.benchmarks.settings import BenchmarksSettings
from compo_pipeline.configuration.settings import SettingsError
from compo_pipeline.language.parsing import parses_of
from compo_pipeline.storage.records import Caption, HalfTruth

log = logging.getLogger(__name__)


def build_half_truths(
    valid_captions: list[Caption], benchmarks: BenchmarksSettings, language_model: str
) -> list[HalfTruth]:
    """Half-truths of the captions that retrieval is scored over."""
    split = benchmarks.retrieval.split
    if split is None:
        raise SettingsError("benchmarks.retrieval.split: expected a split, got null")
    found = build(valid_captions, split, partial(parses_of, language_model))
    counts = Counter(row.triplet_type for row in found)
    log.info("Half-truths of the split '%s': %s.", split, dict(counts))
    return found
