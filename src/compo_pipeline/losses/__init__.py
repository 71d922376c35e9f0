"""Losses: pure functions of tensors, one idea a module.

Shapes: m rows of a batch, L positives a row, K hard negatives a row, P patches, T tokens, D width
of the joint space. Pooled embeddings are L2-normalised, patches and tokens are not; `scale` is
exp(logit_scale) and `bias` logit_bias, scalar tensors. Some papers write similarities without the
scale, all code multiplies by it.
"""
