"""Settings of MLflow's store."""

from __future__ import annotations

from compo_pipeline.core.settings import Title, settings


@settings
class TrackingSettings:
    """Settings of MLflow's store: its address and the experiment."""

    uri: str | None = None
    """MLflow server or database. Null is a sqlite file in mlruns/ of the project."""
    experiment: Title = "compo"
    """Name of the MLflow experiment."""
