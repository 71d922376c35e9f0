"""Part of `benchmark` and `diagnosis`: the models of a list."""

from compo_pipeline.pipelines.listed_models.pipeline import create_pipeline

__all__ = ["create_pipeline"]
