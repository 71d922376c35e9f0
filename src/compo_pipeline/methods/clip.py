"""Plain fine-tuning: CLIP (a softmax over the batch) and SigLIP (a sigmoid for each pair).

They are methods of their own, and the controls of the other methods: CLIP of those without a
logit_bias, SigLIP of those with one. They see the anchor's image and a sentence of its own, of the
same rows as the method, whatever its views hold.

Shapes: m rows of a batch, T tokens of context.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from torch import Tensor

from compo_pipeline.core.records import Caption
from compo_pipeline.core.settings import settings
from compo_pipeline.losses import contrastive
from compo_pipeline.methods.contract import (
    Collated,
    Encoder,
    Example,
    LossTerms,
    Method,
    NoViewSettings,
    Objective,
    Preprocessor,
    Sampler,
    Term,
    Towers,
    ViewContext,
)
from compo_pipeline.methods.views import own_sentence, single_image, single_view

# logit_bias on a base that was trained with a softmax, at a scale of 100.
SOFTMAX_TRAINED = -30.0


@settings
class ClipObjective(Objective):
    """Settings of CLIP's training: trained towers, and whether logit_scale is trained."""

    trains: Towers = ("text",)
    """Towers that train. A control trains the towers of its method."""

    trains_scale: bool = True
    """Whether logit_scale and logit_bias train. A control follows its method."""


class PairBatch(NamedTuple):
    """CLIP batch: m images, each with its caption."""

    images: Tensor  # [m, 3, H, W], or [m] rows of features
    texts: Tensor  # [m, T]


class Clip(Method):
    """The CLIP method: fine-tuning on image-caption pairs with the softmax loss."""

    name = "clip"
    objective_type = ClipObjective

    objective: ClipObjective

    def sampler(self, captions: Sequence[Caption], context: ViewContext) -> Sampler:
        """A function from a caption to its view: the caption's image and first sentence."""
        return lambda caption: single_view(caption, caption.sentences[:1], (), "")

    def collate(
        self, examples: Sequence[Example], step: int, preprocessor: Preprocessor
    ) -> Collated:
        """Batch of each example's own image and the sentence paired with it, lower-cased."""
        images = preprocessor.images([single_image(example) for example in examples])
        texts = preprocessor.tokens([own_sentence(example).lower() for example in examples])
        return Collated(PairBatch(images, texts), {"rows": len(examples)})

    def loss(self, encoder: Encoder, batch: PairBatch) -> LossTerms:
        """The CLIP loss of a batch as the only loss term."""
        images, texts = encoder.images(batch.images), encoder.texts(batch.texts)
        return {"clip": Term(contrastive.clip(images, texts, encoder.scale), 1.0)}


@settings
class SiglipObjective(ClipObjective):
    """Settings of SigLIP's training: trained towers and scale, and the initial logit_bias."""

    bias: float = SOFTMAX_TRAINED
    """Initial logit_bias for a base that was trained with a softmax and has none. The default suits
    a scale of 100: with -10, as SigLIP starts from random weights, pairs that do not match would
    start at +8."""


class Siglip(Clip):
    """The SigLIP method: fine-tuning on image-caption pairs with the sigmoid loss."""

    name = "siglip"
    objective_type = SiglipObjective
    objective: SiglipObjective

    def loss(self, encoder: Encoder, batch: PairBatch) -> LossTerms:
        """SigLIP's sigmoid loss of a batch as the only loss term."""
        images, texts = encoder.images(batch.images), encoder.texts(batch.texts)
        own = contrastive.sigmoid(images, texts, encoder.scale, encoder.bias)
        return {"contrastive": Term(own, 1.0)}


def control_of(method: Method) -> Clip:
    """The control of a method: plain CLIP or SigLIP fine-tuning of the same weights.

    Plain CLIP, or plain SigLIP for a method with a logit_bias. It runs as many steps as the method,
    over the same rows, at the same batch size and rate; its loss is also what validation measures.
    """
    trains = tuple(sorted(method.trains))
    if method.bias is None:
        return Clip(NoViewSettings(), ClipObjective(trains, method.trains_scale))
    return Siglip(NoViewSettings(), SiglipObjective(trains, method.trains_scale, method.bias))
