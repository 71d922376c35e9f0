"""Nodes of the pipeline `raw`."""

from __future__ import annotations

from typing import Any

from compo_pipeline.datasets.readers import locate
from compo_pipeline.datasets.settings import DataSettings
from compo_pipeline.scenes.dataset import SceneSettings, write


def prepare_source(data: DataSettings, scenes: SceneSettings) -> dict[str, Any]:
    """Render scenes where `data.format` is `scenes`, and say what the source holds.

    Rendered scenes have COCO's layout and are read as such from here on.
    """
    if data.rendered:
        write(scenes, data.root)
    return locate(data)
