"""Nodes of the pipeline `monitoring`."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from compo_pipeline.core.provenance import Site
from compo_pipeline.core.settings import SettingsError
from compo_pipeline.pages.monitoring_page import PAGE, SHOWN, monitoring_page
from compo_pipeline.pages.tables import show
from compo_pipeline.registry import versions
from compo_pipeline.registry.reference import read_reference
from compo_pipeline.registry.runs import log_figures
from compo_pipeline.registry.settings import RegistrationSettings
from compo_pipeline.registry.verification import verified
from compo_pipeline.serving.monitoring import report
from compo_pipeline.serving.monitoring.report import SEED, Words
from compo_pipeline.serving.monitoring.settings import ALPHA, MonitoringSettings
from compo_pipeline.serving.monitoring.vocabulary import new_words, word_shifts
from compo_pipeline.serving.monitoring.window import Window, image_bytes, read_window


def compare_requests(
    monitoring: MonitoringSettings,
    registration: RegistrationSettings,
    log_folder: str | None,
    site: Site,
) -> tuple[dict[str, Any], dict[str, str | bytes]]:
    """Compare logged requests with the reference sample of the version that answered them.

    Returns:
        The report as JSON values, and its page, which an MLflow run has too.

    Raises:
        SettingsError: there is no such version, it has no reference sample, there is no log, or no
            request of the version in it.
        VersionError: the version's files are not those that were registered.
    """
    key = "monitoring.alias" if monitoring.version is None else "monitoring.version"
    found = versions.find(registration.name, monitoring.alias, monitoring.version, key)
    with tempfile.TemporaryDirectory() as folder:
        files = verified(found, Path(folder), registration.signing)
        version, reference = files.lineage, files.read(read_reference)
    if not len(reference.images):
        raise SettingsError(
            f"monitoring: {version.name} version {version.version} has no reference sample; "
            "`kedro run --pipeline=rescore` registers it again, with one"
        )
    place = None if log_folder is None else Path(log_folder)
    width = reference.images.shape[1]
    window = read_window(place, version.fingerprint or "", width, monitoring, datetime.now(UTC))
    measured = report.measure(window, reference)
    words = _compare_words(window, reference.counts)
    said = report.summary(window, version, reference, measured, words)
    wanted = {each.image_hash for own in measured.hardest.values() for each in own} - {None}
    with tempfile.TemporaryDirectory() as images:
        for image, content in image_bytes(Path(str(log_folder)), window, wanted):
            (Path(images) / image).write_bytes(content)
        page = monitoring_page(said, measured, Path(images), site.facts("monitoring"))
    show(page, *SHOWN)
    tags = {key: f"{said[key]}" for key in ("model", "version", "fingerprint")}
    name, pages = f"monitoring-{version.name}-{version.version}", page.files(PAGE)
    log_figures(name, tags, report.metrics(said), pages)
    return said, pages


def _compare_words(window: Window, counts: Mapping[str, int]) -> Words:
    """Word frequencies of logged texts against training captions, empty without texts."""
    places = window.one_of_each(SEED)
    texts = [window.captions[place] for place in places if window.given[place]]
    texts = [text for text in texts if text]
    return Words(len(texts), word_shifts(texts, counts, ALPHA), new_words(texts, counts))
