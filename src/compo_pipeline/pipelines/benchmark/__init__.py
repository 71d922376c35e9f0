"""Pipeline `benchmark`: any models on the benchmarks, without a training."""

from compo_pipeline.pipelines.benchmark.pipeline import create_pipeline

__all__ = ["create_pipeline"]
