"""The bias of models that tell matching pairs from others one by one, as SigLIP does."""

from __future__ import annotations

import logging
from copy import deepcopy
from dataclasses import replace

import torch
from torch import nn

from compo_pipeline.models.loading import LoadedModel

log = logging.getLogger(__name__)


def give_bias(loaded: LoadedModel, start: float) -> LoadedModel:
    """A model with a logit_bias: its own where it has one, else one that starts as given.

    A softmax leaves any bias undetermined. Scale and bias decide what a pair is taken for before
    training: at a scale of 100, -30 puts pairs of a cosine of .3 between match and mismatch.

    Args:
        loaded: changed in place where it has no bias; its configuration is not.
        start: of the bias.

    Returns:
        The same model, under a configuration that builds it with a bias.
    """
    model = loaded.model
    if getattr(model, "logit_bias", None) is not None:
        return loaded
    scale: torch.Tensor = model.logit_scale  # type: ignore[assignment]
    model.logit_bias = nn.Parameter(torch.full_like(scale, start))
    log.info(
        "%s: logit_bias starts at %g, at a scale of %.1f.",
        *(loaded.name, start, scale.exp().item()),
    )
    config = deepcopy(dict(loaded.config))
    config["model_cfg"]["init_logit_bias"] = start
    return replace(loaded, config=config)
