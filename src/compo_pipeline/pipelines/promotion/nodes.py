"""Nodes of the pipeline `promotion`."""

from __future__ import annotations

from pathlib import Path

from compo_pipeline.core.provenance import Site
from compo_pipeline.core.settings import SettingsError
from compo_pipeline.pages.promotion_page import MARKDOWN, PAGE, promotion_page
from compo_pipeline.pages.tables import show
from compo_pipeline.registry.promotion import Decision, PromotionError, promote, roll_back
from compo_pipeline.registry.runs import connect
from compo_pipeline.registry.settings import PromotionSettings, RegistrationSettings
from compo_pipeline.registry.tracking_settings import TrackingSettings


def judge_challenger(
    promotion: PromotionSettings,
    registration: RegistrationSettings,
    tracking: TrackingSettings,
    site: Site,
) -> tuple[Decision, dict[str, str | bytes]]:
    """Judge the version with the registration's alias, and make it champion if it passes.

    Or make the previous champion the champion again (`promotion.rollback`).

    Returns:
        The decision, and the files of its page.

    Raises:
        SettingsError: no alias is set.
        PromotionError: another process moved an alias meanwhile, or there is nothing to roll back.
    """
    # This pipeline logs into no run, so the hook sets no store.
    connect(tracking, Path.cwd())
    if promotion.rollback:
        decision = roll_back(registration.name, promotion, registration.signing)
    elif registration.alias is None:
        raise SettingsError(
            "registration.alias: expected the alias of the version to promote, got null"
        )
    else:
        decision = promote(registration.name, registration.alias, promotion, registration.signing)
    page = promotion_page(decision, site)
    show(page)
    return decision, page.files(MARKDOWN, PAGE)


def refuse(decision: Decision, written: Path) -> None:
    """Raise an error if the challenger was refused.

    Raises:
        PromotionError: the challenger was refused.
    """
    if decision.failed:
        raise PromotionError(
            f"{decision.summary()} More in {written / PAGE}; the rules: promotion.gate"
        )
