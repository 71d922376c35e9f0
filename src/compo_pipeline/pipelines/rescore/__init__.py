"""Pipeline `rescore`: a version is registered again with evidence computed anew from its files."""

from compo_pipeline.pipelines.rescore.pipeline import create_pipeline

__all__ = ["create_pipeline"]
