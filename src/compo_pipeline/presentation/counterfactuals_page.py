"""A page of captions and their edits, with real and counterfactual images side by side."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from compo_pipeline.counterfactuals.tables import FAILED, failure_reasons, summary
from compo_pipeline.images.decoding import ImageError, Limits, load
from compo_pipeline.presentation.pages import environment
from compo_pipeline.presentation.text_differences import marked
from compo_pipeline.presentation.thumbnails import thumbnail
from compo_pipeline.records import Caption, Counterfactual
from compo_pipeline.seeding import rng

COUNT = 40
LEAST = 3  # captions of each kind that are shown, where there are as many
_SIDE = 320
_KINDS = 16  # kinds of a role that are told
_REASONS = 8  # likewise of failures

Kind = tuple[str, str]  # role and name


@dataclass(frozen=True, slots=True)
class ImageCard:
    """An image as a data URI, or in its place what is wrong with it; neither where none is due."""

    uri: str = ""
    width: int = 0
    height: int = 0
    problem: str = ""


@dataclass(frozen=True, slots=True)
class Shown:
    """One edit: its text in pieces, each with whether it is new to the caption, and what only the
    caption says.
    """

    row: Counterfactual
    kind: Kind
    pieces: tuple[tuple[str, bool], ...]
    gone: tuple[str, ...]
    image: ImageCard


@dataclass(frozen=True, slots=True)
class Card:
    """One caption with its image and its edits."""

    sample_id: str
    sentence: int
    caption: str
    image: ImageCard
    edits: tuple[Shown, ...]


@dataclass(frozen=True, slots=True)
class Share:
    """How often a kind of edit comes about, and its share of all edits of its role."""

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
    """Write the page; it needs no other file and no network.

    Args:
        rows: all counterfactuals.
        captions: with those that were edited among them.
        root: the folder that real images are relative to.
        images: likewise of counterfactual images.
        file: where to write.
        dataset: by name; it draws the captions that are shown.
        count: how many captions are drawn whatever became of them; `LEAST` of each kind of edit
            come on top where these hold fewer.
    """
    groups: dict[tuple[str, int], list[Counterfactual]] = {}
    for row in rows:
        groups.setdefault((row.sample_id, row.sentence), []).append(row)
    edits = list(groups.values())
    shares = _shares(rows)
    drawn = _drawn(edits, {one.kind for one in shares}, count, rng("counterfactuals", dataset))
    of_sample = {caption.sample_id: caption for caption in captions}
    page = (
        environment()
        .get_template("counterfactuals.html")
        .render(
            dataset=dataset,
            by=rows[0] if rows else None,
            captions=len(groups),
            counts=summary(rows),
            shares=shares,
            reasons=failure_reasons(rows)[:_REASONS],
            least=LEAST,
            cards=[
                _card(of_sample[edits[place][0].sample_id], edits[place], root, images)
                for place in drawn
            ],
        )
    )
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(page, encoding="utf-8")
    return file


def kind(row: Counterfactual) -> Kind:
    """Role and kind of an edit: its detail up to the colon that opens what was changed."""
    return row.role, FAILED if row.state == FAILED else row.detail.partition(":")[0]


def _shares(rows: Sequence[Counterfactual]) -> list[Share]:
    """The kinds of each role: what failed, then the most frequent."""
    shares = list[Share]()
    for role in sorted({row.role for row in rows}):
        counts = Counter(kind(row) for row in rows if row.role == role)
        ranked = sorted(counts.items(), key=lambda one: (one[0][1] != FAILED, -one[1]))
        shares += [Share(named, n, n / counts.total()) for named, n in ranked[:_KINDS]]
    return shares


def _drawn(
    edits: Sequence[Sequence[Counterfactual]],
    kinds: Collection[Kind],
    count: int,
    chance: random.Random,
) -> list[int]:
    """Places of captions: some at random, then as many as show `LEAST` of each of the kinds."""
    order = chance.sample(range(len(edits)), len(edits))
    drawn = order[:count]
    seen = Counter(kind(row) for place in drawn for row in edits[place])
    for place in order[count:]:
        ours = {kind(row) for row in edits[place]}.intersection(kinds)
        if any(seen[one] < LEAST for one in ours):
            drawn.append(place)
            seen.update(ours)
    return sorted(drawn)


def _card(row: Caption, edits: Sequence[Counterfactual], root: Path, images: Path) -> Card:
    caption = row.sentences[edits[0].sentence]
    return Card(
        sample_id=row.sample_id,
        sentence=edits[0].sentence,
        caption=caption,
        image=_image(root, row.image),
        edits=tuple(_shown(edit, caption, images) for edit in edits),
    )


def _shown(edit: Counterfactual, caption: str, images: Path) -> Shown:
    gone = marked(caption, [edit.text]) if edit.text else ()
    return Shown(
        row=edit,
        kind=kind(edit),
        pieces=tuple(marked(edit.text, [caption])),
        gone=tuple(piece for piece, changed in gone if changed),
        image=_image(images, edit.image) if edit.image else ImageCard(),
    )


def _image(root: Path, path: str) -> ImageCard:
    try:
        return ImageCard(*thumbnail(load(root, path, Limits()), _SIDE))
    except (ImageError, OSError) as error:
        return ImageCard(problem=str(error))
