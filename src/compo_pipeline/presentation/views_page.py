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
from typing import Any, NamedTuple, cast

from compo_pipeline.images.composites import Axis, compose
from compo_pipeline.images.decoding import ACCEPTED, ImageError, Limits, load
from compo_pipeline.presentation.pages import (
    SIDE,
    Cards,
    EditedText,
    ImageCard,
    Page,
    Side,
    Table,
    Text,
    changed_words,
    counted,
    edited_text,
    image_card,
    thumbnail,
)
from compo_pipeline.run.seeding import rng
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


class Heading(NamedTuple):
    """Heading of the page of views: names of method and dataset, epoch from 0, and seed."""

    method: str
    dataset: str
    epoch: int
    seed: int


def write(
    views: Sequence[View],
    root: Path,
    file: Path,
    heading: Heading,
    *,
    counterfactual_images: Path | None = None,
    count: int = COUNT,
    limits: Limits = ACCEPTED,
) -> Path:
    """Write a page of views (training examples) drawn from an epoch, as one self-contained file.

    Args:
        views: all views of one epoch.
        root: the folder that image paths are relative to.
        file: where to write.
        heading: the run; its seed and epoch seed the draw of the views that are shown.
        counterfactual_images: the folder of counterfactual images, if views have any.
        count: number of views to show.
        limits: what is accepted as an image.
    """
    title, over = (
        f"Views of {heading.method} on {heading.dataset}",
        "Images and texts of the training, before training",
    )
    facts = {"epoch": str(heading.epoch), "seed": str(heading.seed)}
    if not views:
        return Page(title, over, [Text("There is no view to show.")], facts=facts).write(file)
    if language := json.loads(views[0].provenance).get("language"):
        facts["language model"] = language
    random = rng("preview", heading.seed, heading.epoch)
    drawn = sorted(random.sample(range(len(views)), min(count, len(views))))
    cards = []
    for view in (views[place] for place in drawn):
        kind = f"{view.kind}, {view.axis}" if view.axis else view.kind
        if view.counterfactuals:
            sides = [
                Side("real", image_card(root, view.images[0], limits), view.positives[0]),
                *_synthetic_sides(view, counterfactual_images, limits),
            ]
        else:
            sides = [
                *(Side("image", image) for image in _view_images(view, root, limits)),
                *_text_sides(view),
            ]
        cards.append(([" + ".join(view.sample_ids), kind], sides))
    note = f"{len(cards):,} of {len(views):,} views, drawn at random. {_NOTE}"
    return Page(title, over, [*_counts(views), Cards(cards, "Views", note)], facts=facts).write(
        file
    )


def _counts(views: Sequence[View]) -> Iterator[Table | Text]:
    """What an epoch's views have: negatives by generator, synthetic pairs, noun phrases."""
    slots: list[Counter[tuple[str, str]]] = []
    phrases, captions = Counter[str](), 0
    pairs = {role: Counter[str]() for role in ROLES}
    for view in views:
        origins = _origins(view)
        slots += [Counter() for _ in origins[len(slots) :]]
        for counts, origin in zip(slots, origins, strict=False):
            if origin is not None:
                counts[origin["generator"], origin["category"].partition(":")[0]] += 1
        captions += bool(view.phrases)
        phrases.update(phrase.casefold() for phrase in view.phrases)
        if view.counterfactuals:
            for role, text, image in zip(
                ROLES, _pair_texts(view), view.counterfactuals, strict=True
            ):
                pairs[role].update(
                    name
                    for name, there in (("text", text), ("image", image), ("both", text and image))
                    if there
                )
    if slots:
        yield Table(
            ("negatives by", "present", "absent", "categories"),
            [
                (
                    ", ".join(sorted({name for name, _ in counts})).replace("_", " ") or "none",
                    f"{counts.total():,}",
                    f"{len(views) - counts.total():,}",
                    counted({name: n for (_, name), n in counts.most_common(_CATEGORIES)}),
                )
                for counts in slots
            ],
            ["categories"],
        )
    if any(pairs.values()):
        yield Table(
            ("synthetic pairs", "text", "image", "both"),
            [
                (role, *(f"{counts[name]:,}" for name in ("text", "image", "both")))
                for role, counts in pairs.items()
            ],
        )
    if phrases:
        yield Text(
            note=f"{captions:,} texts have phrases: {phrases.total() / captions:.2f} per text, "
            f"{len(phrases):,} distinct. Most frequent: "
            f"{counted(dict(phrases.most_common(_PHRASES)))}."
        )


def _view_images(view: View, root: Path, limits: Limits) -> Iterator[ImageCard]:
    """Yield a view's image, composed as in training, or its two parts if a part cannot be read."""
    if view.axis is not None:
        try:
            first, second = (load(root, path, limits) for path in view.images)
        except (ImageError, OSError):
            pass
        else:
            joined = compose(first, second, cast("Axis", view.axis), SIDE)
            yield ImageCard(", ".join(view.images), *thumbnail(joined))
            return
    yield from (image_card(root, path, limits) for path in view.images)


def _text_sides(view: View) -> Iterator[Side]:
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
        yield Side(heading, text=text, lines=lines, kind="positive")
    if view.kind == "long":  # a whole caption has no negatives
        return
    positives = {tuple(text.casefold().split()) for text in view.positives}
    for place, (negative, origin) in enumerate(zip(view.negatives, _origins(view), strict=False)):
        heading = title("negative", place, len(view.negatives))
        if negative is None or origin is None:
            yield Side(heading, problem="absent: no negative was found")
            continue
        edited = EditedText(tuple(changed_words(negative, view.positives)))
        how = origin["category"].replace("_", " ")
        how += f": {' | '.join(origin['words'])}" if origin["words"] else ""
        heading = f"{heading}: {origin['generator'].replace('_', ' ')}"
        if tuple(negative.casefold().split()) in positives:
            yield Side(heading, text=edited, problem="no negative: it is one of the positives")
        else:
            yield Side(heading, text=edited, lines=[how], kind="negative")


def _synthetic_sides(view: View, folder: Path | None, limits: Limits) -> Iterator[Side]:
    """Yield a view's negative and positive counterfactual, each a text with its image."""
    absent = ("no edited caption", "no paraphrase")
    for role, text, path, missing in zip(
        ROLES, _pair_texts(view), view.counterfactuals, absent, strict=True
    ):
        image = ImageCard()
        if path and folder is None:
            image = ImageCard(path, problem=f"the folder of '{path}' is unknown")
        elif path and folder is not None:
            image = image_card(folder, path, limits)
        (origin, *_) = (*_origins(view), None)
        kind = origin["category"].partition(":")[0] if origin and role == "negative" else ""
        title = f"{role}: {kind.replace('_', ' ')}" if kind else role
        edited = edited_text(text, view.positives[0])
        yield Side(title, image, edited, problem="" if text else missing, kind=role)


def _origins(view: View) -> Sequence[Mapping[str, Any] | None]:
    """Generator, category and words of each negative, from the view's provenance."""
    found: Sequence[Mapping[str, Any] | None] = json.loads(view.provenance)["negatives"]
    return found


def _pair_texts(view: View) -> tuple[str | None, str | None]:
    """The edited caption of a view and its paraphrase; None for a missing text."""
    return view.negatives[0], view.positives[1] if len(view.positives) > 1 else None
