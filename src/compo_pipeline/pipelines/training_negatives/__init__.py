"""Part of `evaluation` and `diagnosis`: what training asks, and what rules of negatives would."""

from compo_pipeline.pipelines.training_negatives.pipeline import create_pipeline

__all__ = ["create_pipeline"]
