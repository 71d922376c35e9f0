"""Pipeline `rollback`: the previous champion is champion again."""

from compo_pipeline.pipelines.rollback.pipeline import create_pipeline

__all__ = ["create_pipeline"]
