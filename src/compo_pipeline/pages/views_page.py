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
_CATEGORIES = 6  # listed per generator
_PHRASES = 24  # frequent phrases listed
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
        method: its name.
        dataset: its name.
        epoch: from 0; it and the seed seed the draw of the views that are shown.
        seed: of the run.
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
    return pages.Page(title, over, [*_counts(views), shown], facts=facts)


def _counts(views: Sequence[View]) -> Iterator[pages.Table | pages.Text]:
    """What an epoch's views have: negatives by generator, noun phrases."""
    categories: dict[tuple[int, str], Counter[str]] = {}
    phrases, captions = Counter[str](), 0
    for view in views:
        for slot, origin in enumerate(_origins(view), 1):
            if origin is not None:
                counts = categories.setdefault((slot, origin["generator"]), Counter())
                counts[origin["category"].partition(":")[0]] += 1
        captions += bool(view.phrases)
        phrases.update(phrase.casefold() for phrase in view.phrases)
    yield pages.Table(
        ("negative", "by", "of views", "categories"),
        [
            (
                *(str(slot), generator.replace("_", " ")),
                f"{counts.total():,} of {len(views):,}",
                pages.counted(dict(counts.most_common(_CATEGORIES))),
            )
            for (slot, generator), counts in sorted(categories.items())
        ],
        ["by", "categories"],
    )
    if phrases:
        yield pages.Text(
            note=f"{captions:,} texts have phrases: {phrases.total() / captions:.2f} per text, "
            f"{len(phrases):,} distinct. Most frequent: "
            f"{pages.counted(dict(phrases.most_common(_PHRASES)))}."
        )


def _image_sides(view: View, root: Path) -> Iterator[Side]:
    """Yield a view's image, composed as in training, or its two parts if a part cannot be read."""
    images = [pages.image_card(root, path) for path in view.images]
    if view.axis is not None and not any(image.problem for image in images):
        first, second = (load(root, path, ACCEPTED) for path in view.images)
        joined = compose(first, second, cast("Axis", view.axis), pages.SIDE)
        images = [ImageCard(", ".join(view.images), *pages.thumbnail(joined))]
    for image in images:
        yield Side("image", image)


def _text_sides(view: View, made: Path) -> Iterator[Side]:
    """Yield a view's positives and negatives, with the words marked that a negative changes.

    Those that have a counterfactual image stand below it.
    """

    def title(kind: str, place: int, count: int) -> str:
        # A pair has two images, each with as many texts.
        name = f"{kind} {place + 1}" if count > 1 else kind
        return f"{name}, image {1 + place * 2 // count}" if view.kind == "pair" else name

    images = dict(
        zip(
            (("negative", 0), ("positive", 1)),
            (
                pages.image_card(made, path) if path else ImageCard()
                for path in view.counterfactuals
            ),
            strict=False,
        )
    )
    for place, text in enumerate(view.positives):
        lines = []
        if text in view.positives[:place]:
            lines.append(f"repeats positive {view.positives.index(text) + 1}")
        if place == 0 and view.phrases:
            lines.append(f"phrases: {' | '.join(view.phrases)}")
        heading = title("positive", place, len(view.positives))
        yield Side(heading, images.get(("positive", place)), text, lines, kind="positive")
    if view.kind == "long":  # a whole caption has no negatives
        return
    positives = {tuple(text.casefold().split()) for text in view.positives}
    for place, (negative, origin) in enumerate(zip(view.negatives, _origins(view), strict=False)):
        heading, image = (
            title("negative", place, len(view.negatives)),
            images.get(("negative", place)),
        )
        if negative is None or origin is None:
            yield Side(heading, image, problem="absent: no negative was found")
            continue
        how = origin["category"].replace("_", " ")
        how += f": {' | '.join(origin['words'])}" if origin["words"] else ""
        none = tuple(negative.casefold().split()) in positives
        yield Side(
            f"{heading}: {origin['generator'].replace('_', ' ')}",
            image,
            pages.marked(negative, view.positives),
            [] if none else [how],
            "no negative: it is one of the positives" if none else "",
            "" if none else "negative",
        )


def _origins(view: View) -> Sequence[Mapping[str, Any] | None]:
    """Generator, category and words of each negative, from the view's provenance."""
    found: Sequence[Mapping[str, Any] | None] = json.loads(view.provenance)["negatives"]
    return found
