"""Pipeline `rollback`: the previous champion is champion again."""

from __future__ import annotations

from pathlib import Path

from compo_pipeline.presentation import promotion_page
from compo_pipeline.run.provenance import Site
from compo_pipeline.storage.files import FolderWriter
from compo_pipeline.tracking.runs import connect
from compo_pipeline.tracking.settings import TrackingSettings
from compo_pipeline.versions import promotion as promotions
from compo_pipeline.versions.promotion import Decision
from compo_pipeline.versions.settings import PromotionSettings, RegistrationSettings


def roll_back_champion(
    promotion: PromotionSettings, registration: RegistrationSettings, tracking: TrackingSettings
) -> Decision:
    """Make the previous champion the champion again, after its files are verified.

    Raises:
        PromotionError: there is no champion, or no previous one.
    """
    connect(tracking, Path.cwd())
    return promotions.roll_back(registration.name, promotion, registration.signing)


def write_decision(decision: Decision, site: Site) -> FolderWriter:
    """The page of the decision."""
    return promotion_page.decision_page(decision, site, "rollback")


def report_decision(decision: Decision, promotion_report: Path) -> None:
    """Print the decision, after its page is written.

    Raises:
        PromotionError: the rollback was refused.
    """
    promotion_page.report(decision, promotion_report)
