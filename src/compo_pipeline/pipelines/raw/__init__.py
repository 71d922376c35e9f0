"""Pipeline `raw`: generated data are made, then every source is located and checked."""

from compo_pipeline.pipelines.raw.pipeline import create_pipeline

__all__ = ["create_pipeline"]
