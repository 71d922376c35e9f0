"""Pipeline `registration`: the checkpoint becomes an open_clip folder and a version in MLflow."""

from compo_pipeline.pipelines.registration.pipeline import create_pipeline

__all__ = ["create_pipeline"]
