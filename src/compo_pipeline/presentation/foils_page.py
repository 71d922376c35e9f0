"""Page on which a person judges items that are foils of captions, and their part of the report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from compo_pipeline.benchmarks.foils import NAME
from compo_pipeline.diagnosis.diagnose import Diagnosis
from compo_pipeline.evaluation.comparison import Row
from compo_pipeline.evaluation.evaluate import Comparison
from compo_pipeline.foils.build import STATES, USED
from compo_pipeline.foils.review import Corrected, Noise, corrected
from compo_pipeline.presentation import pages
from compo_pipeline.presentation.pages import ImageCard, changed_words, image_card
from compo_pipeline.storage.records import Foil

PAGE = "review.html"


class ItemToJudge(NamedTuple):
    """A foil on the review page: its image, and both texts with the differing words marked."""

    item: str
    kind: str
    image: ImageCard
    caption: list[tuple[str, bool]]
    foil: list[tuple[str, bool]]


def write(drawn: Sequence[Foil], report: Mapping[str, Any], root: Path, file: Path) -> Path:
    """Write the page on which a person reviews foils, as one self-contained HTML file.

    Args:
        drawn: its items, in their order; at least one.
        report: `foils_report`.
        root: folder that the images' paths are relative to.
        file: where to write.
    """
    split = drawn[0].split
    context = {
        "title": f"Review of the foils of '{split}'",
        "facts": {"fingerprint": report["fingerprint"], "language model": report["language"]},
        "review": {
            "builder": report["builder"],
            "fingerprint": report["fingerprint"],
            "split": split,
        },
        "items": [
            ItemToJudge(
                one.item,
                one.kind,
                image_card(root, one.image),
                list(changed_words(one.caption, [one.foil])),
                list(changed_words(one.foil, [one.caption])),
            )
            for one in drawn
        ],
    }
    return pages.write(file, "foils_review.html", context)


class KindRow(NamedTuple):
    """A kind of foil in a run's report: accuracies, accuracy by text alone, and label noise.

    `corrected` are the accuracies without false items by role, in per cent.
    """

    kind: str
    row: Row
    text_accuracy: float
    text_accuracy_limit: float
    noise: Noise | None
    corrected: Mapping[str, Corrected]


class UnusedKind(NamedTuple):
    """A kind of foil that is not scored, with its number of items and the reason."""

    kind: str
    items: int
    reason: str


@dataclass(frozen=True)
class FoilsSection:
    """The part of a run's report about foils; `noise` is the label noise of all reviewed items."""

    kinds: Sequence[KindRow] = ()
    unused: Sequence[UnusedKind] = ()
    noise: Noise | None = None
    diagnosis: Diagnosis = field(default_factory=Diagnosis)


def section(
    comparison: Comparison,
    report: Mapping[str, Any],
    split: str | None,
    noise: Mapping[str, Noise],
) -> FoilsSection:
    """The part of a run's report about one set of foils: scored and unscored kinds.

    Args:
        comparison: of the run.
        report: `foils_report`.
        split: name of the set that is scored; None for none.
        noise: by kind, that of all items under the empty name.
    """
    kinds: Mapping[str, Any] = report["splits"].get(split, {}).get("kinds", {})
    rows = {row.name: row for row in comparison.rows if row.benchmark == NAME}
    used = [name for name, found in kinds.items() if found["state"] == USED and name in rows]
    return FoilsSection(
        [_kind_row(name, rows[name], kinds[name], noise.get(name)) for name in used],
        [
            UnusedKind(name, found["items"], _unused_reason(found))
            for name, found in kinds.items()
            if found["state"] != USED
        ],
        noise.get(""),
    )


def _kind_row(kind: str, row: Row, found: Mapping[str, Any], noise: Noise | None) -> KindRow:
    """The report's row of a kind of foil, with accuracies corrected for its label noise."""
    without = {
        role: noise and corrected(each.value / 100, each.low / 100, each.high / 100, noise)
        for role, each in row.values.items()
    }
    return KindRow(
        kind,
        row,
        100 * found["text_accuracy"],
        100 * found["text_accuracy_limit"],
        noise,
        {
            role: Corrected(100 * one.value, 100 * one.low, 100 * one.high)
            for role, one in without.items()
            if one
        },
    )


def _unused_reason(found: Mapping[str, Any]) -> str:
    """Why a kind of foil is not scored, with its accuracy by text alone if that was measured."""
    reason = STATES[found["state"]]
    if (limit := found["text_accuracy_limit"]) is None:
        return reason
    return f"{reason}: {100 * found['text_accuracy']:.0f}%, at most {100 * limit:.0f}%"
