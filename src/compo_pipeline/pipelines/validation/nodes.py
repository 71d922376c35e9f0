"""Nodes of the pipeline `validation`."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from compo_pipeline.core.records import Caption, Fact, Rejected
from compo_pipeline.core.tables import Table
from compo_pipeline.data.quality import caption_form, caption_language, quarantine
from compo_pipeline.data.quality.caption_language import refuse_unknown
from compo_pipeline.data.quality.quarantine import valid_captions
from compo_pipeline.data.quality.settings import DataValidationSettings
from compo_pipeline.language.parsing import load_once
from compo_pipeline.pages.previews import data_page

log = logging.getLogger(__name__)


def validate_facts(
    facts: Sequence[Fact],
    unparseable: Sequence[Rejected],
    ingest_report: Mapping[str, Any],
    validation: DataValidationSettings,
) -> tuple[list[Rejected], dict[str, Any], dict[str, str | bytes]]:
    """Check facts about rows against the rules: quarantine, summary and a page.

    Bad rows do not fail here, so that all results are saved.

    Returns:
        Quarantine (unparseable records first), the summary by rule, the page of the data.
    """
    frame = Table.of(facts, Fact).to_arrow().to_pandas()
    broken = quarantine.broken_rules(frame, validation.rules)
    entries = [*unparseable, *quarantine.quarantined(frame, broken, validation.rules)]
    warnings = caption_form.warnings(ingest_report)
    result = quarantine.summary(len(facts), entries, broken, validation, warnings)
    files = data_page(result, frame, ingest_report).files("index.html")
    reasons = Counter(entry.rule for entry in entries)
    shown = ", ".join(f"{rule} {count}" for rule, count in reasons.most_common())
    counts = result["bad"], result["records"]
    log.info("%d of %d records are bad%s", *counts, shown and f": {shown}")
    if warnings:
        log.warning("Captions: %s.", "; ".join(warnings))
    return entries, result, files


def measure_language(
    captions: Sequence[Caption], language_model: str, validation: DataValidationSettings
) -> dict[str, Any]:
    """Share of the captions' words that the spaCy pipeline knows, as JSON values.

    A share that is too low fails later, if at all.
    """
    result = caption_language.measure_sources(captions, load_once(language_model), validation)
    if (share := result["known_share"]) is not None:
        log.info("%s knows %.0f%% of the captions' words", result["pipeline"], 100 * share)
    return result


def select_valid_captions(
    captions: Sequence[Caption],
    quarantine: Sequence[Rejected],
    validation_result: dict[str, Any],
    caption_language: dict[str, Any],
) -> Sequence[Caption]:
    """Caption rows without quarantined ones.

    It fails if too many are bad or not understood.
    """
    refuse_unknown(caption_language)
    return valid_captions(captions, quarantine, validation_result)
