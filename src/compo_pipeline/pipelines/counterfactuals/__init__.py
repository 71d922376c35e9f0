"""Pipeline `counterfactuals`: edited captions and images of them, as a table and a folder."""

from compo_pipeline.pipelines.counterfactuals.pipeline import create_pipeline

__all__ = ["create_pipeline"]
