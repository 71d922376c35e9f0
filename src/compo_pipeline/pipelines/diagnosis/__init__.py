"""Diagnosis: the kinds of change that a model misses, and what to change in its training."""

from compo_pipeline.pipelines.diagnosis.pipeline import create_pipeline

__all__ = ["create_pipeline"]
