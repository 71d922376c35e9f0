"""C2LIP: concepts (noun phrases) of the captions, and cross-attention pooling; no hard negatives.

Source: "No Hard Negatives Required: Concept Centric Learning Leads to Compositionality without
Degrading Zero-shot Capabilities of Contrastive Models", Sec. 3. Configuration alone reaches the
paper's ablations: a weight of 0 leaves a loss out.

Shapes: m rows of a batch, K concepts of all rows, U distinct ones, T tokens of context, D width of
the joint space.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from compo_pipeline.language.concepts import concepts
from compo_pipeline.losses import concept, contrastive
from compo_pipeline.methods.contract import (
    Collated,
    Drawing,
    Encoder,
    Example,
    ImageInput,
    LossTerms,
    Reader,
    Term,
    Tower,
    require_tower,
)
from compo_pipeline.methods.provenance import provenance
from compo_pipeline.methods.siglip import SOFTMAX_TRAINED
from compo_pipeline.methods.singles import single_image, single_view
from compo_pipeline.records import Caption, View


@dataclass(frozen=True)
class C2lipViews:
    """Nothing to choose: a caption's concepts are its noun phrases."""


@dataclass(frozen=True)
class C2lipWeights:
    """Weights of the three losses (paper, Eq. 8); 0 leaves one of the last two out."""

    contrastive: float = 1.0
    npc: float = 1.0
    xac: float = 0.01

    def __post_init__(self) -> None:
        """A loss is not trained against."""
        for name, weight in (("npc", self.npc), ("xac", self.xac)):
            if weight < 0:
                raise ValueError(f"{name}: expected at least 0, got {weight}")


@dataclass(frozen=True)
class C2lipObjective:
    """What is trained, and on what.

    Attributes:
        weights: of the losses.
        phrases: how a concept is embedded: `text` encodes it as a short text of its own (the
            authors' code), `tokens` averages its tokens within the caption (the paper's Fig. 1b).
        equal_phrases: whether a concept that reads alike in two captions is true of both images;
            the paper takes it for false of all but its own.
        bias: where logit_bias starts on a base that was trained with a softmax and has none.
        chunk: images that the xac loss attends to at a time; decides its memory, not its value.
        trains: towers that are trained.
    """

    weights: C2lipWeights = field(default_factory=C2lipWeights)
    phrases: Literal["text", "tokens"] = "text"
    equal_phrases: bool = False
    bias: float = SOFTMAX_TRAINED
    chunk: int = 16
    trains: tuple[Literal["image", "text"], ...] = ("image", "text")

    def __post_init__(self) -> None:
        """Bounds that a type cannot say."""
        require_tower(self.trains)
        if self.chunk < 1:
            raise ValueError(f"chunk: expected at least 1, got {self.chunk}")


class ConceptBatch(NamedTuple):
    """m images with their captions, and the concepts of all captions, flat.

    The last two say the same of concepts in two ways: `phrases` is [U, T] token ids of the distinct
    ones, or [K, T] bool, the caption's tokens that each consists of.
    """

    images: Tensor  # [m, 3, H, W], or [m] rows of features
    texts: Tensor  # [m, T]
    owners: Tensor  # [K], the row that a concept belongs to
    labels: Tensor  # [K], which of the U distinct concepts it is
    phrases: Tensor  # [U, T] token ids, or [K, T] bool


class C2lip:
    """C2LIP on single images."""

    name: ClassVar[str] = "c2lip"
    views_type: ClassVar[type] = C2lipViews
    objective_type: ClassVar[type] = C2lipObjective
    sentences: ClassVar[int] = 1
    parsed_sentences: ClassVar[int] = 1
    trains_scale: ClassVar[bool] = True

    def __init__(self, views: C2lipViews, objective: C2lipObjective) -> None:
        self.objective = objective
        self.bias = objective.bias

    @property
    def trains(self) -> frozenset[Tower]:
        """As configured; both towers in the paper."""
        return frozenset(self.objective.trains)

    @property
    def reads_patches(self) -> bool:
        """The xac loss does."""
        return self.objective.weights.xac > 0

    def views(self, captions: Sequence[Caption], drawing: Drawing) -> Iterator[View]:
        """Each caption with its concepts; nothing is drawn."""
        for caption in captions:
            yield single_view(
                caption,
                caption.sentences[:1],
                (),
                provenance(drawing.language, ()),
                concepts(drawing.parses[caption.sample_id]),
            )

    def needed(self, example: Example, step: int) -> tuple[ImageInput]:
        """Always the caption's own image."""
        return (single_image(example),)

    def collate(self, examples: Sequence[Example], step: int, reader: Reader) -> Collated:
        """Images, captions and concepts, a concept once an encoding where it reads alike."""
        captions = [example.view.positives[0].lower() for example in examples]
        rows = [row for row, example in enumerate(examples) for _ in example.view.phrases]
        texts = [phrase.lower() for example in examples for phrase in example.view.phrases]
        distinct = list(dict.fromkeys(texts))
        place = {text: label for label, text in enumerate(distinct)}
        owners = torch.tensor(rows, dtype=torch.long)
        labels = torch.tensor([place[text] for text in texts], dtype=torch.long)
        counts = {"rows": len(examples), "concepts": len(texts), "distinct concepts": len(distinct)}
        if self.objective.phrases == "text":
            phrases = reader.tokens(distinct)
        else:
            spans = [span for example in examples for span in _spans(example.view)]
            within = reader.spans(captions, rows, spans)
            there = within.any(dim=1)
            counts["concepts cut off with their caption"] = int((~there).sum())
            owners, labels, phrases = owners[there], labels[there], within[there]
        images = reader.images([single_image(example) for example in examples])
        tokens = reader.tokens(captions)
        return Collated(ConceptBatch(images, tokens, owners, labels, phrases), counts)

    def loss(self, encoder: Encoder, batch: ConceptBatch) -> LossTerms:
        """The three losses of Eq. 8."""
        weights, scale, bias = self.objective.weights, encoder.scale, encoder.bias
        if self.reads_patches:
            images, patches = encoder.dense_images(batch.images)
        else:
            images = encoder.images(batch.images)
        texts, phrases = self._embedded(encoder, batch)
        own = contrastive.sigmoid(images, texts, scale, bias)
        terms = {"contrastive": Term(own, weights.contrastive)}
        if phrases is None:
            return terms
        labels = batch.labels if self.objective.equal_phrases else None
        matches = concept.belonging(batch.owners, len(images), labels)
        if weights.npc:
            terms["npc"] = Term(concept.npc(images, phrases, matches, scale, bias), weights.npc)
        if self.reads_patches:
            attended = concept.xac(patches, phrases, matches, scale, bias, self.objective.chunk)
            terms["xac"] = Term(attended, weights.xac)
        return terms

    def _embedded(self, encoder: Encoder, batch: ConceptBatch) -> tuple[Tensor, Tensor | None]:
        """Captions [m, D], and concepts [K, D] where a loss asks for them."""
        if not (self.objective.weights.npc or self.reads_patches):
            return encoder.texts(batch.texts), None
        if self.objective.phrases == "text":
            return encoder.texts(batch.texts), encoder.texts(batch.phrases)[batch.labels]
        texts, tokens = encoder.text_tokens(batch.texts)
        within = batch.phrases[:, : tokens.shape[1]].to(tokens.dtype)
        summed = torch.einsum("kt,ktd->kd", within, tokens[batch.owners])
        return texts, F.normalize(summed, dim=-1)


def _spans(view: View) -> Iterator[tuple[int, int]]:
    """Character spans of the phrases in the lower-cased caption, which may be longer ("I" with a
    dot becomes two characters).
    """
    caption, places = view.positives[0], iter(view.phrase_spans)
    for start, end in zip(places, places, strict=True):
        first = len(caption[:start].lower())
        yield first, first + len(caption[start:end].lower())
