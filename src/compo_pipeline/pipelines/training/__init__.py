"""Pipeline `training`: views to a checkpoint, and to the control that it is compared with."""

from compo_pipeline.pipelines.training.pipeline import create_pipeline

__all__ = ["create_pipeline"]
