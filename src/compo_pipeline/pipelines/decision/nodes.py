"""Nodes of the part `decision`."""

from __future__ import annotations

from pathlib import Path

from compo_pipeline.presentation import promotion_page
from compo_pipeline.run.provenance import Site
from compo_pipeline.storage.files import FolderWriter
from compo_pipeline.versions.promotion import Decision


def write_decision(decision: Decision, site: Site) -> FolderWriter:
    """Return a function that writes the HTML page about a promotion decision."""
    return promotion_page.decision_page(decision, site)


def report_decision(decision: Decision, promotion_report: Path) -> None:
    """Print the promotion decision, after its page is written.

    Raises:
        PromotionError: the promotion or rollback was refused.
    """
    promotion_page.report(decision, promotion_report)
