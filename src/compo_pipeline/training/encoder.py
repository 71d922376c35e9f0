"""A model's towers as methods use them: whole or in parts, on pixels or on stored features.

Shapes: m images and K texts of a batch, P patches, T tokens, D width of the joint space.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from compo_pipeline.core.compute import Compute
from compo_pipeline.methods.contract import HEAD
from compo_pipeline.models import dense, encoding
from compo_pipeline.training.features import Features
from compo_pipeline.training.ranks import ALONE, Ranks


@dataclass(frozen=True, eq=False)
class ModelEncoder:
    """The model's towers as methods call them: in the training precision, returning float32.

    bf16 rounds logits of a hundred to halves, so losses are computed in float32. A frozen image
    tower builds no graph, one of which the projection alone trains none before that.
    """

    model: Any
    """Model on the device."""

    name: str
    """Name of the model, for errors."""

    features: Features | None
    """Features of the frozen part of the image tower. None encodes images at each step."""

    image_trains: bool
    """Whether gradients reach the image tower."""

    compute: Compute
    """Device and precision of the towers."""

    memory: dict[str, Tensor] = field(default_factory=dict)
    """State that a loss carries from step to step."""

    ranks: Ranks = ALONE
    """Processes that each encode a share of the batch's rows. Every process gets all texts, but
    only its own share of images that are not precomputed."""

    microbatch: int | None = None
    """Images or texts that a tower encodes at a time, to be encoded again for the gradient; None
    encodes all at once.
    """

    @property
    def scale(self) -> Tensor:
        """The scalar exp(logit_scale), with a gradient only in the first process."""
        return self._counted_once(encoding.scale_of(self.model))

    @property
    def bias(self) -> Tensor:
        """The scalar logit_bias, with a gradient only in the first process."""
        return self._counted_once(self.model.logit_bias)

    def images(self, images: Tensor) -> Tensor:
        """Normalised embeddings [m, D] of pixels, or of row numbers of precomputed features."""
        if self.features is None:
            return self._map_images(
                lambda pixels: (encoding.encode_images(self.model, pixels),), images
            )[0]
        values = self.features.values
        if not self.features.pooled:
            return values[images]
        own = images[self.ranks.share(len(images))]
        return self._in_parts(
            lambda rows: (encoding.project_images(self.model, values[rows]),), (own,), len(images)
        )[0]

    def texts(self, tokens: Tensor) -> Tensor:
        """Normalised embeddings [K, D] of token ids [K, T]."""
        return self._map_texts(lambda some: (encoding.encode_texts(self.model, some),), tokens)[0]

    def dense_images(self, images: Tensor) -> dense.DenseImages:
        """Embeddings [m, D] and patch tokens [m, P, D] of pixels, or of row numbers of features."""
        if self.features is not None:
            assert self.features.patches is not None, "features were stored without patch tokens"
            pooled, patches = self.features.values[images], self.features.patches[images]
        else:
            pooled, patches = self._map_images(
                lambda pixels: dense.encode_images_densely(self.model, pixels, self.name), images
            )
        return dense.DenseImages(pooled, patches.float())

    def dense_texts(self, tokens: Tensor) -> dense.DenseTexts:
        """Embeddings [K, D] and tokens [K, T, D], with their mask [K, T], of token ids."""
        pooled, tokens, mask = self._map_texts(
            lambda some: dense.encode_texts_densely(self.model, some, self.name), tokens
        )
        return dense.DenseTexts(pooled, tokens.float(), mask)

    def text_tokens(self, tokens: Tensor) -> dense.TextTokens:
        """Embeddings [K, D] and all tokens [K, T, D] of token ids."""
        encoded = self._map_texts(
            lambda some: dense.encode_text_tokens(self.model, some, self.name), tokens
        )
        return dense.TextTokens(*encoded)

    def head(self, *rows: Tensor) -> Tensor:
        """Results [n, E] of the method's own module, of tensors [n, ...]."""
        module, count = getattr(self.model, HEAD), len(rows[0])

        def apply(*some: Tensor) -> tuple[Tensor, ...]:
            with self.compute.autocast():
                return (module(*some),)

        return self._in_parts(apply, [one[self.ranks.share(count)] for one in rows], count)[0]

    def _counted_once(self, parameter: Tensor) -> Tensor:
        """The parameter, detached in all processes but the first, so its gradient counts once."""
        return parameter if self.ranks.first else parameter.detach()

    def _map_images(self, encode: _Encode, own: Tensor) -> tuple[Tensor, ...]:
        """Results of an encoding function for the images of all processes.

        A frozen tower builds no graph.
        """

        def images(pixels: Tensor) -> tuple[Tensor, ...]:
            graph = self.image_trains and torch.is_grad_enabled()
            with torch.set_grad_enabled(graph), self.compute.autocast():
                return encode(pixels)

        return self._in_parts(images, (own,), sum(self.ranks.gather_values(len(own))))

    def _map_texts(self, encode: _Encode, tokens: Tensor) -> tuple[Tensor, ...]:
        """Results of an encoding function for all texts.

        This process encodes its share.
        """
        own = tokens[self.ranks.share(len(tokens))]

        def texts(some: Tensor) -> tuple[Tensor, ...]:
            with self.compute.autocast():
                return encode(some)

        if len(own) == 0:  # no tower encodes zero texts
            return self._in_parts(
                lambda some: tuple(each[:0] for each in texts(some)), (tokens[:1],), len(tokens)
            )
        return self._in_parts(texts, (own,), len(tokens))

    def _in_parts(self, encode: _Encode, own: Sequence[Tensor], count: int) -> tuple[Tensor, ...]:
        """Encode this process's rows in microbatches, and gather the results of all processes."""
        size = self.microbatch or len(own[0])
        chunks = list(zip(*(torch.split(one, size) for one in own), strict=True))
        if len(chunks) == 1:
            parts = [encode(*own)]
        else:
            # Only embeddings are stored; the backward pass encodes each chunk again, with the same
            # random numbers, so that the memory is that of one chunk (GradCache, Gao et al. 2021).
            parts = [checkpoint(encode, *chunk, use_reentrant=False) for chunk in chunks]
        if len(chunks) == self.ranks.world == 1:
            return parts[0]
        columns = list(zip(*parts, strict=True))
        # Tokens of texts are cut to the longest text of each part.
        widths = [max(tensor.shape[1] for tensor in column) for column in columns]
        longest = [max(width) for width in zip(*self.ranks.gather_values(widths), strict=True)]
        return tuple(
            self.ranks.gather(torch.cat([pad_rows(one, width) for one in column]), count)
            for column, width in zip(columns, longest, strict=True)
        )


_Encode = Callable[..., tuple[Tensor, ...]]


def pad_rows(rows: Tensor, length: int) -> Tensor:
    """Rows [K, T, ...] padded with zeros along T to a given length."""
    return F.pad(rows, (0, 0) * (rows.ndim - 2) + (0, length - rows.shape[1]))
