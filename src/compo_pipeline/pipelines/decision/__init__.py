"""Part of `promotion` and `rollback`: the page of a decision, and its lines in the terminal."""

from compo_pipeline.pipelines.decision.pipeline import create_pipeline

__all__ = ["create_pipeline"]
