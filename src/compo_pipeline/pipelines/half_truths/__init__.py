"""Pipeline `half_truths`: a benchmark of half-truths from any captions."""

from compo_pipeline.pipelines.half_truths.pipeline import create_pipeline

__all__ = ["create_pipeline"]
