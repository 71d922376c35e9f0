"""Pipeline `promotion`: a challenger that passes the gate becomes champion."""

from compo_pipeline.pipelines.promotion.pipeline import create_pipeline

__all__ = ["create_pipeline"]
