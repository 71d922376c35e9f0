"""Foils of the captions of held-out rows: drafts, balanced, and measured by their texts."""

from __future__ import annotations

import logging
import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby, islice
from operator import itemgetter
from typing import Any

from compo_pipeline.core.records import Caption, Fact, Foil, Parse
from compo_pipeline.core.seeding import digest, rng
from compo_pipeline.core.tables import CARVED, HELD_OUT, Splits, Table, split_rows, splits_of
from compo_pipeline.generation.foils.balance import (
    Candidate,
    Preference,
    Trigrams,
    balanced_couples,
    text_accuracy,
)
from compo_pipeline.generation.foils.kinds import Draft, drafts
from compo_pipeline.generation.foils.settings import FoilSettings, Kind

VERSION = 2
"""Of the builder: equal captions give equal items under one version."""

USED, FEW, GUESSABLE = "used", "few", "guessable"
STATES = {
    USED: "used",
    FEW: "too few to be used (foils.least)",
    GUESSABLE: "not used, as texts alone may tell too many (foils.text_accuracy)",
}
_SEED = 0  # of all that is drawn
MOST_IMAGES = 5000  # of a split
_LEARNT = 100_000  # training captions of the trigram model
_FOILED = 1_000  # training images whose captions foils are made of, to learn what these look like
_PER_IMAGE = 50  # drafts of a kind that are candidates
_PER_WORD = 2  # foils of a training caption with the same expression replaced

log = logging.getLogger(__name__)

Parser = Callable[[Iterable[str]], Mapping[str, Parse]]
"""Distinct texts to their parses."""


@dataclass(frozen=True)
class Image:
    """An image of the held-out rows, with its hash and all its distinct captions."""

    row: Caption
    image_hash: str
    captions: tuple[str, ...]


@dataclass
class KindReport:
    """Counts of drafts, dropped drafts and items for one kind of foil in one split.

    `drafts` are edits of captions, of which `dropped`, by reason, may be true. `images` have one
    that is not. `text_accuracy` is that of a classifier of texts that learns from drafts of
    training captions, as a share, and `text_accuracy_limit` its upper 95% limit.
    """

    drafts: int = 0
    dropped: Counter[str] = field(default_factory=Counter)
    images: int = 0
    items: int = 0
    state: str = FEW
    text_accuracy: float | None = None
    text_accuracy_limit: float | None = None


class Texts:
    """Text models of training captions and of their foils, to score texts of items with.

    Args:
        captions: captions that are given, of each training image.
        settings: settings with the kinds of foils.
        parser: parser of captions.
    """

    def __init__(
        self, captions: Iterable[Sequence[str]], settings: FoilSettings, parser: Parser
    ) -> None:
        images = list(islice(captions, _LEARNT))
        self._captions = Trigrams(text for image in images for text in image)
        pairs: dict[Kind, list[tuple[str, str]]] = defaultdict(list)
        sample = images[:_FOILED]
        parses = parser(dict.fromkeys(text for image in sample for text in image))
        for number, image in enumerate(sample):
            by_words: dict[tuple[Kind, int, str], list[Draft]] = defaultdict(list)
            for draft in drafts([parses[text] for text in dict.fromkeys(image)], settings.kinds):
                if not draft.problem:
                    by_words[draft.kind, draft.sentence, draft.words[0]].append(draft)
            for (kind, sentence, word), alike in by_words.items():
                drawn = rng(_SEED, kind, number, sentence, word)
                chosen = drawn.sample(alike, min(_PER_WORD, len(alike)))
                pairs[kind] += (draft.texts for draft in chosen)
        self.pairs = pairs

    def preference(self, kind: Kind) -> Preference:
        """The text model that scores how much more a caption looks real than its foil."""
        return Preference(self._captions, self.pairs[kind])


def build(
    images: Sequence[Image], split: str, texts: Texts, settings: FoilSettings, parser: Parser
) -> tuple[list[Foil], dict[Kind, KindReport]]:
    """Build the foil items of a split, at most one per image and kind of foil, with reports.

    Args:
        images: images of the split. None of them trains.
        split: name of the set of items.
        texts: texts of the rows that train.
        settings: kinds and limits.
        parser: parser of captions.
    """
    parses = parser(dict.fromkeys(text for image in images for text in image.captions))
    reports = {kind: KindReport() for kind in settings.kinds}
    found: dict[Kind, list[tuple[Image, Draft]]] = {kind: [] for kind in settings.kinds}
    for image in images:
        kinds = set[Kind]()
        for draft in drafts([parses[text] for text in image.captions], settings.kinds):
            report = reports[draft.kind]
            report.drafts += 1
            if draft.problem:
                report.dropped[draft.problem] += 1
            else:
                kinds.add(draft.kind)
                found[draft.kind].append((image, draft))
        for kind in kinds:
            reports[kind].images += 1
    items: list[Foil] = []
    for kind, report in reports.items():
        items += _choose_foils(kind, split, found[kind], texts, report, settings)
    return items, reports


def _choose_foils(
    kind: Kind,
    split: str,
    found: Sequence[tuple[Image, Draft]],
    texts: Texts,
    report: KindReport,
    settings: FoilSettings,
) -> list[Foil]:
    """Choose a kind's foil items in balanced couples, and complete the report of the kind."""
    preference = texts.preference(kind)
    drafted: dict[Candidate, tuple[Image, Draft]] = {}
    for image, draft in _invertible(found):
        pair = draft.texts
        candidate = Candidate(image.image_hash, draft.key, preference(*pair), pair)
        drafted.setdefault(candidate, (image, draft))
    couples = balanced_couples(list(drafted))
    pairs = [one.texts for couple in couples for one in couple]
    groups = [number for number, _ in enumerate(couples) for _ in "ab"]
    measured = text_accuracy(texts.pairs[kind], pairs, groups)
    report.items = len(pairs)
    if measured is not None:
        report.text_accuracy, report.text_accuracy_limit = measured
    # A classifier that learns from few says nothing of what texts tell.
    enough = min(report.items, len(texts.pairs[kind])) >= settings.least
    if enough and measured is not None:
        report.state = USED if measured.limit <= settings.text_accuracy else GUESSABLE
    items: list[Foil] = []
    for one, other in (sides for couple in couples for sides in (couple, couple[::-1])):
        image, draft = drafted[one]
        items.append(
            Foil(
                item=_item_name(kind, one),
                kind=kind,
                split=split,
                state=report.state,
                sample_id=image.row.sample_id,
                image_id=image.row.image_id,
                image=image.row.image,
                image_hash=image.image_hash,
                caption=one.texts[0],
                foil=one.texts[1],
                source=image.captions[draft.sentence],
                words=draft.words,
                preference=one.preference,
                partner=_item_name(kind, other),
            )
        )
    return items


def _item_name(kind: Kind, candidate: Candidate) -> str:
    return f"{kind}-{candidate.image[:16]}"


def _invertible(found: Sequence[tuple[Image, Draft]]) -> Iterator[tuple[Image, Draft]]:
    """Yield random foil drafts, few per image, whose inverse is drafted for another image."""
    images: dict[tuple[str, str], set[str]] = defaultdict(set)
    for image, draft in found:
        images[draft.key].add(image.image_hash)
    for image, own in groupby(found, key=itemgetter(0)):
        content = image.image_hash
        fit = [one for _, one in own if images.get(one.key[::-1], set()) - {content}]
        for draft in rng(_SEED, content).sample(fit, min(_PER_IMAGE, len(fit))):
            yield image, draft


def choose_images(
    rows: Iterable[Caption],
    hashes: Mapping[str, str],
    taken: Mapping[str, frozenset[str]],
) -> tuple[list[Image], Counter[str]]:
    """Choose the images of caption rows that become items, in order of a content hash.

    Args:
        rows: rows of a split.
        hashes: sha256 of an image's bytes by path.
        taken: such hashes of images that must not become items, by the reason.

    Returns:
        The images, and the number of those that are left out, by reason.
    """
    by_hash: dict[str, list[Caption]] = defaultdict(list)
    left_out = Counter[str]()
    unread = set[str]()
    for row in rows:
        if content := hashes.get(row.image, ""):
            by_hash[content].append(row)
        else:
            unread.add(row.image)
    if unread:
        left_out["its content is unknown"] = len(unread)
    found: list[Image] = []
    for content in sorted(by_hash, key=lambda each: digest(_SEED, each)):
        reason = next((name for name, known in taken.items() if content in known), None)
        if reason is None and len(found) == MOST_IMAGES:
            reason = f"more images than {MOST_IMAGES}"
        if reason is None:
            own = by_hash[content]
            texts = (text.strip() for row in own for text in row.sentences)
            found.append(Image(own[0], content, tuple(dict.fromkeys(texts))))
        else:
            left_out[reason] += 1
    return found, left_out


def build_splits(
    captions: Table[Caption],
    facts: Table[Fact],
    trains: Splits,
    official: frozenset[str],
    settings: FoilSettings,
    parser: Parser,
) -> tuple[list[Foil], dict[str, Any]]:
    """Build every configured set of foil items.

    Args:
        captions: valid rows of all splits.
        facts: about them.
        trains: split that trains, or several.
        official: sha256 of the images of official benchmarks.
        settings: splits, kinds and limits.
        parser: parser of captions.

    Returns:
        The items, and for each set a report: the images that are left out, by reason, and the
        fields of `KindReport` by kind of foil.
    """
    columns = (facts.column(name).to_pylist() for name in ("image", "image_hash"))
    hashes: dict[str, str] = dict(zip(*columns, strict=True))
    training = split_rows(captions, trains)
    trained = frozenset(hashes.get(name, "") for name in training.column("image").to_pylist())
    texts = Texts(_captions_by_image(training), settings, parser)
    taken = {"a training row has it": trained, "an official benchmark has it": official}
    items: list[Foil] = []
    reports: dict[str, Any] = {}
    for name, split in reversed(settings.splits.items()):  # sets that come last keep their images
        rows = split_rows(captions, _item_splits(split, trains))
        share = [each for each, source in settings.splits.items() if source == split]
        own = {
            image: content
            for image, content in hashes.items()
            if share[digest(_SEED, "set", content) % len(share)] == name
        }
        images, left_out = choose_images(rows.having("image", own), hashes, taken)
        built, kinds = build(images, name, texts, settings, parser)
        items += built
        shown = {kind: {**vars(one), "dropped": dict(one.dropped)} for kind, one in kinds.items()}
        reports[name] = {"left_out": left_out, "kinds": shown}
        used = [one.items for one in kinds.values() if one.state == USED]
        log.info("Foils of '%s': %d items of %d kinds are used.", name, sum(used), len(used))
        taken[f"the set '{name}' has it"] = frozenset(one.image_hash for one in images)
    return items, reports


def _item_splits(split: str, trains: Splits) -> Sequence[str]:
    """Names of the splits that a set of items is built from, without training splits."""
    named = (HELD_OUT, CARVED) if split == HELD_OUT else (split,)
    return [each for each in named if each not in splits_of(trains)]


def _captions_by_image(rows: Iterable[Caption]) -> Iterator[tuple[str, ...]]:
    """Distinct captions of each image, for as many images as the text models learn from."""
    found: dict[str, dict[str, None]] = {}
    for row in rows:
        if len(found) <= _LEARNT or row.image_id in found:
            found.setdefault(row.image_id, {}).update(dict.fromkeys(map(str.strip, row.sentences)))
    return map(tuple, found.values())


def shortage(report: Mapping[str, Any], split: str, settings: FoilSettings) -> str:
    """Reason why no kind of a set of foils is used, with a remedy, as text.

    Args:
        report: report of the builder.
        split: name of the set.
        settings: settings of the builder.
    """
    kinds = report["splits"].get(split, {}).get("kinds", {})
    if not kinds:
        return f"there are no foils '{split}'; `--params foils.splits.{split}=<split>` makes them"
    name, most = max(kinds.items(), key=lambda kind: kind[1]["items"])
    items, limit = most["items"], most["text_accuracy_limit"]
    reason = f"of the most frequent kind of foils, {name}, there are {items} items"
    ways = []
    if items < settings.least:
        reason += f", {settings.least} are needed (foils.least)"
        # About every second photo gives an item.
        source = settings.splits.get(split, split)
        ways.append(f"about {2 * settings.least:,} photos in the split '{source}' give as many")
    if limit is not None:
        accuracy = max(settings.text_accuracy, math.ceil(100 * limit) / 100)
        params = f"foils.least={min(items, settings.least)},foils.text_accuracy={accuracy:g}"
        ways.append(f"`--params {params}` scores these, of which texts alone may tell {limit:.0%}")
    return f"{reason}; {', or '.join(ways)}"
