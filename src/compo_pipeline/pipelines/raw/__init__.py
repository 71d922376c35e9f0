"""Pipeline `raw`: scenes are rendered, other sources are located and checked."""

from compo_pipeline.pipelines.raw.pipeline import create_pipeline

__all__ = ["create_pipeline"]
