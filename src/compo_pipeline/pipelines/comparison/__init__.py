"""Pipeline `comparison`: methods, variants and seeds side by side.

A cell of its table is a method under a variant, with one run of `train_eval`'s pipelines for each
seed, in the folders of that run. Missing cells are trained.
"""

from compo_pipeline.pipelines.comparison.pipeline import create_pipeline

__all__ = ["create_pipeline"]
