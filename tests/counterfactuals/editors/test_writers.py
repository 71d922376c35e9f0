"""Writers by name."""

from pathlib import Path
from typing import Any

import pytest

from compo_pipeline.configuration import SettingsError
from compo_pipeline.counterfactuals.editors import NAMES, open_writer

VALUES: dict[str, dict[str, Any]] = {
    "rules": {},
    "endpoint": {"url": "http://localhost:1/v1", "model": "m"},
    "transformers": {"folder": "nowhere"},
}


@pytest.mark.parametrize("name", NAMES)
def test_by_name(name: str, tmp_path: Path) -> None:
    made = open_writer(name, VALUES[name], key="k", seed=0, folder=tmp_path)
    assert made.name == name
    assert not list(tmp_path.iterdir())
    with pytest.raises(SettingsError, match=r"k\.colour: unknown key"):
        open_writer(name, {**VALUES[name], "colour": 1}, key="k", seed=0, folder=tmp_path)


def test_an_unknown_name(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="no writer 'rule'; did you mean 'rules'"):
        open_writer("rule", {}, key="k", seed=0, folder=tmp_path)
