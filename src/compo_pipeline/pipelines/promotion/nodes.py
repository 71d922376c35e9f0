"""Nodes of the pipeline `promotion`."""

from __future__ import annotations

from pathlib import Path

from compo_pipeline.configuration.settings import SettingsError
from compo_pipeline.tracking.runs import connect
from compo_pipeline.tracking.settings import TrackingSettings
from compo_pipeline.versions import promotion as promotions
from compo_pipeline.versions.promotion import Decision
from compo_pipeline.versions.settings import PromotionSettings, RegistrationSettings


def judge_challenger(
    promotion: PromotionSettings, registration: RegistrationSettings, tracking: TrackingSettings
) -> Decision:
    """Judge the version with the registration's alias, and make it champion if it passes.

    Raises:
        SettingsError: no alias is set.
        PromotionError: another process moved an alias meanwhile.
    """
    if registration.alias is None:
        raise SettingsError(
            "registration.alias: expected the alias of the version to promote, got null"
        )
    # This pipeline logs into no run, so the hook sets no store.
    connect(tracking, Path.cwd())
    return promotions.promote(
        registration.name, registration.alias, promotion, registration.signing
    )
