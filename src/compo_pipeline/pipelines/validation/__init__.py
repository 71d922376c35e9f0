"""Pipeline `validation`: caption rows are checked against rules; bad rows go to quarantine."""

from compo_pipeline.pipelines.validation.pipeline import create_pipeline

__all__ = ["create_pipeline"]
