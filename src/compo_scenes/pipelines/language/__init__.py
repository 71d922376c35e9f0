"""Pipeline `language`: trains, evaluates and assembles compo_en, the shipped spaCy pipeline."""

from compo_scenes.pipelines.language.pipeline import create_pipeline

__all__ = ["create_pipeline"]
