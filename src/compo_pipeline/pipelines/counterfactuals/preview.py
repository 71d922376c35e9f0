"""A page of captions and their edits, with real and made pictures side by side."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from compo_pipeline.images.decoding import Limits, PictureError, load
from compo_pipeline.images.inline import thumbnail
from compo_pipeline.language.marking import marked
from compo_pipeline.pipelines.counterfactuals.tables import FAILED, summary
from compo_pipeline.records import Caption, Counterfactual
from compo_pipeline.seeding import rng

COUNT = 40
_SIDE = 256
_NAMED = 8  # reasons told


@dataclass(frozen=True, slots=True)
class Picture:
    """A picture as a data URI, or in its place what is wrong with it; neither where none is due."""

    uri: str = ""
    width: int = 0
    height: int = 0
    problem: str = ""


@dataclass(frozen=True, slots=True)
class Shown:
    """One edit: its text in pieces, each with whether it differs from the caption."""

    row: Counterfactual
    pieces: tuple[tuple[str, bool], ...]
    picture: Picture


@dataclass(frozen=True, slots=True)
class Card:
    """One caption with its picture and its edits."""

    sample_id: str
    sentence: int
    caption: str
    picture: Picture
    edits: tuple[Shown, ...]


def write(
    rows: Sequence[Counterfactual],
    captions: Sequence[Caption],
    root: Path,
    pictures: Path,
    file: Path,
    dataset: str,
    *,
    count: int = COUNT,
) -> Path:
    """Write the page; it needs no other file and no network.

    Args:
        rows: all counterfactuals.
        captions: with those that were edited among them.
        root: the folder that real pictures are relative to.
        pictures: likewise of made ones.
        file: where to write.
        dataset: by name; it draws the captions that are shown.
        count: how many.
    """
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("compo_pipeline.pipelines.counterfactuals"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    groups: dict[tuple[str, int], list[Counterfactual]] = {}
    for row in rows:
        groups.setdefault((row.sample_id, row.sentence), []).append(row)
    chance = rng("counterfactuals", dataset)
    drawn = sorted(chance.sample(range(len(groups)), min(count, len(groups))))
    names = list(groups)
    of_sample = {caption.sample_id: caption for caption in captions}
    page = environment.get_template("preview.html").render(
        dataset=dataset,
        by=rows[0] if rows else None,
        captions=len(groups),
        counts=summary(rows),
        reasons=_reasons(rows),
        cards=[
            _card(of_sample[names[place][0]], groups[names[place]], root, pictures)
            for place in drawn
        ],
    )
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(page, encoding="utf-8")
    return file


def _reasons(rows: Sequence[Counterfactual]) -> list[tuple[str, str, int]]:
    """Role, reason and number of failures, the most frequent first."""
    counts = Counter((row.role, row.detail) for row in rows if row.state == FAILED)
    return [(role, reason, n) for (role, reason), n in counts.most_common(_NAMED)]


def _card(row: Caption, edits: Sequence[Counterfactual], root: Path, pictures: Path) -> Card:
    caption = row.sentences[edits[0].sentence]
    return Card(
        sample_id=row.sample_id,
        sentence=edits[0].sentence,
        caption=caption,
        picture=_picture(root, row.image),
        edits=tuple(
            Shown(
                edit,
                tuple(marked(edit.text, [caption])),
                _picture(pictures, edit.image) if edit.image else Picture(),
            )
            for edit in edits
        ),
    )


def _picture(root: Path, path: str) -> Picture:
    try:
        return Picture(*thumbnail(load(root, path, Limits()), _SIDE))
    except (PictureError, OSError) as error:
        return Picture(problem=str(error))
