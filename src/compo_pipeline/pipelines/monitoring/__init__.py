"""Pipeline `monitoring`: the request log of a served version against its reference sample."""

from compo_pipeline.pipelines.monitoring.pipeline import create_pipeline

__all__ = ["create_pipeline"]
