"""Which foils are built of the held-out rows."""

from __future__ import annotations

from dataclasses import field
from typing import Annotated, Literal, get_args

from pydantic import Field, NonNegativeInt

from compo_pipeline.core.settings import Open, Share, settings

Kind = Literal[
    "swapped_attributes",
    "swapped_objects",
    "replaced_attribute",
    "replaced_object",
    "replaced_relation",
    "added_attribute",
    "half_truth",
]
KINDS: tuple[Kind, ...] = get_args(Kind)
FEWEST = 10  # five couples


@settings
class FoilSettings:
    """Settings of the foil items that are built from captions of held-out rows."""

    splits: Open[str] = field(default_factory=dict)
    """Sets of items by name (val, test), each with the split whose rows it is made of; without any,
    none are built. Sets of one split share its images, by the hash of their content."""
    carve: NonNegativeInt = 0
    """Images that are held out of training, drawn by a hash: of those that data.sample leaves
    (split held_out); where these are too few, of the training images, at most a tenth (split
    carved). held_out in `splits` stands for both, but for rows that train. All variants of a
    dataset share it."""
    kinds: tuple[Kind, ...] = KINDS
    """What a foil has changed."""
    least: Annotated[int, Field(ge=FEWEST)] = 100
    """Items of a kind and split below which it is reported, and never gated or tuned on; of fewer
    than ten the accuracy of a classifier of texts is not known."""
    text_accuracy: Annotated[Share, Field(gt=0.5)] = 0.55
    """A kind is used if the upper 95% limit of the accuracy of a classifier that sees its texts
    alone, and learns from foils of training captions, is at most this."""
