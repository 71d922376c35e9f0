"""Nodes of the pipeline `rollback`."""

from __future__ import annotations

from pathlib import Path

from compo_pipeline.core.provenance import Site
from compo_pipeline.pages.promotion_page import MARKDOWN, PAGE, promotion_page
from compo_pipeline.pages.tables import show
from compo_pipeline.registry.promotion import roll_back
from compo_pipeline.registry.runs import connect
from compo_pipeline.registry.settings import PromotionSettings, RegistrationSettings
from compo_pipeline.registry.tracking_settings import TrackingSettings


def roll_back_champion(
    promotion: PromotionSettings,
    registration: RegistrationSettings,
    tracking: TrackingSettings,
    site: Site,
) -> dict[str, str | bytes]:
    """Make the previous champion the champion again; returns the files of a page.

    Raises:
        PromotionError: there is no champion, or no previous one.
    """
    connect(tracking, Path.cwd())
    decision = roll_back(registration.name, promotion, registration.signing)
    page = promotion_page(decision, site)
    show(page)
    return page.files(MARKDOWN, PAGE)
