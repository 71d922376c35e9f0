"""NegCLIP: hard negatives as further texts of the contrast, the baseline of both papers.

Source: CLIC paper, Eq. 2 (their variant: `generators: [swap]`, the text tower alone); FSC-CLIP
paper, Sec. 4.1, NegCLIP with negatives drawn afresh and no batch of similar images (their variant:
`generators: [negclip]`, both towers).

Shapes: m rows of a batch, K negatives a row, T tokens of context, D width of the joint space.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from compo_pipeline.losses.negclip import negclip
from compo_pipeline.methods.contract import (
    Encoder,
    LossTerms,
    Term,
    require_tower,
)
from compo_pipeline.methods.text_negatives import (
    NegativesBatch,
    NegativeViews,
    Rule,
    TextNegatives,
)


@dataclass(frozen=True)
class NegClipViews(NegativeViews):
    """One swap a caption."""

    generators: tuple[Rule, ...] = ("negclip",)


@dataclass(frozen=True)
class NegClipObjective:
    """What is trained.

    Attributes:
        trains: towers that are trained.
    """

    trains: tuple[Literal["image", "text"], ...] = ("image", "text")

    def __post_init__(self) -> None:
        """Something must be left to train."""
        require_tower(self.trains)


class NegClip(TextNegatives):
    """CLIP fine-tuning against the captions and all hard negatives of the batch."""

    name: ClassVar[str] = "negclip"
    views_type: ClassVar[type] = NegClipViews
    objective_type: ClassVar[type] = NegClipObjective
    reads_patches: ClassVar[bool] = False

    def loss(self, encoder: Encoder, batch: NegativesBatch) -> LossTerms:
        """Eq. 2 of the CLIC paper."""
        images = encoder.images(batch.images)
        texts = encoder.texts(batch.texts.flatten(0, 1)).view(*batch.texts.shape[:2], -1)
        negatives, valid = texts[:, 1:].flatten(0, 1), batch.valid.flatten()
        return {"negclip": Term(negclip(images, texts[:, 0], negatives, valid, encoder.scale), 1.0)}
