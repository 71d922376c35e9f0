"""Pipeline `foils`: benchmark items of the captions of held-out rows."""

from compo_pipeline.pipelines.foils.pipeline import create_pipeline

__all__ = ["create_pipeline"]
