"""Settings of the diffusers maker that no pipeline can follow."""

from typing import Any

import pytest

from compo_pipeline.configuration import SettingsError, parse
from compo_pipeline.counterfactuals.generators.settings import KEY, DiffusionSettings


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"steps": 0}, "steps must be at least 1"),
        ({"batch": 0}, "batch must be at least 1"),
        ({"height": 100}, "height must be a multiple of 8"),
        ({"width": 8}, "16 at least, got 8"),
        ({"adain": {"weight": 1.5}}, r"diffusion\.adain: .*weight must lie within 0 and 1"),
        ({"adain": {"space": "vgg"}}, r"diffusion\.adain\.space: .*files of your own"),
        ({"adain": {"space": False}}, r"diffusion\.adain\.space: "),
    ],
)
def test_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        parse(DiffusionSettings, {"model": "m", **change}, KEY)
