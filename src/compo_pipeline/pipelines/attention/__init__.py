"""Pipeline `attention`: attention of phrases over images, before fine-tuning and after."""

from compo_pipeline.pipelines.attention.pipeline import create_pipeline

__all__ = ["create_pipeline"]
