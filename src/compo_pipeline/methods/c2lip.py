"""C2LIP: concepts (noun phrases) of the captions, and cross-attention pooling.

It has no hard negatives.

Source: "No Hard Negatives Required: Concept Centric Learning Leads to Compositionality without
Degrading Zero-shot Capabilities of Contrastive Models", Sec. 3. Configuration alone reaches the
paper's ablations: a weight of 0 leaves a loss out.

Shapes: m rows of a batch, K concepts of all rows, U distinct ones, T tokens of context, D width of
the joint space.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Literal, NamedTuple

import torch
import torch.nn.functional as F
from pydantic import NonNegativeFloat
from torch import Tensor

from compo_pipeline.core.records import Caption, View
from compo_pipeline.core.settings import settings
from compo_pipeline.language.concepts import concepts, locate_phrases
from compo_pipeline.losses import concept, contrastive
from compo_pipeline.methods.clip import SOFTMAX_TRAINED
from compo_pipeline.methods.contract import (
    Collated,
    Encoder,
    Example,
    LossTerms,
    Method,
    Need,
    Objective,
    Preprocessor,
    Sampler,
    Term,
    ViewContext,
)
from compo_pipeline.methods.views import single_image, single_view


@settings
class C2lipWeights:
    """Weights of C2LIP's losses (Eq. 8): captions, noun phrases, and cross-attended phrases.

    0 leaves one of the last two out.
    """

    contrastive: NonNegativeFloat = 1.0
    """Weight of the contrast of images with captions."""

    npc: NonNegativeFloat = 1.0
    """Weight of the contrast of images with noun phrases; 0 leaves it out."""

    xac: NonNegativeFloat = 0.01
    """Weight of the contrast of phrases with the patches that they attend to. 0 leaves it out."""


@settings
class C2lipObjective(Objective):
    """Settings of C2LIP's training: weights of the losses, and trained towers."""

    weights: C2lipWeights = C2lipWeights()
    """Weights of the losses."""

    phrases: Literal["text", "tokens"] = "text"
    """How a concept is embedded: `text` encodes it as a short text of its own (the authors' code),
    `tokens` averages its tokens within the caption (the paper's Fig. 1b).
    """

    bias: float = SOFTMAX_TRAINED
    """Initial logit_bias for a base that was trained with a softmax and has none."""


class ConceptBatch(NamedTuple):
    """C2LIP batch: m images with their captions, and one list of the captions' concepts.

    `phrases` holds the concepts in one of two ways: it is [U, T] token ids of the distinct ones
    (of the empty text where there is none), or [K, T] bool, the caption's tokens that each
    consists of.
    """

    images: Tensor  # [m, 3, H, W], or [m] rows of features
    texts: Tensor  # [m, T]
    owners: Tensor  # [K], the row that a concept belongs to
    labels: Tensor  # [K], which of the U distinct concepts it is
    phrases: Tensor  # [max(U, 1), T] token ids, or [K, T] bool


class C2lip(Method):
    """The C2LIP method: contrasts images with their captions and with noun phrases of these."""

    name = "c2lip"
    objective_type = C2lipObjective
    objective: C2lipObjective
    annotations = ("phrases",)
    """Fields of an external table that views can use: phrases."""

    @property
    def needs(self) -> Mapping[Need, str]:
        """Mapping from each dense feature that `loss` needs to the setting that avoids the need."""
        found: dict[Need, str] = {}
        if self.objective.weights.xac:
            found["patches"] = "set c2lip.objective.weights.xac to 0"
        if self.objective.phrases == "tokens" and (self.objective.weights.npc or found):
            found["tokens"] = "set c2lip.objective.phrases to text"
        return found

    def sampler(self, captions: Sequence[Caption], context: ViewContext) -> Sampler:
        """A function from a caption to its view: caption and noun phrases, from parse or table."""
        table = context.annotations

        def view(caption: Caption) -> View:
            if "phrases" in table.contents:
                found = locate_phrases(caption.sentences[0], table.phrases(caption.sample_id))
            else:
                found = concepts(context.parses[caption.sample_id])
            return single_view(caption, caption.sentences[:1], (), context.language, found)

        return view

    def collate(
        self, examples: Sequence[Example], step: int, preprocessor: Preprocessor
    ) -> Collated:
        """Batch of images, captions and concepts.

        Concepts with the same text are encoded once.
        """
        captions = [example.view.positives[0].lower() for example in examples]
        rows = [row for row, example in enumerate(examples) for _ in example.view.phrases]
        texts = [phrase.lower() for example in examples for phrase in example.view.phrases]
        distinct = list(dict.fromkeys(texts))
        place = {text: label for label, text in enumerate(distinct)}
        owners = torch.tensor(rows, dtype=torch.long)
        labels = torch.tensor([place[text] for text in texts], dtype=torch.long)
        counts = {"rows": len(examples), "concepts": len(texts), "distinct concepts": len(distinct)}
        if self.objective.phrases == "text":
            # No tower embeds zero texts: where no caption has a concept, the empty one is unused.
            phrases = preprocessor.tokens(distinct or [""])
        else:
            spans = [span for example in examples for span in _phrase_spans(example.view)]
            within = preprocessor.spans(captions, rows, spans)
            there = within.any(dim=1)
            counts["concepts cut off with their caption"] = int((~there).sum())
            owners, labels, phrases = owners[there], labels[there], within[there]
        images = preprocessor.images([single_image(example) for example in examples])
        tokens = preprocessor.tokens(captions)
        return Collated(ConceptBatch(images, tokens, owners, labels, phrases), counts)

    def loss(self, encoder: Encoder, batch: ConceptBatch) -> LossTerms:
        """Weighted losses of Eq. 8: captions, noun phrases, and cross-attended noun phrases."""
        weights, scale, bias = self.objective.weights, encoder.scale, encoder.bias
        if self.uses_patches:
            images, patches = encoder.dense_images(batch.images)
        else:
            images = encoder.images(batch.images)
        texts, phrases = self._embed(encoder, batch)
        own = contrastive.sigmoid(images, texts, scale, bias)
        terms = {"contrastive": Term(own, weights.contrastive)}
        if phrases is None:
            return terms
        matches = concept.match_mask(batch.owners, len(images))
        if weights.npc:
            terms["npc"] = Term(concept.npc(images, phrases, matches, scale, bias), weights.npc)
        if self.uses_patches:
            attended = concept.xac(patches, phrases, matches, scale, bias)
            terms["xac"] = Term(attended, weights.xac)
        return terms

    def _embed(self, encoder: Encoder, batch: ConceptBatch) -> tuple[Tensor, Tensor | None]:
        """Embeddings of captions [m, D], and of concepts [K, D] if a loss reads them, else None."""
        if not (self.objective.weights.npc or self.uses_patches):
            return encoder.texts(batch.texts), None
        if self.objective.phrases == "text":
            return encoder.texts(batch.texts), encoder.texts(batch.phrases)[batch.labels]
        texts, tokens = encoder.text_tokens(batch.texts)
        within = batch.phrases[:, : tokens.shape[1]].to(tokens.dtype)
        summed = torch.einsum("kt,ktd->kd", within, tokens[batch.owners])
        return texts, F.normalize(summed, dim=-1)


def _phrase_spans(view: View) -> Iterator[tuple[int, int]]:
    """Yield the character spans of a view's phrases in its lower-cased caption.

    Lower-casing may make the caption longer ("I" with a dot becomes two characters).
    """
    caption, places = view.positives[0], iter(view.phrase_spans)
    for start, end in zip(places, places, strict=True):
        first = len(caption[:start].lower())
        yield first, first + len(caption[start:end].lower())
