"""Compositional fine-tuning of CLIP-like models: from raw captions to a registered model."""

__version__ = "0.1.0"
