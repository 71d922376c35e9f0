"""What a training starts from: part of the pipelines `training` and `tuning`."""

from compo_pipeline.pipelines.training_inputs.pipeline import create_pipeline

__all__ = ["create_pipeline"]
