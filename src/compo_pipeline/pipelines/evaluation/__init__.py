"""Pipeline `evaluation`: base, control and fine-tuned model on the same items, side by side."""

from compo_pipeline.pipelines.evaluation.pipeline import create_pipeline

__all__ = ["create_pipeline"]
