"""Pipeline `views`: training examples of every epoch, as tables on disk."""

from compo_pipeline.pipelines.views.pipeline import create_pipeline

__all__ = ["create_pipeline"]
