"""Nodes of the pipeline `monitoring`."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from compo_pipeline.datasets.settings import DataSettings
from compo_pipeline.language.parsing import parses_of
from compo_pipeline.monitoring import report
from compo_pipeline.monitoring.captioning import add_images, request_rows, source_lines
from compo_pipeline.monitoring.report import SEED, Measured, MonitoredVersion, Words
from compo_pipeline.monitoring.settings import MonitoringSettings
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
    version = _open_version(monitoring, registration)
    place = None if log_folder is None else Path(log_folder)
    width = version.reference.images.shape[1]
    window = read_window(place, version.fingerprint, width, monitoring, datetime.now(UTC))
    measured = report.measure(window, version.reference, monitoring)
    words = _compare_words(window, version, monitoring, language_model)
    return report.summary(window, version, measured, words, monitoring), window, measured


def add_requested_images(window: Window, measured: Measured, log_folder: str, folder: str) -> Path:
    """Add the logged images that are worth captioning to a folder, which is returned."""
    found = image_bytes(Path(log_folder), window.since, window.until, measured.worth)
    add_images(request_rows(window, measured.worth), found, Path(folder))
    return Path(folder)


def write_monitoring(
    monitoring: Mapping[str, Any],
    measured: Measured,
    requested_images: Path,
    data: DataSettings,
    dataset: str,
    site: Site,
) -> dict[str, str | bytes]:
    """Page of the monitoring report; prints what has drifted."""
    monitoring_page.show(monitoring)
    lines = source_lines(requested_images, data.root, dataset, data.sources)
    facts = site.facts("monitoring")
    return monitoring_page.files(monitoring, measured, requested_images, lines, facts)


def log_monitoring(monitoring: Mapping[str, Any], page: Path) -> None:
    """Log the metrics and the page of a monitoring report as an MLflow run."""
    name, version = monitoring["model"], f"{monitoring['version']}"
    tags = {"model": name, "version": version, "fingerprint": monitoring["fingerprint"]}
    tracking.log_figures(f"monitoring-{name}-{version}", tags, report.metrics(monitoring), page)


def _open_version(
    monitoring: MonitoringSettings, registration: RegistrationSettings
) -> MonitoredVersion:
    """The monitored model version, verified, with its stored reference sample."""
    key = "monitoring.alias" if monitoring.version is None else "monitoring.version"
    found = versions.find(registration.name, monitoring.alias, monitoring.version, key)
    with tempfile.TemporaryDirectory() as folder:
        files = verified(found, Path(folder), registration.signing)
        return MonitoredVersion.from_lineage(files.lineage, files.reference())


def _compare_words(
    window: Window, version: MonitoredVersion, monitoring: MonitoringSettings, language_model: str
) -> Words:
    """Word frequencies of logged texts against training captions; empty without texts."""
    places = window.one_of_each(SEED)
    texts = [window.captions[place] for place in places if window.given[place]]
    texts = [text for text in texts if text]
    counts = version.reference.counts
    parses = partial(parses_of, language_model)
    shifts = word_shifts(texts, counts, monitoring.alpha)
    return Words(len(texts), shifts, new_words(texts, counts, parses))
