"""Pipeline `wise_ft`: models interpolated between a run's base and its fine-tuned model."""

from compo_pipeline.pipelines.wise_ft.pipeline import create_pipeline

__all__ = ["create_pipeline"]
