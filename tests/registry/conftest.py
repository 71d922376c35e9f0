"""Experiments of the tests' MLflow store."""

from collections.abc import Callable
from pathlib import Path

import pytest

from compo_pipeline.registry import tracking


@pytest.fixture
def configure(mlflow_project: Path) -> Callable[[str], None]:
    """Switch to an experiment of the store."""

    def switch(experiment: str) -> None:
        settings = tracking.TrackingSettings(experiment=experiment)
        tracking.configure(settings, mlflow_project)

    return switch
