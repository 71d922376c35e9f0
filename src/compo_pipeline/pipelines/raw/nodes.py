"""Nodes of the pipeline `raw`."""

from __future__ import annotations

from typing import Any

from compo_pipeline.data.generators import GENERATORS
from compo_pipeline.data.readers import locate
from compo_pipeline.data.settings import DataSettings


def prepare_source(data: DataSettings, generator_settings: Any) -> dict[str, Any]:
    """Generate the source data if their format has a generator; returns a description."""
    if made := data.generated:
        GENERATORS[made.format].generate(generator_settings, made.root)
    return locate(data)
