"""Settings of tracking, registration and promotion."""

from __future__ import annotations

import re
from dataclasses import field
from pathlib import Path
from typing import Annotated, Literal

from pydantic import (
    AfterValidator,
    Field,
    NonNegativeFloat,
    PositiveInt,
)

from compo_pipeline.benchmarks.items import Role
from compo_pipeline.core.settings import Name, Open, Share, settings

CHAMPION, PREVIOUS = "champion", "previous"


def _refuse_mlflow_alias(alias: str) -> str:
    """Validator: refuse an alias that MLflow reserves (latest, v1, v2, ...)."""
    if alias.lower() == "latest" or re.fullmatch("v[0-9]+", alias, re.IGNORECASE):
        raise ValueError(f"MLflow reserves '{alias}' (latest, v1, v2, ...); choose another alias")
    return alias


def _refuse_promotion_alias(alias: str) -> str:
    """Validator that refuses the aliases `champion` and `previous`, which only promotion gives."""
    if alias in (CHAMPION, PREVIOUS):
        raise ValueError(
            f"'{alias}' is given by `kedro run --pipeline=promotion` alone, through its gate"
        )
    return alias


# An alias that MLflow accepts.
Alias = Annotated[
    str, Field(pattern="^[A-Za-z0-9_-]+$", max_length=100), AfterValidator(_refuse_mlflow_alias)
]


# An alias that a model can get without passing the gate.
UngatedAlias = Annotated[Alias, AfterValidator(_refuse_promotion_alias)]


# Rows of the sample that is stored with a version.
MOST_REFERENCE_ROWS = 5000


# Without the kind `binding`, which needs the captions that a version was trained on.
SlicePattern = Annotated[str, Field(pattern="^(attribute|object|relation|length)=.")]


@settings
class SigningSettings:
    """Settings of signing (`registration.signing`): PEM files of an elliptic-curve key."""

    public_key: Path | None = None
    """Public key that verifies versions. With it, unsigned versions are neither promoted nor
    served. Null neither signs nor verifies."""
    private_key: Path | None = None
    """Private key that signs at registration, without a password. Null on machines that only
    verify."""

    def __post_init__(self) -> None:
        """Refuse a key that signs without the one that verifies."""
        if self.private_key is not None and self.public_key is None:
            raise ValueError("public_key: expected the PEM file of the public key, got null")


Part = Literal[
    "base", "images", "captions", "parser", "captioner", "caption_editor", "image_generator"
]
"""What a version is made from: weights of the base model, images, captions, the spaCy pipeline, and
models that caption, edit or generate."""


@settings
class RegistrationSettings:
    """Settings of the registration of a model: name, alias, licences and signing."""

    name: Name = "compo-clip"
    """Name of the registered model."""
    alias: UngatedAlias | None = "challenger"
    """Alias of the new version, taken from the version that had it. Null gives none."""
    precision: Literal["fp32", "fp16"] = "fp32"
    """Precision of the exported weights."""
    licence: str | None = None
    """Licence of the new weights in the model card, as Hugging Face's hub names it. Null: the card
    says that the licences of the base and of the data apply."""
    licences: dict[Part, str | None] = field(default_factory=dict)
    """Licence of each model or dataset that the version is made from, for its model card: an SPDX
    expression such as `MIT`, or the owner's name for it. Parts that are not named get the licence
    that an installed package states, or are listed as unknown."""
    rescore: Alias | None = None
    """Alias of the version that `kedro run --pipeline=rescore` registers again. Null is `alias`."""
    signing: SigningSettings = field(default_factory=SigningSettings)
    """Keys that versions are signed with."""


@settings
class GateRule:
    """Settings of one gate rule: a condition on a benchmark role, or on metrics.

    Every set of the role, or metric that the pattern matches, must satisfy it.
    """

    must: Literal["rise", "hold"]
    """`rise`: the 95% interval of the difference must be above `by`. `hold`: it must not reach
    below `-by`. For a role to rise, the mean over its sets must rise and no set may fall
    significantly."""
    role: Role | None = None
    """Role that the rule is about: composition, retrieval or zero_shot, measured by the benchmarks
    that were scored (docs/how-to/promotion.md). Null: the rule is about `figure`."""
    figure: str | None = None
    """Figure that the rule is about, `benchmark/metric/name` as MLflow names it below `test/`. `*`
    matches any text. Null: the rule is about `role`."""
    by: NonNegativeFloat = 0.0
    """Limit in points."""
    slice: SlicePattern | None = None
    """Pattern of slices, such as `attribute=red` or `length=*`, of a kind that `evaluation.slices`
    names. Every matching slice must satisfy the rule. Null judges all items. Only for figures."""

    def __post_init__(self) -> None:
        """Refuse a rule about a role and a figure, or about neither."""
        if (self.role is None) == (self.figure is None):
            got = "none" if self.role is None else "both"
            raise ValueError(f"role: expected one of role and figure, got {got}")
        if self.slice is not None and self.figure is None:
            raise ValueError("slice: expected null for a rule about a role; name a figure instead")


@settings
class Contamination:
    """Settings: largest share of a subtask's images and captions allowed in the training data."""

    images: Share | None = 0.0
    """Largest share of images with the same bytes as a training image. Null sets no limit."""
    captions: Share | None = None
    """Largest share of captions with the same words as a training caption. Null sets no limit."""


@settings
class Gate:
    """Settings of the promotion gate: its rules and limits."""

    version: int
    """Number of your own for this set of rules."""
    rules: Annotated[Open[GateRule], Field(min_length=1)]
    """Rules by name."""
    items: PositiveInt = 100
    """Least number of scored items, and of their images, for a figure."""
    skipped: Share = 0.0
    """Largest share of a figure's items that could not be scored."""
    contamination: Contamination = field(default_factory=Contamination)
    """Limits on overlaps with the training data. A subtask without this measurement fails."""


@settings
class PromotionSettings:
    """Settings of promotion: the gate, waived roles, rollback and dry runs."""

    gate: Gate
    """Rules that a challenger must pass."""
    waive: tuple[Role, ...] = ()
    """Roles that may be absent. A rule about such a role is left out if no set of it was scored,
    and applies otherwise. A waiver is recorded with the decision."""
    rollback: bool = False
    """Whether to make the previous champion the champion again, without judging a challenger."""
    dry_run: bool = False
    """Whether to decide and report without changing the registry."""
