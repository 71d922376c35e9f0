"""A model's towers as methods see them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from compo_pipeline.compute import Compute
from compo_pipeline.models.dense import (
    DenseImages,
    DenseTexts,
    TextTokens,
    encode_images_densely,
    encode_text_tokens,
    encode_texts_densely,
)
from compo_pipeline.models.encoding import bias_of, encode_images, encode_texts, scale_of
from compo_pipeline.training.features import Features


@dataclass(frozen=True, eq=False)
class ModelEncoder:
    """Towers compute in the precision given, losses in float32: bf16 rounds logits of a hundred
    to halves. A frozen image tower builds no graph.

    Attributes:
        model: on the device.
        name: of the model, for errors.
        features: of a frozen image tower; None encodes images as they come.
        image_trains: whether gradients reach the image tower.
        compute: device and precision of the towers.
    """

    model: nn.Module
    name: str
    features: Features | None
    image_trains: bool
    compute: Compute

    @property
    def scale(self) -> Tensor:
        """exp(logit_scale), a scalar."""
        return scale_of(self.model)

    @property
    def bias(self) -> Tensor:
        """logit_bias, a scalar."""
        return bias_of(self.model)

    def images(self, images: Tensor) -> Tensor:
        """Normalised embeddings [m, D] of pixels, or of rows of precomputed features."""
        if self.features is not None:
            return self.features.values[images]
        with self._seeing():
            return encode_images(self.model, images)

    def texts(self, tokens: Tensor) -> Tensor:
        """Normalised embeddings [K, D] of token ids [K, T]."""
        with self.compute.autocast():
            return encode_texts(self.model, tokens)

    def dense_images(self, images: Tensor) -> DenseImages:
        """Embeddings [m, D] and patch tokens [m, P, D] of pixels, or of rows of features."""
        if self.features is not None:
            assert self.features.patches is not None, "features were kept without patch tokens"
            pooled, patches = self.features.values[images], self.features.patches[images]
        else:
            with self._seeing():
                pooled, patches = encode_images_densely(self.model, images, self.name)
        return DenseImages(pooled, patches.float())

    def dense_texts(self, tokens: Tensor) -> DenseTexts:
        """Embeddings [K, D] and tokens [K, T, D], with their mask [K, T], of token ids."""
        with self.compute.autocast():
            pooled, dense, mask = encode_texts_densely(self.model, tokens, self.name)
        return DenseTexts(pooled, dense.float(), mask)

    def text_tokens(self, tokens: Tensor) -> TextTokens:
        """Embeddings [K, D] and all tokens [K, T, D] of token ids."""
        with self.compute.autocast():
            return encode_text_tokens(self.model, tokens, self.name)

    @contextmanager
    def _seeing(self) -> Iterator[None]:
        """How the image tower runs: without a graph where it is frozen."""
        graph = self.image_trains and torch.is_grad_enabled()
        with torch.set_grad_enabled(graph), self.compute.autocast():
            yield
