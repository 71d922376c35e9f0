"""Page of captions and their edits, with real and counterfactual images side by side."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from compo_pipeline.core.records import Caption, Counterfactual
from compo_pipeline.core.seeding import drawn
from compo_pipeline.generation.counterfactuals.tables import FAILED, failure_reasons, summary
from compo_pipeline.pages import pages

COUNT = 40
_KINDS = 32  # kinds of edits listed
_REASONS = 8  # failure reasons listed
_NOTE = (
    "{:,} of {:,} captions, drawn at random. A negative means something else than its caption, a "
    "positive the same; new words are marked."
)


def counterfactuals_page(
    rows: Sequence[Counterfactual],
    captions: Sequence[Caption],
    root: Path,
    images: Path,
    dataset: str,
    count: int = COUNT,
) -> pages.Page:
    """The page of edited captions and their images.

    Args:
        rows: all counterfactuals.
        captions: rows that include all edited ones.
        root: the folder that real images are relative to.
        images: the folder that counterfactual images are relative to.
        dataset: name of the dataset, which also seeds the draw of the shown captions.
        count: captions drawn at random.
    """
    title, over = f"Counterfactuals of {dataset}", "Edited captions and their images"
    if not rows:
        text = "There is no counterfactual to show: the method of this run does not use any."
        return pages.Page(title, over, [pages.Text(text)])
    edited = list(dict.fromkeys((row.sample_id, row.sentence) for row in rows))
    edits: dict[tuple[str, int], list[Counterfactual]] = {
        key: [] for key in drawn(edited, count, "counterfactuals", dataset)
    }
    for row in rows:
        if (row.sample_id, row.sentence) in edits:
            edits[row.sample_id, row.sentence].append(row)
    names = {name for name, _ in edits}
    of_sample = {one.sample_id: one for one in captions if one.sample_id in names}
    cards = [
        pages.Card([f"{name}, sentence {place + 1}"], [*_sides(of_sample[name], own, root, images)])
        for (name, place), own in edits.items()
    ]
    found = summary(rows)
    note = _NOTE.format(len(cards), len(edited))
    note += " No images were generated." * (not found["image_generator"])
    facts = {name: found[name] for name in ("caption_editor", "image_generator", "fingerprint")}
    kinds = Counter(
        (row.role, row.state, "" if row.state == FAILED else row.detail.partition(":")[0])
        for row in rows
    )
    sections = [
        pages.Table(
            ("edits", "state", "kind", "times"),
            [
                (role, state, kind.replace("_", " "), times)
                for (role, state, kind), times in kinds.most_common(_KINDS)
            ],
            ["state", "kind"],
        ),
        pages.Table(
            ("failed", "times", "reason"),
            [(one.role, one.times, one.reason) for one in failure_reasons(rows)[:_REASONS]],
            ["reason"],
            note="`counterfactuals_quarantine` has every failure with its reason.",
        ),
        pages.Cards(cards, title="Captions", note=note),
    ]
    shown = {name.replace("_", " "): text for name, text in facts.items() if text}
    return pages.Page(title, over, sections, facts=shown)


def _sides(
    row: Caption, edits: Sequence[Counterfactual], root: Path, images: Path
) -> Iterator[pages.Side]:
    """Yield a caption with its image, and its edits with theirs."""
    caption = row.sentences[edits[0].sentence]
    yield pages.Side("real", pages.image_card(root, row.image), caption)
    for edit in edits:
        failed = f"failed: {edit.detail}" if edit.state == FAILED else ""
        detail = "" if failed or not edit.detail else f": {edit.detail.replace('_', ' ')}"
        image = pages.image_card(images, edit.image) if edit.image else pages.ImageCard()
        yield pages.Side(
            f"{edit.role}{detail}",
            image if edit.image_generator else None,
            pages.marked(edit.text or "", [caption]),
            problem=failed,
            kind=edit.role,
        )
