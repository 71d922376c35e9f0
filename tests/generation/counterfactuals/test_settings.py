"""Settings of caption editors and image generators that are refused with their YAML key."""

from typing import Any

import pytest

from compo_pipeline.core.settings import SettingsError, parse
from compo_pipeline.generation.counterfactuals.settings import (
    DiffusionSettings,
    EditorEndpointSettings,
    RulesSettings,
)

REQUIRED: dict[type, dict[str, Any]] = {
    RulesSettings: {},
    EditorEndpointSettings: {"url": "http://localhost/v1", "model": "m"},
    DiffusionSettings: {"model": "m"},
}


@pytest.mark.parametrize(
    ("kind", "change", "message"),
    [
        (RulesSettings, {"negatives": []}, r"k\.negatives: "),
        (EditorEndpointSettings, {"url": "localhost"}, r"k\.url: .*'localhost'"),
        (EditorEndpointSettings, {"more": {"n": 2}}, r"k\.more: \['n'\] cannot be set"),
        (DiffusionSettings, {"height": 100}, r"k\.height: .*multiple of 8.*got 100"),
        (DiffusionSettings, {"width": 8}, r"k\.width: .*16.*got 8"),
        (DiffusionSettings, {"adain": {"space": "vgg"}}, r"k\.adain\.space: .*files of your own"),
    ],
)
def test_refused(kind: type, change: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        parse(kind, {**REQUIRED[kind], **change}, "k")
