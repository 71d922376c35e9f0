"""Pipeline `raw`: scenes are rendered, other sources are located and checked."""

from __future__ import annotations

from typing import Any

from kedro.pipeline import Pipeline, node

from compo_pipeline.datasets.settings import DataSettings
from compo_pipeline.scenes.dataset import SceneSettings


def prepare_source(data: DataSettings, scenes: SceneSettings) -> dict[str, Any]:
    """Render scenes where `data.format` is `scenes`, and say what the source holds.

    Rendered scenes have COCO's layout and are read as such from here on.
    """
    from compo_pipeline.datasets.readers import locate
    from compo_pipeline.scenes.dataset import write

    if data.rendered:
        write(scenes, data.root)
    return locate(data)


def create_pipeline() -> Pipeline:
    """Settings to a source that is there and complete."""
    return Pipeline(
        [
            node(
                prepare_source,
                inputs=["params:data", "params:scenes"],
                outputs="source",
                name="prepare_source",
            )
        ]
    )
