"""Environment switches of libraries: no telemetry, no update checks, no network by default."""

from __future__ import annotations

import os
import sys
import warnings
from importlib.util import find_spec

_SWITCHES = {
    "DO_NOT_TRACK": "true",
    "KEDRO_DISABLE_TELEMETRY": "true",
    "DVC_NO_ANALYTICS": "true",
    "GX_ANALYTICS_ENABLED": "false",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "GRADIO_ANALYTICS_ENABLED": "False",
    # Its log lines would repeat those of the project.
    "MLFLOW_LOGGING_LEVEL": "WARNING",
}
_OFFLINE = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")


def disable_telemetry() -> None:
    """Switch off telemetry and update checks of libraries by environment variables.

    Call it before the libraries are imported.
    """
    for name, value in _SWITCHES.items():
        os.environ.setdefault(name, value)
    # Kedro has two names for one option and is going to drop the plainer one in its next series.
    warnings.filterwarnings("ignore", message="Option '--pipeline' is deprecated")
    if "viz" in sys.argv[1:2] and find_spec("kedro_viz"):
        _silence_viz()


def set_hub_offline(offline: bool) -> None:
    """Set whether the Hugging Face libraries may use the network, unless the user has set it."""
    for name in _OFFLINE:
        os.environ.setdefault(name, "1" if offline else "0")


def _silence_viz() -> None:
    """Replace Kedro-Viz's look-up of its newest version on PyPI, which no option switches off."""
    from kedro_viz.integrations import pypi

    pypi.get_latest_version = lambda: None
