"""LabCLIP: NegCLIP's loss, of which a linear map of the text embeddings alone learns.

Source: "CLIP Behaves like a Bag-of-Words Model Cross-modally but not Uni-modally" (arXiv
2502.03566), and its authors' code: the map starts as the identity. Embeddings are normalised after
it, so it is part of the text tower's projection, with which it is merged at the end.

Shapes: W width of the text tower, D width of the joint space.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from compo_pipeline.methods.contract import Need
from compo_pipeline.methods.negclip import NegClip
from compo_pipeline.models.encoding import text_projection


class _Map(nn.Module):
    """A linear map [D, D] of what a projection gives, at first the identity."""

    def __init__(self, like: Tensor, width: int, *, transposed: bool) -> None:
        super().__init__()
        self.map = nn.Parameter(torch.eye(width, dtype=like.dtype, device=like.device))
        self._transposed = transposed

    def forward(self, projection: Tensor) -> Tensor:
        """The projection [W, D], or as a module has it [D, W], followed by the map."""
        return self.map.T @ projection if self._transposed else projection @ self.map


class LabClip(NegClip):
    """The LabCLIP method: a linear map of text embeddings, trained against hard negatives.

    The map trains in place of the towers that the objective names, which a control trains.
    """

    name = "lab_clip"

    @property
    def trains_scale(self) -> bool:
        """False: all but the map is as it was."""
        return False

    @property
    def needs(self) -> Mapping[Need, str]:
        """The projection of the text tower, which the map follows."""
        return {"text_projection": "choose a base with one, or method=negclip"}

    def extend(self, model: nn.Module, name: str) -> Callable[[], None]:
        """Map what the text tower projects; the function that it returns merges the map."""
        module, attribute = text_projection(model, name)
        own, linear = getattr(module, attribute), isinstance(module, nn.Linear)
        added = _Map(own, own.shape[0 if linear else 1], transposed=linear)
        parts = [attribute, "bias"] if linear and module.bias is not None else [attribute]
        for part in parts:
            parametrize.register_parametrization(module, part, added)

        def merge() -> None:
            for part in parts:
                parametrize.remove_parametrizations(module, part)

        return merge
