"""Page of captions and their edits, with real and counterfactual images side by side."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from itertools import islice
from pathlib import Path

from compo_pipeline.counterfactuals.tables import FAILED, failure_reasons, summary
from compo_pipeline.presentation import pages
from compo_pipeline.run.seeding import rng
from compo_pipeline.storage.records import Caption, Counterfactual

COUNT = 40
LEAST = 3  # captions shown of each kind of edit, if there are as many
_KINDS = 16  # kinds of edits listed per role
_REASONS = 8  # failure reasons listed


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
        rows: all counterfactuals, those of a caption one after another.
        captions: rows that include all edited ones.
        root: the folder that real images are relative to.
        images: the folder that counterfactual images are relative to.
        dataset: its name, which also seeds the draw of the captions that are shown.
        count: captions drawn at random; more are added until `LEAST` of each kind of edit are
            shown.
    """
    title, over = f"Counterfactuals of {dataset}", "Edited captions and their images"
    if not rows:
        text = "There is no counterfactual to show: the method of this run does not use any."
        return pages.Page(title, over, [pages.Text(text)])
    starts: list[int] = []
    kinds: dict[str, dict[str, list[int]]] = defaultdict(lambda: defaultdict(list))
    last = None
    for place, row in enumerate(rows):
        if (row.sample_id, row.sentence) != last:
            starts.append(place)
            last = row.sample_id, row.sentence
        kinds[row.role][kind(row)].append(len(starts) - 1)
    random = rng("counterfactuals", dataset)
    drawn = set(random.sample(range(len(starts)), min(count, len(starts))))
    changes: dict[str, Counter[str]] = {}
    for role, own in sorted(kinds.items()):
        changes[role] = Counter({name: len(places) for name, places in own.items()})
        for name, _ in changes[role].most_common(_KINDS):
            lacking = LEAST - len(drawn.intersection(own[name]))
            rest = sorted(set(own[name]) - drawn)
            drawn.update(random.sample(rest, max(0, min(lacking, len(rest)))))
    ends = [*starts[1:], len(rows)]
    groups = [rows[starts[place] : ends[place]] for place in sorted(drawn)]
    names = {group[0].sample_id for group in groups}
    by_sample = {one.sample_id: one for one in captions if one.sample_id in names}
    first = rows[0]
    note = (
        f"{len(groups):,} of {len(starts):,} captions, drawn at random, with {LEAST} of each kind "
        "of edit if there are as many. A negative means something else than its caption, a "
        "positive the same; new words are marked."
    )
    sections: list[pages.Section] = [
        *_tables(rows, changes),
        pages.Cards(
            [
                pages.Card(
                    [f"{group[0].sample_id}, sentence {group[0].sentence + 1}"],
                    _sides(by_sample[group[0].sample_id], group, root, images),
                )
                for group in groups
            ],
            title="Captions",
            note=note + " No images were generated." * (not first.image_generator),
        ),
    ]
    facts = {
        "caption editor": first.caption_editor,
        "image generator": first.image_generator,
        "fingerprint": first.fingerprint,
    }
    shown = {label: text for label, text in facts.items() if text}
    return pages.Page(title, over, sections, facts=shown)


def kind(row: Counterfactual) -> str:
    """Kind of an edited caption, such as `colour`; failed edits are a kind of their own."""
    return FAILED if row.state == FAILED else row.detail.partition(":")[0]


def _tables(rows: Sequence[Counterfactual], kinds: dict[str, Counter[str]]) -> list[pages.Table]:
    """Tables of the edits by role, and of the most frequent reasons of failures."""
    states = summary(rows)["roles"]
    edits = pages.Table(
        ("edits", "text and image", "text only", "failed", "kinds"),
        [
            (
                role,
                *(f"{own[state]:,}" for state in ("generated", "edited")),
                f"{own['failed']:,} ({100 * own['failed'] / sum(own.values()):.1f}%)",
                pages.counted(dict(kinds[role].most_common(_KINDS))),
            )
            for role, own in states.items()
        ],
        words=["kinds"],
    )
    reasons = [
        (
            one.role,
            f"{one.times:,}",
            one.reason + f" (for example: {one.example})" * (one.example != one.reason),
        )
        for one in islice(failure_reasons(rows), _REASONS)
    ]
    if not reasons:
        return [edits]
    note = "`counterfactuals_quarantine` has every failure with its reason."
    return [edits, pages.Table(("failed", "times", "reason"), reasons, ["reason"], note=note)]


def _sides(
    row: Caption, edits: Sequence[Counterfactual], root: Path, images: Path
) -> list[pages.Side]:
    """A caption with its image, and its edits with theirs."""
    caption = row.sentences[edits[0].sentence]
    sides = [pages.Side("real", pages.image_card(root, row.image), caption)]
    for edit in edits:
        failed = edit.state == FAILED
        detail = "" if failed or not edit.detail else f": {edit.detail.replace('_', ' ')}"
        sides.append(
            pages.Side(
                f"{edit.role}{detail}",
                _made_image(edit, images),
                pages.edited_text(edit.text, caption),
                problem=f"failed: {edit.detail}" if failed else "",
                kind=edit.role,
            )
        )
    return sides


def _made_image(edit: Counterfactual, images: Path) -> pages.ImageCard | None:
    """Image of an edit; an empty card where it has none, nothing where none are generated."""
    if not edit.image_generator:
        return None
    return pages.image_card(images, edit.image) if edit.image else pages.ImageCard()
