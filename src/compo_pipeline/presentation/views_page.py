"""Page of random views: the images and texts a method trains on, changed words and phrases marked.

It reads views as the tables hold them and does not depend on the method. With counterfactuals,
`View.counterfactuals` names the negative's image, then the positive's; `negatives[0]` is the
edited caption, `positives[1]` the paraphrase.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, cast

from compo_pipeline.images.composites import Axis, compose
from compo_pipeline.images.decoding import ACCEPTED, ImageError, Limits, load
from compo_pipeline.presentation import pages
from compo_pipeline.presentation.pages import EditedText, ImageCard, changed_words, edited_text
from compo_pipeline.run.seeding import rng
from compo_pipeline.storage.records import View

COUNT = 50
ROLES = ("negative", "positive")
_CATEGORIES = 6  # listed per generator
_KINDS = 12  # kinds of edits listed
_PHRASES = 24  # frequent phrases listed

Origins = Sequence[Mapping[str, Any] | None]
"""Origin of each negative of a view, from its provenance; None for an absent one."""


class Heading(NamedTuple):
    """Heading of the page of views: names of method and dataset, epoch from 0, and seed."""

    method: str
    dataset: str
    epoch: int
    seed: int


@dataclass(frozen=True, slots=True)
class Negative:
    """A view's negative with its changes against the nearest positive; no pieces if absent.

    `is_positive` says that a positive of the view is the same text, up to case and spaces.
    """

    pieces: tuple[tuple[str, bool], ...]
    generator: str
    category: str = ""
    words: tuple[str, ...] = ()
    is_positive: bool = False


@dataclass(frozen=True, slots=True)
class SyntheticPair:
    """A view's counterfactual text and its image, with the kind of the edit if it is known."""

    role: str
    text: EditedText
    kind: str
    image: ImageCard


@dataclass(frozen=True, slots=True)
class ViewCard:
    """A view (a training example) as the page shows it: images, caption, negatives, pairs.

    `caption` is the text with phrases, in pieces, each with the number of its phrase, 0 for none;
    `whole` says that the caption is its own only phrase.
    """

    view: View
    images: tuple[ImageCard, ...]
    caption: tuple[tuple[str, int], ...]
    whole: bool
    negatives: tuple[Negative, ...]
    pairs: tuple[SyntheticPair, ...]


class NegativeTally(NamedTuple):
    """Counts for one slot of a view's negatives: views with and without one, and categories."""

    generator: str
    filled: int
    absent: int
    categories: tuple[tuple[str, int], ...]


class RoleTally(NamedTuple):
    """Number of an epoch's views with a counterfactual text, image, or both, for one role."""

    role: str
    texts: int
    images: int
    both: int


class PairTally(NamedTuple):
    """Counts of an epoch's counterfactual pairs: by role, complete views, kinds of edits."""

    roles: tuple[RoleTally, ...]
    complete: int
    kinds: tuple[tuple[str, int], ...]


class PhraseTally(NamedTuple):
    """Counts of the noun phrases in the captions of an epoch's views.

    Captions with phrases, phrases per caption, captions that are their own only phrase, phrases
    that differ in more than case, and the most frequent of these.
    """

    captions: int
    mean: float
    whole: int
    distinct: int
    common: tuple[tuple[str, int], ...]


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
    negatives = negative_tallies(map(origins_of, views))
    generators = [tally.generator for tally in negatives]
    random = rng("preview", heading.seed, heading.epoch)
    drawn = sorted(random.sample(range(len(views)), min(count, len(views))))
    language = json.loads(views[0].provenance).get("language", "") if views else ""
    context = {
        "title": f"Views of {heading.method} on {heading.dataset}",
        "facts": {"epoch": heading.epoch, "seed": heading.seed}
        | ({"language model": language} if language else {}),
        "total": len(views),
        "negatives": negatives,
        "pairs": pair_tally(views),
        "phrases": phrase_tally(views),
        "cards": [
            ViewCard(
                view=views[place],
                images=tuple(_view_images(views[place], root, limits)),
                caption=tuple(marked_phrases(views[place])) if views[place].phrases else (),
                whole=is_own_phrase(views[place]),
                negatives=tuple(_mark_negatives(views[place], generators)),
                pairs=tuple(synthetic_pairs(views[place], counterfactual_images, limits)),
            )
            for place in drawn
        ],
    }
    return pages.write(file, "views.html", context)


def _view_images(view: View, root: Path, limits: Limits) -> Iterator[ImageCard]:
    """Yield a view's image, composed as in training, or its two parts if a part cannot be read."""
    if view.axis is not None:
        try:
            first, second = (load(root, path, limits) for path in view.images)
        except (ImageError, OSError):
            pass
        else:
            joined = compose(first, second, cast("Axis", view.axis), pages.SIDE)
            yield ImageCard(", ".join(view.images), *pages.thumbnail(joined))
            return
    yield from (pages.image_card(root, path, limits) for path in view.images)


def _mark_negatives(view: View, generators: Sequence[str]) -> Iterator[Negative]:
    """Yield the negatives of a view, with the words marked that they change."""
    if view.kind == "long":  # a whole caption has none
        return
    positives = {tuple(text.casefold().split()) for text in view.positives}
    origins = zip(view.negatives, origins_of(view), generators, strict=False)
    for text, origin, generator in origins:
        if text is None or origin is None:
            yield Negative((), generator)
        else:
            pieces = tuple(changed_words(text, view.positives))
            is_positive = tuple(text.casefold().split()) in positives
            yield Negative(
                pieces, origin["generator"], origin["category"], tuple(origin["words"]), is_positive
            )


def negative_tallies(views: Iterable[Origins]) -> list[NegativeTally]:
    """Count the negatives of an epoch's views, for each position among a view's negatives."""
    filled: list[Counter[tuple[str, str]]] = []
    total = 0
    for origins in views:
        total += 1
        filled += [Counter() for _ in origins[len(filled) :]]
        for counts, origin in zip(filled, origins, strict=False):
            if origin is not None:
                counts[origin["generator"], origin["category"]] += 1
    return [
        NegativeTally(
            generator=", ".join(sorted({generator for generator, _ in counts})) or "none",
            filled=counts.total(),
            absent=total - counts.total(),
            categories=tuple(
                (category.replace("_", " "), times)
                for (_, category), times in counts.most_common(_CATEGORIES)
            ),
        )
        for counts in filled
    ]


def synthetic_pairs(
    view: View, folder: Path | None, limits: Limits = ACCEPTED
) -> Iterator[SyntheticPair]:
    """Yield a view's negative and positive counterfactual (text and image), if it has any."""
    if not view.counterfactuals:
        return
    kinds = (edit_kind(origins_of(view)), "")
    for role, text, kind, path in zip(
        ROLES, _pair_texts(view), kinds, view.counterfactuals, strict=True
    ):
        if not path:
            image = ImageCard()
        elif folder is None:
            image = ImageCard(path, problem=f"the folder of '{path}' is unknown")
        else:
            image = pages.image_card(folder, path, limits)
        yield SyntheticPair(role, edited_text(text, view.positives[0]), kind, image)


def pair_tally(views: Iterable[View]) -> PairTally | None:
    """Count the counterfactual pairs of an epoch's views; None if no view has any."""
    kinds = Counter[str]()
    present = Counter[tuple[tuple[bool, bool], ...]]()  # by role: text, image
    for view in views:
        if view.counterfactuals:
            pairs = zip(_pair_texts(view), view.counterfactuals, strict=True)
            present[tuple((bool(text), bool(image)) for text, image in pairs)] += 1
            kinds.update([edit_kind(origins_of(view))] if view.negatives[0] else [])
    if not present:
        return None
    roles = tuple(
        RoleTally(
            role,
            texts=sum(times for pairs, times in present.items() if pairs[place][0]),
            images=sum(times for pairs, times in present.items() if pairs[place][1]),
            both=sum(times for pairs, times in present.items() if all(pairs[place])),
        )
        for place, role in enumerate(ROLES)
    )
    complete = sum(times for pairs, times in present.items() if all(map(all, pairs)))
    return PairTally(roles, complete, tuple(kinds.most_common(_KINDS)))


def origins_of(view: View) -> Origins:
    """Generator, category and words of each negative, from the view's provenance."""
    found: Origins = json.loads(view.provenance)["negatives"]
    return found


def edit_kind(origins: Origins) -> str:
    """Kind of the edit that made a view's first negative; empty if there is none."""
    return origins[0]["category"].partition(":")[0] if origins and origins[0] else ""


def _pair_texts(view: View) -> tuple[str | None, str | None]:
    """The edited caption of a view and its paraphrase; None for a missing text."""
    return view.negatives[0], view.positives[1] if len(view.positives) > 1 else None


def phrase_tally(views: Iterable[View]) -> PhraseTally | None:
    """Count the noun phrases of an epoch's views; None if no view has any."""
    captions = whole = 0
    counts = Counter[str]()
    for view in views:
        if view.phrases:
            captions += 1
            whole += is_own_phrase(view)
            counts.update(phrase.casefold() for phrase in view.phrases)
    if not captions:
        return None
    return PhraseTally(
        captions=captions,
        mean=counts.total() / captions,
        whole=whole,
        distinct=len(counts),
        common=tuple(counts.most_common(_PHRASES)),
    )


def is_own_phrase(view: View) -> bool:
    """Whether a view's caption is, apart from punctuation, its own only phrase."""
    if len(view.phrases) != 1:
        return False
    start, end = view.phrase_spans
    rest = view.positives[0][:start] + view.positives[0][end:]
    return not any(map(str.isalnum, rest))


def marked_phrases(view: View) -> Iterator[tuple[str, int]]:
    """Yield pieces of a view's caption, each with the number of its phrase.

    Numbers count from 1, and are 0 between phrases. Of phrases that overlap the first is marked;
    phrases of others may not be in the caption.
    """
    ends = iter(view.phrase_spans)
    spans = enumerate(zip(ends, ends, strict=True), start=1)
    marked: list[tuple[int, int, int]] = []
    for start, end, number in sorted((start, end, number) for number, (start, end) in spans):
        if start < end and (not marked or marked[-1][1] <= start):
            marked.append((start, end, number))
    return pages.pieces(view.positives[0], marked, 0)
