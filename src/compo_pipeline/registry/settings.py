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
    """Validator: refuse the aliases `champion` and `previous`, which promotion alone gives."""
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
    """Settings of signing (YAML key `registration.signing`): PEM files of an elliptic-curve key."""

    public_key: Path | None = None
    """The public key, which verifies. With it, unsigned versions are neither promoted nor served;
    null: versions are neither signed nor verified."""
    private_key: Path | None = None
    """The private key, which signs at registration; null on machines that only verify."""
    password_variable: str | None = None
    """Name of the environment variable with the private key's password; null: it has none."""

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
    """Settings of the registration of a trained model (YAML key `registration`)."""

    name: Name = "compo-clip"
    """The registered model."""
    alias: UngatedAlias | None = "challenger"
    """Alias of the new version, taken from the version that had it; null gives none."""
    precision: Literal["fp32", "fp16"] = "fp32"
    """Of the exported weights."""
    licence: str | None = None
    """Licence of the weights in the model card, as Hugging Face's hub names it; null: the card says
    that the licences of the base and of the data apply."""
    licences: dict[Part, str | None] = field(default_factory=dict)
    """Licence of each model or data set that the version is made from, in its model card: an SPDX
    expression such as `MIT`, or the name that the owners give it. Of one that is not named: what an
    installed package states; of anything else the card says that it is unknown."""
    rescore: Alias | None = None
    """Alias of the version that `kedro run --pipeline=rescore` registers again; null is `alias`."""
    signing: SigningSettings = field(default_factory=SigningSettings)
    """Keys that versions are signed with."""


@settings
class GateRule:
    """Settings of one gate rule: a condition on a benchmark role, or on metrics.

    Every set of the role, or metric that the pattern matches, must satisfy it.
    """

    must: Literal["rise", "hold"]
    """`rise`: the 95% interval of the difference is above `by`; `hold`: it does not reach below
    `-by`. For a role to rise, the mean over its sets must, and no set may fall significantly."""
    role: Role | None = None
    """What the rule is about, by whichever sets were scored; docs/how-to/promotion.md lists which
    metric a set is. Null: `figure`."""
    figure: str | None = None
    """`benchmark/metric/name`, as MLflow names it below `test/`; `*` matches any text. Null:
    `role`."""
    by: NonNegativeFloat = 0.0
    """Points."""
    slice: SlicePattern | None = None
    """Only within the slices of the items that this pattern matches, such as `attribute=red` or
    `length=*`, of a kind that `evaluation.slices` names; every one must satisfy it. Null: all
    items. For figures alone."""

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
    """Images with the same bytes; null: no limit."""
    captions: Share | None = None
    """Captions with the same words; null: no limit."""


@settings
class Gate:
    """Settings of the promotion gate (YAML key `promotion.gate`)."""

    version: int
    """A number of your own for these rules."""
    rules: Annotated[Open[GateRule], Field(min_length=1)]
    """Rules by name."""
    items: PositiveInt = 100
    """The least number of scored items, and of their images, for a figure."""
    skipped: Share = 0.0
    """The largest share of a figure's items that could not be scored."""
    contamination: Contamination = field(default_factory=Contamination)
    """Limits; a subtask whose contamination was not measured fails."""


@settings
class PromotionSettings:
    """Settings of promotion and rollback (YAML key `promotion`)."""

    gate: Gate
    """What a challenger must show."""
    waive: tuple[Role, ...] = ()
    """Roles without which a challenger may pass: the rules about one of these are left out where no
    set of it was scored, and hold where one was. A waiver is recorded with the decision."""
    rollback: bool = False
    """Make the previous champion the champion again, and judge no challenger."""
    dry_run: bool = False
    """Decide and report, and leave the registry as it is."""
