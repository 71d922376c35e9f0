"""Nodes of the pipeline `monitoring`."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from compo_pipeline.language.parsing import parses_of
from compo_pipeline.monitoring import report
from compo_pipeline.monitoring.report import SEED, Measured, Words
from compo_pipeline.monitoring.settings import ALPHA, MonitoringSettings
from compo_pipeline.monitoring.vocabulary import new_words, word_shifts
from compo_pipeline.monitoring.window import Window, image_bytes, read_window
from compo_pipeline.presentation import monitoring_page
from compo_pipeline.run.provenance import Site
from compo_pipeline.tracking import runs as tracking
from compo_pipeline.versions import versions
from compo_pipeline.versions.settings import RegistrationSettings
from compo_pipeline.versions.verification import verified


def measure_requests(
    monitoring: MonitoringSettings,
    registration: RegistrationSettings,
    log_folder: str | None,
    language_model: str,
) -> tuple[dict[str, Any], Window, Measured]:
    """Compare logged requests with the reference sample of the version that answered them.

    Returns:
        The report as JSON values; the requests of the configured time window; their drift,
        outliers, and the hardest ones.

    Raises:
        SettingsError: there is no such version, it has no reference sample, there is no log, or no
            request of the version in it.
        VersionError: the version's files are not those that were registered.
    """
    key = "monitoring.alias" if monitoring.version is None else "monitoring.version"
    found = versions.find(registration.name, monitoring.alias, monitoring.version, key)
    with tempfile.TemporaryDirectory() as folder:
        files = verified(found, Path(folder), registration.signing)
        version, reference = files.lineage, files.reference()
    place = None if log_folder is None else Path(log_folder)
    width = reference.images.shape[1]
    window = read_window(place, version.fingerprint or "", width, monitoring, datetime.now(UTC))
    measured = report.measure(window, reference, monitoring)
    words = _compare_words(window, reference.counts, language_model)
    said = report.summary(window, version, reference, measured, words)
    return said, window, measured


def write_monitoring(
    monitoring: Mapping[str, Any],
    window: Window,
    measured: Measured,
    log_folder: str,
    site: Site,
) -> dict[str, str | bytes]:
    """Page of the monitoring report; prints what has drifted."""
    monitoring_page.show(monitoring)
    wanted = {each.image_hash for own in measured.hardest.values() for each in own} - {None}
    with tempfile.TemporaryDirectory() as images:
        for image, content in image_bytes(Path(log_folder), window, wanted):
            (Path(images) / image).write_bytes(content)
        facts = site.facts("monitoring")
        return monitoring_page.files(monitoring, measured, Path(images), facts)


def log_monitoring(monitoring: Mapping[str, Any], page: Path) -> None:
    """Log the metrics and the page of a monitoring report as an MLflow run."""
    name, version = monitoring["model"], f"{monitoring['version']}"
    tags = {"model": name, "version": version, "fingerprint": monitoring["fingerprint"]}
    tracking.log_figures(f"monitoring-{name}-{version}", tags, report.metrics(monitoring), page)


def _compare_words(window: Window, counts: Mapping[str, int], language_model: str) -> Words:
    """Word frequencies of logged texts against training captions; empty without texts."""
    places = window.one_of_each(SEED)
    texts = [window.captions[place] for place in places if window.given[place]]
    texts = [text for text in texts if text]
    parses = partial(parses_of, language_model)
    shifts = word_shifts(texts, counts, ALPHA)
    return Words(len(texts), shifts, new_words(texts, counts, parses))
