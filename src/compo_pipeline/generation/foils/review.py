"""Review of items by a person: the drawn items, the verdicts, and the share of noise."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from scipy.special import betaincinv

from compo_pipeline.core.records import Foil
from compo_pipeline.core.seeding import rng
from compo_pipeline.core.settings import Open, SettingsError, parse
from compo_pipeline.core.untrusted import shown
from compo_pipeline.generation.foils.build import USED

DRAWN = 100
"""Items on the page."""
KEY = "foils_review"
"""The catalog entry of the file, for messages."""
_LEVEL = 0.95

Verdict = Literal["accept", "reject", "unsure"]


@dataclass(frozen=True)
class Review:
    """Content of the review file that the review page saves: verdicts, and the items reviewed."""

    builder: int
    """Version of the builder."""
    fingerprint: str
    """Fingerprint of the items."""
    split: str
    """Name of their set."""
    verdicts: Open[Verdict] = field(default_factory=dict)
    """accept: the caption is true of the image, the foil false; reject: not so; or unsure."""


class Noise(NamedTuple):
    """Share of false items among the reviewed ones, with its 95% interval.

    Attributes:
        judged: items with a verdict, of which `rejected` are false and `unsure` undecided.
        value: share of rejected items among the decided ones. None if none was decided.
        low: end of the interval if all undecided ones are right.
        high: end of the interval if all undecided ones are false.
    """

    judged: int
    rejected: int
    unsure: int
    value: float | None
    low: float
    high: float


def draw(foils: Iterable[Foil], split: str | None, fingerprint: str) -> list[Foil]:
    """Draw at most `DRAWN` items of a set for review, at random and in random order.

    Args:
        foils: all items.
        split: name of the set. None draws none.
        fingerprint: fingerprint of the items, which seeds the draw.
    """
    own = (one for one in foils if one.split == split and one.state == USED)
    used = sorted(own, key=lambda one: one.item)
    return rng("foils review", fingerprint, split or "").sample(used, min(DRAWN, len(used)))


def read(
    content: Mapping[str, Any], report: Mapping[str, Any], drawn: Sequence[Foil]
) -> dict[str, Verdict]:
    """Read the verdicts by item from a review file's content, empty if there is no file.

    Args:
        content: content of the file. Empty for none.
        report: `foils_report`, with builder and fingerprint.
        drawn: items that `draw` returned.

    Raises:
        SettingsError: it is no review, or one of other items.
    """
    if not content:
        return {}
    found = parse(Review, content, KEY)
    split = drawn[0].split if drawn else None
    known = {one.item for one in drawn}
    for name, given, expected in (
        ("builder", found.builder, report["builder"]),
        ("fingerprint", found.fingerprint, report["fingerprint"]),
        ("split", found.split, split),
    ):
        if given != expected:
            raise SettingsError(
                f"{KEY}: the review is one of other items: {name} is {shown(given)}, "
                f"expected {shown(expected)}; remove the file (conf/base/catalog.yml says where "
                "it is), and review the page that `kedro run --pipeline=foils` writes"
            )
    if unknown := next((item for item in found.verdicts if item not in known), None):
        raise SettingsError(
            f"{KEY}: the review judges the item {shown(unknown)}, which is none of the "
            f"{len(known)} of the page; save the file from the page again"
        )
    return dict(found.verdicts)


def noise_by_kind(drawn: Sequence[Foil], verdicts: Mapping[str, Verdict]) -> dict[str, Noise]:
    """Share of false items for each reviewed kind of foil, with its interval.

    "" stands for all kinds.

    An item that was passed over, before one with a verdict in the order of the draw, counts as
    unsure: what a person leaves out is no random part.
    """
    ends = [place for place, one in enumerate(drawn) if one.item in verdicts]
    seen = drawn[: ends[-1] + 1] if ends else ()
    by_kind: dict[str, list[Verdict]] = {}
    for one in seen:
        for name in ("", one.kind):
            by_kind.setdefault(name, []).append(verdicts.get(one.item, "unsure"))
    return {name: _noise_interval(given) for name, given in by_kind.items()}


def _noise_interval(verdicts: Sequence[Verdict]) -> Noise:
    """Share of items with the verdict `reject`, with a Clopper-Pearson 95% interval.

    It is exact ("The use of confidence or fiducial limits illustrated in the case of the binomial",
    Biometrika 26, 1934), whatever the undecided are.
    """
    judged, rejected, unsure = len(verdicts), verdicts.count("reject"), verdicts.count("unsure")
    decided, tail = judged - unsure, (1 - _LEVEL) / 2
    low, high, most = 0.0, 1.0, rejected + unsure
    if rejected:
        low = float(betaincinv(rejected, judged - rejected + 1, tail))
    if most < judged:
        high = float(betaincinv(most + 1, judged - most, 1 - tail))
    return Noise(judged, rejected, unsure, rejected / decided if decided else None, low, high)
