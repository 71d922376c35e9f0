"""Page on which a person judges items that are foils of captions, and their part of the report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

from jinja2.utils import htmlsafe_json_dumps

from compo_pipeline.benchmarks.foils import NAME
from compo_pipeline.core.records import Foil
from compo_pipeline.evaluation.comparison import Row
from compo_pipeline.evaluation.evaluate import Comparison
from compo_pipeline.generation.foils.build import STATES, USED
from compo_pipeline.generation.foils.review import Noise
from compo_pipeline.pages import pages
from compo_pipeline.pages.tables import Column, metrics_table

PAGE = "review.html"
_HOW = (
    "{} items, drawn at random among those that are scored. Accept an item if the caption is true "
    "of the image and the foil is false. Reject it if the foil is true as well, or the caption "
    "false. Judge every item: one that you pass over counts as unsure.",
    "Keys: `a` accept, `r` reject, `u` unsure, `j` or `k` the next or the previous item, `s` save. "
    "Put the saved file where the entry `foils_review` of conf/base/catalog.yml says; the next "
    "evaluation reads it.",
)
_FOILS = (
    "Of a caption of a held-out image and a foil, which differs from it in one expression and is "
    "false, the image must be closer to the caption. By text alone: the accuracy of a classifier "
    "that sees no image and has learnt from foils of training captions, with its upper 95% limit. "
)
_NO_REVIEW = (
    "No review of the label noise was read: the page of `kedro run --pipeline=foils` is one."
)
_REVIEW = (
    "Of {} items, drawn at random and reviewed by a person, {} are false and {} undecided: between "
    "{:.1f}% and {:.1f}% of all. Noise: the share of false items of a kind, with "
    "its exact 95% interval, undecided ones counted as right below and as false above."
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


def sections(
    comparison: Comparison,
    report: Mapping[str, Any],
    split: str | None,
    noise: Mapping[str, Noise],
) -> list[pages.Section]:
    """The part of a run's report about one set of foils: scored and unscored kinds.

    Args:
        comparison: comparison of the run.
        report: content of the dataset `foils_report`.
        split: name of the set that is scored; None for none.
        noise: noise by kind. The noise of all items has the empty name.
    """
    kinds: Mapping[str, Any] = report["splits"].get(split, {}).get("kinds", {})
    rows = [
        row
        for row in comparison.rows
        if row.benchmark == NAME and kinds.get(row.name, {}).get("state") == USED
    ]

    def share(row: Row) -> pages.Cell:
        if (own := noise.get(row.name)) is None:
            return pages.Cell(None)
        ends = f"{pages.interval(100 * own.low, 100 * own.high)} of {own.judged}"
        return pages.Cell(None if own.value is None else 100 * own.value, small=ends)

    own: dict[str, Column] = {
        "by text alone": lambda row: pages.Cell(
            100 * kinds[row.name]["text_accuracy"],
            small=f"at most {100 * kinds[row.name]['text_accuracy_limit']:.1f}",
        )
    }
    note = _NO_REVIEW
    if (every := noise.get("")) is not None:
        ends = (100 * every.low, 100 * every.high)
        note = _REVIEW.format(every.judged, every.rejected, every.unsure, *ends)
        own["noise"] = share
    unused = [
        f"{name.replace('_', ' ')}: {kind['items']:,} items, {_unused_reason(kind)}"
        for name, kind in kinds.items()
        if kind["state"] != USED
    ]
    title = "Foils of own captions"
    return [
        metrics_table(
            rows, comparison.labels, ["vs base"], (), own, title=title, note=_FOILS + note
        ),
        pages.List(unused, title="Foils that are not scored"),
    ]


def _unused_reason(found: Mapping[str, Any]) -> str:
    """Why a kind of foil is not scored, with its accuracy by text only, if measured."""
    reason = STATES[found["state"]]
    if (limit := found["text_accuracy_limit"]) is None:
        return reason
    return f"{reason}: {100 * found['text_accuracy']:.0f}%, at most {100 * limit:.0f}%"
