"""Page of images with the source's captions and the model's captions."""

from __future__ import annotations

from pathlib import Path

from compo_pipeline.core.seeding import drawn
from compo_pipeline.generation.recaption.recaptioning import Recaptioning
from compo_pipeline.pages.pages import Card, Cards, List, Page, Side, counted, image_card

PAGE = "recaptions.html"
COUNT = 50
_REJECTED = 20  # shown
_COUNTS = {
    "rejected": "Without a new caption, by reason",
    "openings": "Opening phrases that were removed",
    "shared_first_sentences": "First sentences that many captions share",
}


def recaptions_page(
    recaptioning: Recaptioning, root: Path, dataset: str, count: int = COUNT
) -> Page:
    """The page of images with original and model captions.

    Args:
        recaptioning: captions, images without one, and their numbers.
        root: the folder that images are relative to.
        dataset: name of the dataset, which also seeds the draw of the shown images.
        count: images drawn at random.
    """
    rows, report = recaptioning.rows, recaptioning.report
    captioned = [
        Card(
            [row.image],
            [
                Side("image", image_card(root, row.image)),
                Side("new", text=row.caption, kind="positive"),
                Side("old" if row.originals else "old: none", lines=row.originals),
            ],
        )
        for row in drawn(rows, count, "recaptions", dataset)
    ]
    refused = [
        Card(
            [row.image, row.rule.replace("_", " ")],
            [Side("image", image_card(root, row.image)), Side(problem=row.detail)],
        )
        for row in drawn(recaptioning.rejected, _REJECTED, "recaptions", dataset)
    ]
    dates = sorted({row.date[:10] for row in rows} - {""})
    facts = {name: str(report[name]) for name in ("captioner", "model", "prompt") if report[name]}
    if dates:
        facts["date"] = " to ".join(dict.fromkeys((dates[0], dates[-1])))
    return Page(
        f"Recaptions of {dataset}",
        "Captions that a model wrote",
        [
            List(
                [f"{text}: {counted(report[key])}." for key, text in _COUNTS.items() if report[key]]
            ),
            Cards(captioned, note=f"{len(captioned)} new captions, drawn at random."),
            Cards(
                refused,
                title="Without a new caption",
                note="Drawn at random. `recaptions_quarantine` has each with its reason.",
            ),
        ],
        [f"{report['captions']:,} of {report['images']:,} images have a new caption."],
        facts,
    )
