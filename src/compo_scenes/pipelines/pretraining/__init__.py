"""Pipeline `pretraining`: the base model `scenes-base`, trained on rendered scenes alone."""

from compo_scenes.pipelines.pretraining.pipeline import create_pipeline

__all__ = ["create_pipeline"]
