"""Pipeline `copy`: a version is copied to another registry."""

from compo_pipeline.pipelines.copy.pipeline import create_pipeline

__all__ = ["create_pipeline"]
