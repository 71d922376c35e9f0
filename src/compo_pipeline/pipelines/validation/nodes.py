"""Nodes of the validation pipeline."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from compo_pipeline.records import Caption, Fact, Rejected


def validate_facts(
    facts: list[Fact], unparseable: list[Rejected], validation: dict[str, Any], data_docs: str
) -> tuple[list[Rejected], dict[str, Any], Path]:
    """Quarantine, the result by rule, and the Data Docs; nothing fails here, so all are saved."""
    from compo_pipeline.configuration import parse
    from compo_pipeline.quality.settings import ValidationSettings
    from compo_pipeline.quality.validation import validate

    settings = parse(ValidationSettings, validation, "validation")
    return validate(facts, unparseable, settings, Path(data_docs))


def keep_valid_captions(
    captions: list[Caption], quarantine: list[Rejected], validation_result: dict[str, Any]
) -> list[Caption]:
    """The rows that are not in quarantine; refused when too many are."""
    from compo_pipeline.quality.quarantine import kept

    return kept(captions, quarantine, validation_result)
