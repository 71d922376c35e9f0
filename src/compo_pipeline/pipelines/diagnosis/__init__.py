"""Pipeline `diagnosis`: the kinds of change that models of a list miss, and what to change."""

from compo_pipeline.pipelines.diagnosis.pipeline import create_pipeline

__all__ = ["create_pipeline"]
