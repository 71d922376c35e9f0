"""Pipeline `tuning`: a search over a method's settings, and the confirmation of its best values."""

from compo_pipeline.pipelines.tuning.pipeline import create_pipeline

__all__ = ["create_pipeline"]
