"""Pipeline `repair`: aliases that name versions which do not exist are repaired."""

from __future__ import annotations

from pathlib import Path

from compo_pipeline.presentation import promotion_page
from compo_pipeline.provenance import Site
from compo_pipeline.registry import promotion as promotions
from compo_pipeline.registry.settings import (
    PromotionSettings,
    RegistrationSettings,
    TrackingSettings,
)
from compo_pipeline.registry.tracking import connect
from compo_pipeline.storage import FolderWriter


def repair_aliases(
    promotion: PromotionSettings, registration: RegistrationSettings, tracking: TrackingSettings
) -> list[str]:
    """Repair aliases whose versions were deleted; a sentence for each."""
    connect(tracking, Path.cwd())
    return promotions.repair(registration.name, promotion, registration.signing)


def write_repair(
    repaired: list[str],
    promotion: PromotionSettings,
    registration: RegistrationSettings,
    site: Site,
) -> FolderWriter:
    """The page of the repair; prints what was repaired."""
    return promotion_page.repair_page(registration.name, promotion, repaired, site)
