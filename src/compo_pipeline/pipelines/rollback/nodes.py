"""Pipeline `rollback`: the previous champion is champion again."""

from __future__ import annotations

from pathlib import Path

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
