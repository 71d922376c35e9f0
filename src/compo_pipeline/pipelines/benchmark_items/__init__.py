"""Part of `evaluation`, `rescore` and `wise_ft`: the items that models are scored on."""

from compo_pipeline.pipelines.benchmark_items.pipeline import create_pipeline

__all__ = ["create_pipeline"]
