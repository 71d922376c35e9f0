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
from compo_pipeline.monitoring.report import Measured, MonitoredVersion, Words
from compo_pipeline.monitoring.settings import MonitoringSettings
from compo_pipeline.monitoring.vocabulary import new_words, word_shifts
from compo_pipeline.monitoring.window import Window, image_bytes, read_window
from compo_pipeline.presentation import monitoring_page
from compo_pipeline.run.provenance import Site
from compo_pipeline.storage.files import FolderWriter
from compo_pipeline.tracking import runs as tracking
from compo_pipeline.versions import versions
from compo_pipeline.versions.settings import RegistrationSettings
from compo_pipeline.versions.verification import verified_reference


def open_version(
    monitoring: MonitoringSettings, registration: RegistrationSettings
) -> MonitoredVersion:
    """The monitored model version, verified, with its stored reference sample.

    Raises:
        SettingsError: there is no such version, or it has no reference sample.
        VersionError: its files are not those that were registered.
    """
    key = "monitoring.alias" if monitoring.version is None else "monitoring.version"
    found = versions.find(registration.name, monitoring.alias, monitoring.version, key)
    with tempfile.TemporaryDirectory() as folder:
        files, reference = verified_reference(found, Path(folder), registration.signing)
    return MonitoredVersion.from_lineage(files.lineage, reference)


def read_log(
    version: MonitoredVersion, monitoring: MonitoringSettings, folder: str | None
) -> Window:
    """Logged requests in the configured time window that the monitored version answered.

    Raises:
        SettingsError: there is no log, or no such request in it.
    """
    place = None if folder is None else Path(folder)
    width = version.reference.images.shape[1]
    return read_window(place, version.fingerprint, width, monitoring, datetime.now(UTC))


def measure_requests(
    window: Window, version: MonitoredVersion, monitoring: MonitoringSettings
) -> Measured:
    """Drift of logged requests from the reference, outliers, and the hardest requests."""
    return report.measure(window, version.reference, monitoring)


def compare_words(
    window: Window, version: MonitoredVersion, monitoring: MonitoringSettings, language_model: str
) -> Words:
    """Word frequencies of logged texts against training captions; empty without texts."""
    places = window.one_of_each(monitoring.seed)
    texts = [window.captions[place] for place in places if window.given[place]]
    texts = [text for text in texts if text]
    counts = version.reference.counts
    parses = partial(parses_of, language_model)
    shifts = word_shifts(texts, counts, monitoring.alpha)
    return Words(len(texts), shifts, new_words(texts, counts, parses))


def summarise(
    window: Window,
    version: MonitoredVersion,
    measured: Measured,
    words: Words,
    monitoring: MonitoringSettings,
) -> dict[str, Any]:
    """Monitoring report as JSON values, to be stored."""
    return report.summary(window, version, measured, words, monitoring)


def add_requested_images(window: Window, measured: Measured, folder: str) -> FolderWriter:
    """Return a function that adds the logged images worth captioning to a folder."""
    found = image_bytes(Path(folder), window.since, window.until, measured.worth)
    return partial(add_images, request_rows(window, measured.worth), found)


def write_monitoring(
    monitoring: Mapping[str, Any],
    measured: Measured,
    requested_images: Path,
    data: DataSettings,
    dataset: str,
    site: Site,
) -> FolderWriter:
    """Return a function that writes the monitoring page; prints what has drifted."""
    monitoring_page.show(monitoring)
    lines = source_lines(requested_images, data.root, dataset, data.sources)
    facts = site.facts("monitoring")
    return partial(monitoring_page.write, monitoring, measured, requested_images, lines, facts)


def log_monitoring(monitoring: Mapping[str, Any], page: Path) -> None:
    """Log the monitoring metrics and page as an MLflow run for the model version."""
    name, version = monitoring["model"], f"{monitoring['version']}"
    tags = {"model": name, "version": version, "fingerprint": monitoring["fingerprint"]}
    figures = report.metrics(monitoring)
    tracking.log_figures(f"monitoring-{name}-{version}", tags, figures, page)
