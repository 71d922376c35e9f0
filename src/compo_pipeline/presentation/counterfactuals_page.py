"""Page of captions and their edits, with real and counterfactual images side by side."""

from __future__ import annotations

import random
from array import array
from collections import Counter
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import NamedTuple

from compo_pipeline.counterfactuals.tables import FAILED, failure_reasons, summary
from compo_pipeline.presentation import pages
from compo_pipeline.presentation.pages import EditedText, ImageCard, edited_text, image_card
from compo_pipeline.run.seeding import rng
from compo_pipeline.storage.records import Caption, Counterfactual

COUNT = 40
LEAST = 3  # captions shown of each kind of edit, if there are as many
_KINDS = 16  # kinds of edits listed per role
_REASONS = 8  # failure reasons listed

Kind = tuple[str, str]
"""Role and name of a kind of edit."""


class EditCard(NamedTuple):
    """An edit of a caption as the page shows it: changed words, kind of edit and image."""

    row: Counterfactual
    kind: Kind
    text: EditedText
    image: ImageCard


class CaptionCard(NamedTuple):
    """A caption as the page of counterfactuals shows it, with its image and its edits."""

    sample_id: str
    sentence: int
    caption: str
    image: ImageCard
    edits: list[EditCard]


class KindShare(NamedTuple):
    """Number of caption edits of one kind, and their share of all edits of the same role."""

    kind: Kind
    times: int
    share: float


def write(
    rows: Sequence[Counterfactual],
    captions: Sequence[Caption],
    root: Path,
    images: Path,
    file: Path,
    dataset: str,
    *,
    count: int = COUNT,
) -> Path:
    """Write the page of edited captions and their images, as one self-contained HTML file.

    Args:
        rows: all counterfactuals, those of a caption one after another.
        captions: include all edited ones.
        root: the folder that real images are relative to.
        images: the folder that counterfactual images are relative to.
        file: where to write.
        dataset: its name, which also seeds the draw of the captions that are shown.
        count: captions drawn at random; more are added until `LEAST` of each kind of edit are
            shown.
    """
    edits = _Edits(rows)
    shares = _kind_shares(edits)
    kinds = {one.kind for one in shares}
    drawn = [edits[place] for place in _draw(edits, kinds, count, rng("counterfactuals", dataset))]
    names = {group[0].sample_id for group in drawn}
    by_sample = {one.sample_id: one for one in captions if one.sample_id in names}
    facts = {}
    if rows:
        facts = {
            "caption editor": rows[0].caption_editor,
            "image generator": rows[0].image_generator,
            "fingerprint": rows[0].fingerprint,
        }
    context = {
        "title": f"Counterfactuals of {dataset}",
        "facts": {label: text for label, text in facts.items() if text},
        "has_images": bool(rows and rows[0].image_generator),
        "captions": len(edits),
        "counts": summary(rows),
        "shares": shares,
        "reasons": failure_reasons(rows)[:_REASONS],
        "least": LEAST,
        "cards": [
            _caption_card(by_sample[group[0].sample_id], group, root, images) for group in drawn
        ],
    }
    return pages.write(file, "counterfactuals.html", context)


def kind(row: Counterfactual) -> Kind:
    """Role (negative or positive) and kind of an edited caption; a failed edit has its own kind."""
    return row.role, FAILED if row.state == FAILED else row.detail.partition(":")[0]


class _Edits:
    """Compact index from a caption to its counterfactual rows and their kinds of edit."""

    def __init__(self, rows: Sequence[Counterfactual]) -> None:
        self._rows, self._starts, self._kinds = rows, array("q"), array("i")
        numbers: dict[Kind, int] = {}
        last = None
        for place, row in enumerate(rows):
            if (row.sample_id, row.sentence) != last:
                self._starts.append(place)
                last = row.sample_id, row.sentence
            self._kinds.append(numbers.setdefault(kind(row), len(numbers)))
        self._starts.append(len(rows))
        self._names = list(numbers)

    def __len__(self) -> int:
        return len(self._starts) - 1

    def __getitem__(self, place: int) -> Sequence[Counterfactual]:
        return self._rows[self._starts[place] : self._starts[place + 1]]

    def kinds(self, place: int | None = None) -> Counter[Kind]:
        """Number of edits by kind, of one caption or of all captions."""
        own = slice(None) if place is None else slice(*self._starts[place : place + 2])
        return Counter(self._names[number] for number in self._kinds[own])


def _kind_shares(edits: _Edits) -> list[KindShare]:
    """Count and share of each kind of edit by role: failed ones first, then the most frequent."""
    shares, every = list[KindShare](), edits.kinds()
    for role in sorted({role for role, _ in every}):
        counts = Counter({name: n for name, n in every.items() if name[0] == role})
        ranked = sorted(counts.items(), key=lambda one: (one[0][1] != FAILED, -one[1]))
        shares += [KindShare(name, n, n / counts.total()) for name, n in ranked[:_KINDS]]
    return shares


def _draw(
    edits: _Edits,
    kinds: Collection[Kind],
    count: int,
    random_state: random.Random,
) -> list[int]:
    """Indices of captions to show: some at random, and more until each kind of edit is shown."""
    order = random_state.sample(range(len(edits)), len(edits))
    drawn = order[:count]
    seen = Counter[Kind]()
    for place in drawn:
        seen.update(edits.kinds(place))
    for place in order[count:]:
        own = edits.kinds(place).keys() & kinds
        if any(seen[one] < LEAST for one in own):
            drawn.append(place)
            seen.update(own)
    return sorted(drawn)


def _caption_card(
    row: Caption, edits: Sequence[Counterfactual], root: Path, images: Path
) -> CaptionCard:
    """The page's card of a caption with its edits and their images."""
    caption = row.sentences[edits[0].sentence]
    return CaptionCard(
        sample_id=row.sample_id,
        sentence=edits[0].sentence,
        caption=caption,
        image=image_card(root, row.image),
        edits=[
            EditCard(
                row=edit,
                kind=kind(edit),
                text=edited_text(edit.text, caption),
                image=image_card(images, edit.image) if edit.image else ImageCard(),
            )
            for edit in edits
        ],
    )
