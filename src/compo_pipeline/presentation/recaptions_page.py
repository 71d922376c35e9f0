"""Page of images with the source's captions and those that a model wrote."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple, TypeVar

from compo_pipeline.datasets.recaption.recaptioning import Recaptioning
from compo_pipeline.presentation import pages
from compo_pipeline.presentation.pages import ImageCard, image_card
from compo_pipeline.run.seeding import rng

PAGE = "recaptions.html"
COUNT = 50
_REJECTED = 20  # shown

Row = TypeVar("Row")


class RecaptionCard(NamedTuple):
    """An image with its original captions, and the model's caption or why there is none."""

    image: ImageCard
    originals: Sequence[str]
    caption: str
    rule: str
    detail: str


def write(
    recaptioning: Recaptioning,
    dry_run: int | None,
    root: Path,
    file: Path,
    dataset: str,
    *,
    count: int = COUNT,
) -> Path:
    """Write the page of images with original and model captions, as one self-contained file.

    Args:
        recaptioning: captions, images without one, and their numbers.
        dry_run: images of a dry run; None for a run of all.
        root: the folder that images are relative to.
        file: where to write.
        dataset: its name, which also seeds the draw of the images that are shown.
        count: images drawn at random.
    """
    rows, rejected = recaptioning.rows, recaptioning.rejected
    report = recaptioning.report
    shown = [
        RecaptionCard(image_card(root, row.image), row.originals, row.caption, "", "")
        for row in _draw_rows(rows, count, dataset)
    ]
    refused = [
        RecaptionCard(image_card(root, row.image), (), "", row.rule, row.detail)
        for row in _draw_rows(rejected, _REJECTED, dataset)
    ]
    dates = sorted({row.date[:10] for row in rows} - {""})
    facts = {
        "captioner": str(report["captioner"]),
        "model": str(report["model"]),
        "prompt": str(report["prompt"]),
        "date": " to ".join(dict.fromkeys((dates[0], dates[-1]))) if dates else "",
    }
    context = {
        "title": f"Recaptions of {dataset}",
        "facts": {label: text for label, text in facts.items() if text},
        "report": report,
        "dry_run": dry_run,
        "cards": shown,
        "rejected": refused,
        "openings": list(report["openings"].items()),
    }
    return pages.write(file, "recaptions.html", context)


def _draw_rows(rows: Sequence[Row], count: int, dataset: str) -> list[Row]:
    """Random sample of table rows, in their original order."""
    places = rng("recaptions", dataset).sample(range(len(rows)), min(count, len(rows)))
    return [rows[place] for place in sorted(places)]
