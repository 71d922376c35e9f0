"""Pipeline `benchmarks_available`: which benchmarks are there, and which are missing."""

from compo_pipeline.pipelines.benchmarks_available.pipeline import create_pipeline

__all__ = ["create_pipeline"]
