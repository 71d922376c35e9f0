"""Pipeline `diagnosis`: models of a list, the kinds of change that they miss, and what to change."""

from compo_pipeline.pipelines.diagnosis.pipeline import create_pipeline

__all__ = ["create_pipeline"]
