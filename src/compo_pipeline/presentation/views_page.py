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

from compo_pipeline.images.composites import Axis, compose
from compo_pipeline.images.decoding import ACCEPTED, ImageError, load
from compo_pipeline.presentation import pages
from compo_pipeline.run.seeding import drawn
from compo_pipeline.storage.records import View

COUNT = 50
ROLES = ("negative", "positive")
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
    title, over = (
        f"Views of {method} on {dataset}",
        "Images and texts of the training, before training",
    )
    facts = {"epoch": str(epoch), "seed": str(seed)}
    if not views:
        return pages.Page(title, over, [pages.Text("There is no view to show.")], facts=facts)
    if language := json.loads(views[0].provenance).get("language"):
        facts["language model"] = language
    cards = []
    for view in drawn(views, count, "preview", seed, epoch):
        kind = f"{view.kind}, {view.axis}" if view.axis else view.kind
        if view.counterfactuals:
            sides = [
                pages.Side("real", pages.image_card(root, view.images[0]), view.positives[0]),
                *_synthetic_sides(view, made),
            ]
        else:
            sides = [
                *(pages.Side("image", image) for image in _view_images(view, root)),
                *_text_sides(view),
            ]
        cards.append(pages.Card([" + ".join(view.sample_ids), kind], sides))
    note = f"{len(cards):,} of {len(views):,} views, drawn at random. {_NOTE}"
    shown = pages.Cards(cards, title="Views", note=note)
    return pages.Page(title, over, [*_counts(views), shown], facts=facts)


def _counts(views: Sequence[View]) -> Iterator[pages.Table | pages.Text]:
    """What an epoch's views have: negatives by generator, noun phrases."""
    slots: list[Counter[tuple[str, str]]] = []
    phrases, captions = Counter[str](), 0
    for view in views:
        origins = _origins(view)
        slots += [Counter() for _ in origins[len(slots) :]]
        for counts, origin in zip(slots, origins, strict=False):
            if origin is not None:
                counts[origin["generator"], origin["category"].partition(":")[0]] += 1
        captions += bool(view.phrases)
        phrases.update(phrase.casefold() for phrase in view.phrases)
    if slots:
        yield pages.Table(
            ("negatives by", "present", "absent", "categories"),
            [
                (
                    ", ".join(sorted({name for name, _ in counts})).replace("_", " ") or "none",
                    f"{counts.total():,}",
                    f"{len(views) - counts.total():,}",
                    pages.counted({name: n for (_, name), n in counts.most_common(_CATEGORIES)}),
                )
                for counts in slots
            ],
            ["categories"],
        )
    if phrases:
        yield pages.Text(
            note=f"{captions:,} texts have phrases: {phrases.total() / captions:.2f} per text, "
            f"{len(phrases):,} distinct. Most frequent: "
            f"{pages.counted(dict(phrases.most_common(_PHRASES)))}."
        )


def _view_images(view: View, root: Path) -> Iterator[pages.ImageCard]:
    """Yield a view's image, composed as in training, or its two parts if a part cannot be read."""
    if view.axis is not None:
        try:
            first, second = (load(root, path, ACCEPTED) for path in view.images)
        except (ImageError, OSError):
            pass
        else:
            joined = compose(first, second, cast("Axis", view.axis), pages.SIDE)
            yield pages.ImageCard(", ".join(view.images), *pages.thumbnail(joined))
            return
    yield from (pages.image_card(root, path) for path in view.images)


def _text_sides(view: View) -> Iterator[pages.Side]:
    """Yield a view's positives and negatives, with the words marked that a negative changes."""

    def title(kind: str, place: int, count: int) -> str:
        # A pair has two images, each with as many texts.
        name = f"{kind} {place + 1}" if count > 1 else kind
        return f"{name}, image {1 + place * 2 // count}" if view.kind == "pair" else name

    for place, text in enumerate(view.positives):
        lines = []
        if text in view.positives[:place]:
            lines.append(f"repeats positive {view.positives.index(text) + 1}")
        if place == 0 and view.phrases:
            lines.append(f"phrases: {' | '.join(view.phrases)}")
        heading = title("positive", place, len(view.positives))
        yield pages.Side(heading, text=text, lines=lines, kind="positive")
    if view.kind == "long":  # a whole caption has no negatives
        return
    positives = {tuple(text.casefold().split()) for text in view.positives}
    for place, (negative, origin) in enumerate(zip(view.negatives, _origins(view), strict=False)):
        heading = title("negative", place, len(view.negatives))
        if negative is None or origin is None:
            yield pages.Side(heading, problem="absent: no negative was found")
            continue
        edited = pages.marked(negative, view.positives)
        how = origin["category"].replace("_", " ")
        how += f": {' | '.join(origin['words'])}" if origin["words"] else ""
        heading = f"{heading}: {origin['generator'].replace('_', ' ')}"
        if tuple(negative.casefold().split()) in positives:
            yield pages.Side(
                heading, text=edited, problem="no negative: it is one of the positives"
            )
        else:
            yield pages.Side(heading, text=edited, lines=[how], kind="negative")


def _synthetic_sides(view: View, folder: Path) -> Iterator[pages.Side]:
    """Yield a view's negative and positive counterfactual, each a text with its image."""
    absent = ("no edited caption", "no paraphrase")
    # The edited caption and its paraphrase.
    texts = view.negatives[0], view.positives[1] if len(view.positives) > 1 else None
    for role, text, path, missing in zip(ROLES, texts, view.counterfactuals, absent, strict=True):
        image = pages.image_card(folder, path) if path else pages.ImageCard()
        (origin, *_) = (*_origins(view), None)
        kind = origin["category"].partition(":")[0] if origin and role == "negative" else ""
        title = f"{role}: {kind.replace('_', ' ')}" if kind else role
        edited = pages.edited_text(text, view.positives[0])
        yield pages.Side(title, image, edited, problem="" if text else missing, kind=role)


def _origins(view: View) -> Sequence[Mapping[str, Any] | None]:
    """Generator, category and words of each negative, from the view's provenance."""
    found: Sequence[Mapping[str, Any] | None] = json.loads(view.provenance)["negatives"]
    return found
