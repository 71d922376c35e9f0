"""Part of `benchmark` and `benchmark_diff`: the items that a list of models is scored on."""

from compo_pipeline.pipelines.suite_items.pipeline import create_pipeline

__all__ = ["create_pipeline"]
