"""Nodes of the raw pipeline."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from compo_pipeline.configuration import parse


def prepare_source(data: Mapping[str, Any], scenes: Mapping[str, Any]) -> dict[str, Any]:
    """Render scenes where `data.format` is `scenes`, and say what the source holds.

    Rendered scenes have COCO's layout and are read as such from here on.
    """
    from compo_pipeline.datasets.readers import locate
    from compo_pipeline.datasets.settings import DataSettings
    from compo_pipeline.scenes.dataset import SceneSettings, write

    settings = parse(DataSettings, data, "data")
    if settings.rendered:
        write(parse(SceneSettings, scenes, "scenes"), settings.root)
    return locate(settings)
