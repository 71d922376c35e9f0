"""Pipeline `shipped`: the parser compo_en and the base model scenes-base of the package."""

from compo_scenes.pipelines.shipped.pipeline import create_pipeline

__all__ = ["create_pipeline"]
