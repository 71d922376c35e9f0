"""Settings of the foils that are built from held-out captions."""

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
    """Sets of foil items by name (val, test), each with its source split. Without any, none are
    built. Sets from one split share its images, by a hash of their content."""
    carve: NonNegativeInt = 0
    """Number of images that are held out of training, drawn by a hash. They come from images
    outside of data.sample (split held_out). If these are too few, at most a tenth of the training
    images are added (split carved). In `splits`, held_out stands for both, except for rows that
    train. All variants of a dataset share it."""
    kinds: tuple[Kind, ...] = KINDS
    """Kinds of change that foils make."""
    least: Annotated[int, Field(ge=FEWEST)] = 100
    """Least number of items of a kind and split. Kinds with fewer are reported, but never used by
    the gate or by tuning. With fewer than ten, the accuracy of a text classifier is unknown."""
    text_accuracy: Annotated[Share, Field(gt=0.5)] = 0.55
    """A kind is used if a classifier that sees only its texts, and learns from foils of training
    captions, is right for at most this share (upper 95% limit)."""
