"""Losses: pure functions of tensors, one idea a module.

Shapes: m rows of a batch, L positives a row, D width of the joint space. Embeddings are
L2-normalised; `scale` is exp(logit_scale), a scalar tensor. Papers write similarities without it,
all code multiplies by it.
"""
