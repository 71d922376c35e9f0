"""A page of random views: what a method shows and says, with phrases and changed words marked.

It reads views as the tables hold them and knows no method.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from PIL import Image

from compo_pipeline.images.composites import Axis, compose
from compo_pipeline.images.decoding import Limits, PictureError, load
from compo_pipeline.images.inline import thumbnail
from compo_pipeline.language.marking import marked
from compo_pipeline.pipelines.views import phrases
from compo_pipeline.records import View
from compo_pipeline.seeding import rng

COUNT = 50
_SIDE = 320
_NAMED = 6  # categories told of a generator


@dataclass(frozen=True, slots=True)
class Heading:
    """What the page says of the run: `method` and `dataset` by name, `epoch` from 0, `seed`."""

    method: str
    dataset: str
    epoch: int
    seed: int


@dataclass(frozen=True, slots=True)
class Picture:
    """A picture as a data URI, or in its place what is wrong with it."""

    label: str
    uri: str = ""
    width: int = 0
    height: int = 0
    problem: str = ""


@dataclass(frozen=True, slots=True)
class Negative:
    """A negative in pieces, each with whether it differs from the nearest positive; none where
    the generator found nothing.
    """

    pieces: tuple[tuple[str, bool], ...]
    generator: str
    category: str
    words: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Card:
    """One view.

    `caption` is the text that has phrases, in pieces, each with the number of its phrase, 0 for
    none; `whole` says that the caption is its own only phrase.
    """

    view: View
    pictures: tuple[Picture, ...]
    caption: tuple[tuple[str, int], ...]
    whole: bool
    negatives: tuple[Negative, ...]


@dataclass(frozen=True, slots=True)
class Tally:
    """Of all views of the epoch: how often a place for a negative is filled, and from what."""

    generator: str
    made: int
    absent: int
    categories: tuple[tuple[str, int], ...]


def write(
    views: Sequence[View],
    root: Path,
    file: Path,
    heading: Heading,
    *,
    count: int = COUNT,
    limits: Limits | None = None,
) -> Path:
    """Write the page; it needs no other file and no network.

    Args:
        views: one epoch's.
        root: the folder that pictures are relative to.
        file: where to write.
        heading: the run; its seed and epoch draw the views that are shown.
        count: how many.
        limits: of pictures, the defaults where none are given.
    """
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("compo_pipeline.pipelines.views"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    tallies = _tallies(views)
    chance = rng("preview", heading.seed, heading.epoch)
    drawn = sorted(chance.sample(range(len(views)), min(count, len(views))))
    page = environment.get_template("preview.html").render(
        heading=heading,
        total=len(views),
        tallies=tallies,
        phrases=phrases.tally(views),
        language=json.loads(views[0].provenance).get("language", "") if views else "",
        cards=[_card(views[place], tallies, root, limits or Limits()) for place in drawn],
    )
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(page, encoding="utf-8")
    return file


def _origins(view: View) -> list[dict[str, Any] | None]:
    """Where each negative comes from, None where there is none."""
    origins: list[dict[str, Any] | None] = json.loads(view.provenance)["negatives"]
    return origins


def _tallies(views: Iterable[View]) -> list[Tally]:
    """One for each place of a view's negatives; the same generator fills a place in every view."""
    made: list[Counter[tuple[str, str]]] = []
    total = 0
    for view in views:
        origins = _origins(view)
        total += 1
        made += [Counter() for _ in origins[len(made) :]]
        for counts, origin in zip(made, origins, strict=False):
            if origin is not None:
                counts[origin["generator"], origin["category"]] += 1
    tallies = []
    for counts in made:
        names = sorted({generator for generator, _ in counts})
        categories = tuple(
            (category.replace("_", " "), n) for (_, category), n in counts.most_common(_NAMED)
        )
        filled = counts.total()
        tallies.append(Tally(", ".join(names) or "none", filled, total - filled, categories))
    return tallies


def _card(view: View, tallies: Sequence[Tally], root: Path, limits: Limits) -> Card:
    told = zip(view.negatives, _origins(view), strict=True)
    negatives = tuple(
        Negative((), tally.generator, "", ())
        if text is None or origin is None
        else Negative(
            tuple(marked(text, view.positives)),
            origin["generator"],
            origin["category"],
            tuple(origin["words"]),
        )
        for (text, origin), tally in zip(told, tallies, strict=False)
    )
    return Card(
        view=view,
        pictures=tuple(_pictures(view, root, limits)),
        caption=tuple(phrases.marked(view)) if view.phrases else (),
        whole=phrases.whole(view),
        negatives=negatives,
    )


def _pictures(view: View, root: Path, limits: Limits) -> Iterator[Picture]:
    """The view's picture, joined as training shows it; its parts where one cannot be read."""
    found: list[Image.Image | Exception] = []
    for path in view.images:
        try:
            found.append(load(root, path, limits))
        except (PictureError, OSError) as error:
            found.append(error)
    images = [one for one in found if isinstance(one, Image.Image)]
    if view.axis is not None and len(images) == len(found):
        joined = compose(images[0], images[1], cast("Axis", view.axis), _SIDE)
        yield Picture(", ".join(view.images), *thumbnail(joined, _SIDE))
        return
    for path, one in zip(view.images, found, strict=True):
        if isinstance(one, Image.Image):
            yield Picture(path, *thumbnail(one, _SIDE))
        else:
            yield Picture(path, problem=str(one))
