"""`compo-pipeline try`: from the configuration to a page that is served."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from compo_pipeline import compute, progress
from compo_pipeline.compute import choose_device
from compo_pipeline.configuration import parse
from compo_pipeline.evaluation.settings import BenchmarksSettings, EvaluationSettings
from compo_pipeline.models.loading import ModelSettings
from compo_pipeline.registry import tracking
from compo_pipeline.registry.registration import RegistrationSettings
from compo_pipeline.ui import examples, opening, page

_EXAMPLES = 6


def run(
    parameters: Mapping[str, Any], alias: str, version: int | None, host: str, port: int
) -> None:
    """Serve a version beside its base until the process is interrupted.

    Args:
        parameters: the project's, whose folder is the working directory.
        alias: of the version.
        version: its number, instead of an alias.
        host: address to listen on.
        port: likewise.

    Raises:
        SettingsError: gradio, the version or its base is not there.
        ClickException: the address cannot be listened on.
    """
    page.require_gradio()
    page.require_free(host, port)
    registered = parse(RegistrationSettings, parameters["registration"], "registration")
    store = parse(tracking.TrackingSettings, parameters["tracking"], "tracking")
    base = parse(ModelSettings, parameters["model"], "model")
    evaluation = parse(EvaluationSettings, parameters["evaluation"], "evaluation")
    benchmarks = parse(BenchmarksSettings, parameters["benchmarks"], "benchmarks")
    tracking.connect(store, Path.cwd())
    found = opening.find(registered.name, alias, version)
    label = alias if version is None else f"version {version}"
    where = str(choose_device(evaluation.device, key="evaluation.device"))
    compute.use_cores()
    opened = opening.open_version(found, label, base, where)
    # Every question would have its line.
    logging.getLogger(progress.__name__).setLevel(logging.WARNING)
    page.serve(opened, examples.draw(benchmarks, _EXAMPLES), host, port)
