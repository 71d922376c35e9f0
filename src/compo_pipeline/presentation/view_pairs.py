"""Synthetic pairs of views, for the page that shows them: told beside the caption, and counted.

`View.counterfactuals` names the negative's image, then the positive's; `negatives[0]` is the
edited caption, `positives[1]` the retold one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from compo_pipeline.presentation.text_differences import marked
from compo_pipeline.records import View

ROLES = ("negative", "positive")
_NAMED = 12  # kinds told of an epoch

Origins = Sequence[Mapping[str, Any] | None]


@dataclass(frozen=True, slots=True)
class Side:
    """One synthetic pair of a view.

    `pieces` are its text, each piece with whether it is new to the caption, none where there is no
    text; `gone` is what only the caption says. `kind` is the kind of the edit, empty where the
    view tells none; `image` the path of the image, empty where there is none.
    """

    role: str
    pieces: tuple[tuple[str, bool], ...]
    gone: tuple[str, ...]
    kind: str
    image: str


@dataclass(frozen=True, slots=True)
class RoleTally:
    """Of all views of an epoch and one role: how many have a text, an image, both."""

    role: str
    texts: int
    images: int
    both: int


@dataclass(frozen=True, slots=True)
class PairTally:
    """Of all views of an epoch: each role, how many have both pairs whole, and kinds of edits."""

    roles: tuple[RoleTally, ...]
    whole: int
    kinds: tuple[tuple[str, int], ...]


def sides(view: View, origins: Origins) -> tuple[Side, ...]:
    """The negative and the positive pair; neither of a view whose method asks for none.

    Args:
        view: of any method.
        origins: of its negatives, from its provenance.
    """
    if not view.counterfactuals:
        return ()
    caption, kinds = view.positives[0], (kind(origins), "")
    return tuple(
        Side(
            role,
            tuple(marked(text, [caption])) if text else (),
            _changed(caption, text) if text else (),
            name,
            image,
        )
        for role, text, name, image in zip(
            ROLES, _texts(view), kinds, view.counterfactuals, strict=True
        )
    )


def tally(views: Sequence[View], origins: Sequence[Origins]) -> PairTally | None:
    """What there is to tell, None where no view has synthetic pairs.

    Args:
        views: one epoch's.
        origins: of each one's negatives.
    """
    kinds = Counter[str]()
    there: list[tuple[tuple[bool, bool], ...]] = []  # of each view and role: text, image
    for view, sources in zip(views, origins, strict=True):
        if view.counterfactuals:
            pairs = zip(_texts(view), view.counterfactuals, strict=True)
            there.append(tuple((bool(text), bool(image)) for text, image in pairs))
            kinds.update([kind(sources)] if view.negatives[0] else [])
    if not there:
        return None
    return PairTally(
        roles=tuple(
            RoleTally(
                role,
                texts=sum(text for text, _ in pairs),
                images=sum(has_image for _, has_image in pairs),
                both=sum(map(all, pairs)),
            )
            for role, pairs in zip(ROLES, zip(*there, strict=True), strict=True)
        ),
        whole=sum(all(map(all, pairs)) for pairs in there),
        kinds=tuple(kinds.most_common(_NAMED)),
    )


def kind(origins: Origins) -> str:
    """Kind of the edit that made the negative: its category up to the colon that opens what was
    changed; empty where there is none.
    """
    return origins[0]["category"].partition(":")[0] if origins and origins[0] else ""


def _texts(view: View) -> tuple[str | None, str | None]:
    """The edited caption and the retold one."""
    return view.negatives[0], view.positives[1] if len(view.positives) > 1 else None


def _changed(text: str, other: str) -> tuple[str, ...]:
    """The pieces of a text that the other one lacks."""
    return tuple(piece for piece, changed in marked(text, [other]) if changed)
