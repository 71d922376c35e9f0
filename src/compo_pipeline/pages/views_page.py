"""Page of random views: the images and texts a method trains on, changed words marked.

It reads views as the tables hold them and does not depend on the method. With counterfactuals,
`View.counterfactuals` names the negative's image, then the positive's; `negatives[0]` is the
edited caption, `positives[1]` the paraphrase.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from compo_pipeline.core.records import View
from compo_pipeline.core.seeding import drawn
from compo_pipeline.data.images.composites import Axis, compose
from compo_pipeline.data.images.decoding import ACCEPTED, load
from compo_pipeline.pages import pages
from compo_pipeline.pages.pages import ImageCard, Side

COUNT = 50
_CATEGORIES = 24  # listed
_NOTE = (
    "Texts with a green line are positives: captions and texts made of them. Those with a red line "
    "are hard negatives, whose changes are marked. Training takes negatives to be false of the "
    "image. Nobody has checked that: they are written without looking at the image, and some are "
    "true of it, or no English."
)


def views_page(
    views: Sequence[View],
    root: Path,
    made: Path,
    method: str,
    dataset: str,
    epoch: int,
    seed: int,
    count: int = COUNT,
) -> pages.Page:
    """The page of views (training examples) drawn from an epoch.

    Args:
        views: all views of the epoch.
        root: the folder that image paths are relative to.
        made: the folder of counterfactual images, if views have any.
        method: name of the method.
        dataset: name of the dataset.
        epoch: epoch, from 0. It seeds the draw of the shown views, together with `seed`.
        seed: seed of the run.
        count: number of views to show.
    """
    title, over = f"Views of {method} on {dataset}", "Images and texts, before training"
    facts = {"epoch": str(epoch), "seed": str(seed)}
    if not views:
        return pages.Page(title, over, [pages.Text("There is no view to show.")], facts=facts)
    if language := json.loads(views[0].provenance).get("language"):
        facts["language model"] = language
    cards = [
        pages.Card(
            [" + ".join(view.sample_ids), f"{view.kind}, {view.axis}" if view.axis else view.kind],
            [*_image_sides(view, root), *_text_sides(view, made)],
        )
        for view in drawn(views, count, "preview", seed, epoch)
    ]
    note = f"{len(cards):,} of {len(views):,} views, drawn at random. {_NOTE}"
    shown = pages.Cards(cards, title="Views", note=note)
    return pages.Page(title, over, [_categories(views), shown], facts=facts)


def _categories(views: Sequence[View]) -> pages.Table:
    """How many views have a negative of each generator and category."""
    counts = Counter(
        (str(slot), origin["generator"], origin["category"].partition(":")[0])
        for view in views
        for slot, origin in enumerate(_origins(view), 1)
        if origin is not None
    )
    return pages.Table(
        ("negative", "by", "category", "of views"),
        [
            (slot, *(name.replace("_", " ") for name in names), f"{count:,} of {len(views):,}")
            for (slot, *names), count in counts.most_common(_CATEGORIES)
        ],
        ["by", "category"],
        title="Negatives of all views",
        folded=True,
    )


def _image_sides(view: View, root: Path) -> Iterator[Side]:
    """Yield a view's image, composed as in training, or its two parts if a part cannot be read."""
    images = [pages.image_card(root, path) for path in view.images]
    if view.axis is not None and not any(image.problem for image in images):
        first, second = (load(root, path, ACCEPTED) for path in view.images)
        joined = compose(first, second, cast("Axis", view.axis), pages.SIDE)
        images = [ImageCard(", ".join(view.images), *pages.thumbnail(joined))]
    for place, image in enumerate(images, 1):
        yield Side(f"image {place}" if len(images) > 1 else "image", image)


def _text_sides(view: View, made: Path) -> Iterator[Side]:
    """Yield a view's positives and negatives, with the words marked that a negative changes.

    Those that have a counterfactual image stand below it.
    """
    cards = [pages.image_card(made, each) if each else ImageCard() for each in view.counterfactuals]
    images = dict(zip(("negative 1", "positive 2"), cards, strict=False))
    for place, text in enumerate(view.positives, 1):
        title = f"positive {place}"
        lines = [f"phrases: {' | '.join(view.phrases)}"] if place == 1 and view.phrases else []
        yield Side(title, images.get(title), text, lines, kind="positive")
    if view.kind == "long":  # a whole caption has no negatives
        return
    positives = {tuple(text.casefold().split()) for text in view.positives}
    for place, (negative, origin) in enumerate(
        zip(view.negatives, _origins(view), strict=False), 1
    ):
        title = f"negative {place}"
        image = images.get(title)
        if negative is None or origin is None:
            yield Side(title, image, problem="absent: no negative was found")
            continue
        title += f": {origin['generator'].replace('_', ' ')}"
        text = pages.marked(negative, view.positives)
        if tuple(negative.casefold().split()) in positives:
            yield Side(title, image, text, problem="no negative: it is one of the positives")
            continue
        how = ": ".join(
            filter(None, (origin["category"].replace("_", " "), " | ".join(origin["words"])))
        )
        yield Side(title, image, text, [how], kind="negative")


def _origins(view: View) -> Sequence[Mapping[str, Any] | None]:
    """Generator, category and words of each negative, from the view's provenance."""
    found: Sequence[Mapping[str, Any] | None] = json.loads(view.provenance)["negatives"]
    return found
