"""Pipeline `copy`: a version is copied to another registry."""

from __future__ import annotations

from pathlib import Path

from compo_pipeline.presentation import promotion_page
from compo_pipeline.run.provenance import Site
from compo_pipeline.storage.files import FolderWriter
from compo_pipeline.tracking.runs import connect
from compo_pipeline.tracking.settings import TrackingSettings
from compo_pipeline.versions.copies import copy_version
from compo_pipeline.versions.settings import PromotionSettings, RegistrationSettings


def copy_to_registry(
    promotion: PromotionSettings, registration: RegistrationSettings, tracking: TrackingSettings
) -> str:
    """Copy the version `promotion.copy` to another registry; returns the copy's number as text."""
    connect(tracking, Path.cwd())
    version = copy_version(
        registration.name, promotion.copy, registration.signing, dry_run=promotion.dry_run
    )
    return "a new version" if version is None else f"version {version}"


def write_copy(
    version: str,
    promotion: PromotionSettings,
    registration: RegistrationSettings,
    site: Site,
) -> FolderWriter:
    """Return a function that writes the HTML page about the version copied to another registry."""
    return promotion_page.copy_page(registration.name, promotion, version, site)
