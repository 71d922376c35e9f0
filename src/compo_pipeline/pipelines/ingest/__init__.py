"""Pipeline `ingest`: the captions of a source are read, prepared and measured."""

from compo_pipeline.pipelines.ingest.pipeline import create_pipeline

__all__ = ["create_pipeline"]
