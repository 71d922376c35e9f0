"""Page on which a person judges items that are foils of captions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

from jinja2.utils import htmlsafe_json_dumps

from compo_pipeline.core.records import Foil
from compo_pipeline.pages import pages

PAGE = "review.html"
_HOW = (
    "{} items, drawn at random among those that are scored. Accept an item if the caption is true "
    "of the image and the foil is false. Reject it if the foil is true as well, or the caption "
    "false. Judge every item: one that you pass over counts as unsure.",
    "Keys: `a` accept, `r` reject, `u` unsure, `j` or `k` the next or the previous item, `s` save. "
    "Put the saved file where the entry `foils_review` of conf/base/catalog.yml says; the next "
    "evaluation reads it.",
)


def review_page(drawn: Sequence[Foil], report: Mapping[str, Any], root: Path) -> pages.Page:
    """The page on which a person reviews foils.

    Args:
        drawn: items in their order, at least one.
        report: content of the dataset `foils_report`.
        root: folder that the images' paths are relative to.
    """
    split = drawn[0].split
    review = {"builder": report["builder"], "fingerprint": report["fingerprint"], "split": split}
    review["items"] = [one.item for one in drawn]
    script = files(__package__).joinpath("templates/foils_review.js").read_text("utf-8")
    cards = [
        pages.Card(
            [f"{place}. {one.kind.replace('_', ' ')}", one.item],
            [
                pages.Side("image", pages.image_card(root, one.image)),
                pages.Side("caption", text=pages.marked(one.caption, [one.foil]), kind="positive"),
                pages.Side("foil", text=pages.marked(one.foil, [one.caption]), kind="negative"),
            ],
        )
        for place, one in enumerate(drawn, 1)
    ]
    return pages.Page(
        f"Review of the foils of '{split}'",
        "Foils of own captions",
        [pages.List([_HOW[0].format(len(drawn)), _HOW[1]]), pages.Cards(cards)],
        facts={"fingerprint": report["fingerprint"], "language model": report["language"]},
        script=f"var review = {htmlsafe_json_dumps(review)};\n{script}",
    )
