"""Pipeline `recaption`: a model writes the captions of a source's images."""

from compo_pipeline.pipelines.recaption.pipeline import create_pipeline

__all__ = ["create_pipeline"]
