"""Pipeline `benchmark_diff`: the items on which two scored models differ."""

from compo_pipeline.pipelines.benchmark_diff.pipeline import create_pipeline

__all__ = ["create_pipeline"]
