"""Pipeline `raw`: scenes are rendered, other sources are located and checked."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kedro.pipeline import Pipeline, node

from compo_pipeline.configuration import parse
from compo_pipeline.datasets.settings import DataSettings


def prepare_source(data: Mapping[str, Any], scenes: Mapping[str, Any]) -> dict[str, Any]:
    """Render scenes where `data.format` is `scenes`, and say what the source holds.

    Rendered scenes have COCO's layout and are read as such from here on.
    """
    from compo_pipeline.datasets.readers import locate
    from compo_pipeline.scenes.dataset import SceneSettings, write

    settings = parse(DataSettings, data, "data")
    if settings.rendered:
        write(parse(SceneSettings, scenes, "scenes"), settings.root)
    return locate(settings)


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
