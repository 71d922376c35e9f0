"""Base models: sizes and costs of their towers, and the methods and exports that fit them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from open_clip.tokenizer import SimpleTokenizer
from torch import nn

from compo_pipeline.core.settings import PlainError
from compo_pipeline.methods.contract import Method
from compo_pipeline.models import hf_export
from compo_pipeline.models.cost import cost_of
from compo_pipeline.models.loading import skeleton
from compo_pipeline.models.settings import ModelSettings
from compo_pipeline.models.sources import find_architecture
from compo_pipeline.training.optimisation import misfits
from compo_pipeline.training.settings import TrainingSettings


@dataclass(frozen=True, slots=True)
class BaseModel:
    """Size and cost of a base model, and what fits it, by its architecture alone.

    Attributes:
        name: name in the list of models.
        parameters: parameters of the image tower and of the whole model, in millions.
        gflops: operations of one image and of one text (`ModelCost.gflops`).
        tokens: ids of one text.
        misfits: reason why a method cannot train it, by the method's label. Methods that fit are
            left out.
        transformers: class of Hugging Face transformers that holds it, or empty if none does.
        problem: why nothing is known of it. Empty if the rest is known.
    """

    name: str
    parameters: tuple[float, float] = (0, 0)
    gflops: tuple[float, float] = (0, 0)
    tokens: int = 0
    misfits: Mapping[str, str] = field(default_factory=dict)
    transformers: str = ""
    problem: str = ""


def describe(
    name: str, model: ModelSettings, methods: Mapping[str, Method], recipe: TrainingSettings
) -> BaseModel:
    """Describe a base model without its weights.

    Args:
        name: name in the list of models.
        model: settings of the model. Only the configuration of a model on the hub is downloaded.
        methods: methods that may train it, by label.
        recipe: recipe of the training.
    """
    try:
        plan = find_architecture(model)
        module = skeleton(plan.name, plan.model_cfg)
    except PlainError as error:
        return BaseModel(name, problem=error.message)
    tokens = int(plan.model_cfg["text_cfg"].get("context_length", 77))
    cost = cost_of(module, tokens)
    return BaseModel(
        name,
        parameters=cost.parameters,
        gflops=cost.gflops,
        tokens=tokens,
        transformers=_transformers_class(module, plan.model_cfg["embed_dim"]),
        misfits={
            label: reason
            for label, method in methods.items()
            if (reason := next(misfits(module, plan.name, method, recipe), None))
        },
    )


def _transformers_class(module: nn.Module, width: int) -> str:
    """Class of transformers that an export would write, or empty."""
    try:
        with torch.device("meta"):
            return type(hf_export.convert(module, SimpleTokenizer(), width)).__name__
    except hf_export.UNSUPPORTED:
        return ""
