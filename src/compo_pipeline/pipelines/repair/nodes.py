"""Pipeline `repair`: aliases that name versions which do not exist are repaired."""

from __future__ import annotations

from pathlib import Path

from compo_pipeline.presentation import promotion_page
from compo_pipeline.run.provenance import Site
from compo_pipeline.storage.files import FolderWriter
from compo_pipeline.tracking.runs import connect
from compo_pipeline.tracking.settings import TrackingSettings
from compo_pipeline.versions import promotion as promotions
from compo_pipeline.versions.settings import PromotionSettings, RegistrationSettings


def repair_aliases(
    promotion: PromotionSettings, registration: RegistrationSettings, tracking: TrackingSettings
) -> list[str]:
    """Repair registry aliases whose versions were deleted; returns a sentence for each."""
    connect(tracking, Path.cwd())
    return promotions.repair(registration.name, promotion, registration.signing)


def write_repair(
    repaired: list[str],
    promotion: PromotionSettings,
    registration: RegistrationSettings,
    site: Site,
) -> FolderWriter:
    """Return a function that writes the page about repaired aliases; prints the repairs."""
    return promotion_page.repair_page(registration.name, promotion, repaired, site)
