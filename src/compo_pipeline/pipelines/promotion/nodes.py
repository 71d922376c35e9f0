"""Nodes of the pipeline `promotion`."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from compo_pipeline.configuration import SettingsError
from compo_pipeline.presentation import promotion_page
from compo_pipeline.presentation.pages import Link, links
from compo_pipeline.provenance import page_facts
from compo_pipeline.registry import promotion as promotions
from compo_pipeline.registry.copies import copy_version
from compo_pipeline.registry.settings import (
    PromotionSettings,
    RegistrationSettings,
    TrackingSettings,
)
from compo_pipeline.registry.tracking import connect

log = logging.getLogger(__name__)


def act(
    promotion: PromotionSettings,
    registration: RegistrationSettings,
    tracking: TrackingSettings,
    command: Mapping[str, Any],
    report: str,
) -> Path:
    """Promote, roll back, copy or repair, and write the report; return its folder.

    Raises:
        PromotionError: the challenger was refused, or another process moved an alias meanwhile.
    """
    # This pipeline logs into no run, so the hook sets no store. The working directory is the
    # project's folder.
    connect(tracking, Path.cwd())
    folder = Path(report)
    folder.mkdir(parents=True, exist_ok=True)
    links, facts = _links(folder), page_facts(command, "promotion")
    if promotion.action == "copy":
        copied = copy_version(
            registration.name, promotion.copy, registration.signing, dry_run=promotion.dry_run
        )
        promotion_page.write_copy(registration.name, promotion, copied, facts, links, folder)
        return folder
    if promotion.action == "repair":
        repaired = promotions.repair(registration.name, promotion, registration.signing)
        promotion_page.write_repair(registration.name, promotion, repaired, facts, links, folder)
        return folder
    if registration.signing.public_key is None:
        log.warning(
            "registration.signing is not set: whoever can write the store can forge evidence."
        )
    if promotion.action == "rollback":
        decision = promotions.roll_back(registration.name, promotion, registration.signing)
    else:
        if registration.alias is None:
            raise SettingsError(
                "registration.alias: expected the alias of the version to promote, got null"
            )
        decision = promotions.promote(
            registration.name, registration.alias, promotion, registration.signing
        )
    page = promotion_page.write_decision(decision, facts, links, folder)
    promotion_page.show(decision)
    if decision.failed:
        raise promotions.PromotionError(
            f"{decision.summary()} More in {page}; the rules: promotion.gate"
        )
    return folder


def _links(folder: Path) -> list[Link]:
    """The reports of all runs of the dataset."""
    reports = sorted(folder.parent.glob("*/*/seed=*/report/report.html"))
    return links(folder, {" ".join(page.parts[-5:-2]): (page, "kedro run") for page in reports})
