"""No telemetry, and no network unless weights are downloaded; the user's own choice counts."""

import configparser
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from compo_pipeline.core import offline

PROJECT = Path(__file__).parents[2]


@pytest.fixture
def environment(monkeypatch):
    """An environment of its own, restored afterwards."""
    monkeypatch.setattr(os, "environ", {"GX_ANALYTICS_ENABLED": "true"})
    return os.environ


def test_switches_are_set_and_the_users_choice_stays(environment):
    offline.disable_telemetry()
    assert environment["MLFLOW_DISABLE_TELEMETRY"] == "true"
    assert environment["DO_NOT_TRACK"] == "true"
    assert environment["GX_ANALYTICS_ENABLED"] == "true"


def test_tools_with_configuration_files_have_telemetry_off():
    assert yaml.safe_load((PROJECT / ".telemetry").read_text()) == {"consent": False}
    dvc = configparser.ConfigParser()
    dvc.read(PROJECT / ".dvc" / "config")
    assert dvc["core"].getboolean("analytics") is False
    assert dvc["core"].getboolean("check_update") is False


def test_libraries_themselves_see_the_switches():
    code = (
        "from compo_pipeline.core import offline; offline.disable_telemetry();"
        "offline.set_hub_offline(True);"
        "from mlflow.telemetry.utils import is_telemetry_disabled;"
        "from huggingface_hub import constants;"
        "print(is_telemetry_disabled(), constants.HF_HUB_OFFLINE,"
        " constants.HF_HUB_DISABLE_TELEMETRY)"
    )
    names = {"PATH", "HOME", "PYTHONPATH"} & os.environ.keys()
    clean = {name: os.environ[name] for name in names}
    done = subprocess.run(
        [sys.executable, "-c", code], env=clean, capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["True", "True", "True"]


def test_the_viewer_does_not_look_for_a_newer_version():
    code = (
        "import sys; sys.argv = ['kedro', 'viz', 'run'];"
        "import compo_pipeline.cli; from kedro_viz.integrations import pypi;"
        "print(pypi.get_latest_version())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "None"
