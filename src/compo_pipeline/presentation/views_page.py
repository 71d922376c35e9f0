"""A page of random views: what a method shows and says, with phrases and changed words marked.

It reads views as the tables hold them and knows no method.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, cast

from PIL import Image

from compo_pipeline.images.composites import Axis, compose
from compo_pipeline.images.decoding import ImageError, Limits, load
from compo_pipeline.presentation import view_pairs as counterfactuals
from compo_pipeline.presentation import view_phrases as phrases
from compo_pipeline.presentation.pages import environment
from compo_pipeline.presentation.text_differences import marked
from compo_pipeline.presentation.thumbnails import thumbnail
from compo_pipeline.presentation.view_pairs import Origins, Side
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
class ImageCard:
    """An image as a data URI, or in its place what is wrong with it; neither where none is due."""

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
    none; `whole` says that the caption is its own only phrase. `sides` are the synthetic pairs that
    stand beside the real one, each with its image.
    """

    view: View
    images: tuple[ImageCard, ...]
    caption: tuple[tuple[str, int], ...]
    whole: bool
    negatives: tuple[Negative, ...]
    sides: tuple[tuple[Side, ImageCard], ...]


class Folders(NamedTuple):
    """Where real images lie, where made ones do if there are any, and what is read of either."""

    root: Path
    made: Path | None
    limits: Limits


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
    made: Path | None = None,
    count: int = COUNT,
    limits: Limits | None = None,
) -> Path:
    """Write the page; it needs no other file and no network.

    Args:
        views: one epoch's.
        root: the folder that images are relative to.
        file: where to write.
        heading: the run; its seed and epoch draw the views that are shown.
        made: the folder that counterfactual images are relative to, needed where views have any.
        count: how many.
        limits: of images, the defaults where none are given.
    """
    origins = list(map(_origins, views))
    tallies = _tallies(origins)
    folders = Folders(root, made, limits or Limits())
    chance = rng("preview", heading.seed, heading.epoch)
    drawn = sorted(chance.sample(range(len(views)), min(count, len(views))))
    page = (
        environment()
        .get_template("views.html")
        .render(
            heading=heading,
            total=len(views),
            tallies=tallies,
            pairs=counterfactuals.tally(views, origins),
            phrases=phrases.tally(views),
            language=json.loads(views[0].provenance).get("language", "") if views else "",
            cards=[_card(views[place], origins[place], tallies, folders) for place in drawn],
        )
    )
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(page, encoding="utf-8")
    return file


def _origins(view: View) -> Origins:
    """Where each negative comes from, None where there is none."""
    origins: Origins = json.loads(view.provenance)["negatives"]
    return origins


def _tallies(views: Iterable[Origins]) -> list[Tally]:
    """One for each place of a view's negatives; the same generator fills a place in every view."""
    made: list[Counter[tuple[str, str]]] = []
    total = 0
    for origins in views:
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


def _card(view: View, origins: Origins, tallies: Sequence[Tally], folders: Folders) -> Card:
    told = zip(view.negatives, origins, strict=True)
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
        images=tuple(_images(view, folders)),
        caption=tuple(phrases.marked(view)) if view.phrases else (),
        whole=phrases.whole(view),
        negatives=negatives,
        sides=tuple((side, _made(side, folders)) for side in counterfactuals.sides(view, origins)),
    )


def _images(view: View, folders: Folders) -> Iterator[ImageCard]:
    """The view's image, joined as training shows it; its parts where one cannot be read."""
    found = [_read(folders.root, path, folders.limits) for path in view.images]
    images = [one for one in found if isinstance(one, Image.Image)]
    if view.axis is not None and len(images) == len(found):
        joined = compose(images[0], images[1], cast("Axis", view.axis), _SIDE)
        yield _image(", ".join(view.images), joined)
    else:
        yield from map(_image, view.images, found)


def _made(side: Side, folders: Folders) -> ImageCard:
    """The image of a synthetic pair."""
    if not side.image:
        return ImageCard("")
    if folders.made is None:
        return ImageCard(side.image, problem=f"no folder is known that holds '{side.image}'")
    return _image(side.image, _read(folders.made, side.image, folders.limits))


def _read(folder: Path, path: str, limits: Limits) -> Image.Image | Exception:
    try:
        return load(folder, path, limits)
    except (ImageError, OSError) as error:
        return error


def _image(label: str, found: Image.Image | Exception) -> ImageCard:
    if isinstance(found, Exception):
        return ImageCard(label, problem=str(found))
    return ImageCard(label, *thumbnail(found, _SIDE))
