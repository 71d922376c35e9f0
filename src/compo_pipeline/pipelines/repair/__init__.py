"""Pipeline `repair`: aliases that name versions which do not exist are repaired."""

from compo_pipeline.pipelines.repair.pipeline import create_pipeline

__all__ = ["create_pipeline"]
