"""Part of `evaluation` and `rescore`: slices of the items, and which are training rows."""

from compo_pipeline.pipelines.training_rows.pipeline import create_pipeline

__all__ = ["create_pipeline"]
