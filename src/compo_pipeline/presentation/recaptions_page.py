"""Page of images with the source's captions and those that a model wrote."""

from __future__ import annotations

from pathlib import Path

from compo_pipeline.datasets.recaption.recaptioning import Recaptioning
from compo_pipeline.presentation.pages import Card, Cards, Page, Side, counted, image_card
from compo_pipeline.run.seeding import drawn

PAGE = "recaptions.html"
COUNT = 50
_REJECTED = 20  # shown


def recaptions_page(
    recaptioning: Recaptioning, dry_run: int | None, root: Path, dataset: str, count: int = COUNT
) -> Page:
    """The page of images with original and model captions.

    Args:
        recaptioning: captions, images without one, and their numbers.
        dry_run: images of a dry run; None for a run of all.
        root: the folder that images are relative to.
        dataset: its name, which also seeds the draw of the images that are shown.
        count: images drawn at random.
    """
    rows, rejected, report = recaptioning.rows, recaptioning.rejected, recaptioning.report
    missing = report["images"] - report["captions"]
    shown = drawn(rows, count, "recaptions", dataset)
    refused = drawn(rejected, _REJECTED, "recaptions", dataset)
    note = f"{report['captions']:,} of {report['images']:,} images have a new caption"
    if report["rejected"]:
        note += f"; {missing:,} have none, by reason: {counted(report['rejected'])}"
    if shown:
        note += f". {len(shown)} are shown"
        note += ", drawn at random" * (len(shown) < report["captions"])
    for label, counts in (
        ("Opening phrases that were removed", report["openings"]),
        ("First sentences that many captions share", report["shared_first_sentences"]),
    ):
        note += f". {label}: {counted(counts)}" if counts else ""
    if dry_run:
        note += f". A dry run of {dry_run:,} images, drawn at random: no table was written"
    sections = [
        Cards(
            [
                Card(
                    [row.image],
                    [
                        Side("image", image_card(root, row.image)),
                        Side("new", text=row.caption, kind="positive"),
                        Side("old" if row.originals else "old: none", lines=row.originals),
                    ],
                )
                for row in shown
            ],
            note=f"{note}.",
        )
    ]
    if refused:
        cards = [
            Card(
                [row.image, row.rule.replace("_", " ")],
                [Side("image", image_card(root, row.image)), Side(problem=row.detail)],
            )
            for row in refused
        ]
        note = f"{len(refused)} of {missing:,}. `recaptions_quarantine` has each with its reason."
        sections.append(Cards(cards, title="Without a new caption", note=note))
    dates = sorted({row.date[:10] for row in rows} - {""})
    facts = {name: str(report[name]) for name in ("captioner", "model", "prompt") if report[name]}
    if dates:
        facts["date"] = " to ".join(dict.fromkeys((dates[0], dates[-1])))
    title = f"Recaptions of {dataset}"
    return Page(title, "Captions that a model wrote", sections, facts=facts)
