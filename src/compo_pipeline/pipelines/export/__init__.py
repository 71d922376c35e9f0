"""Pipeline `export`: the checkpoint in the formats of other programs: transformers, ONNX."""

from compo_pipeline.pipelines.export.pipeline import create_pipeline

__all__ = ["create_pipeline"]
