"""Edits of captions and images of the edits, each made once, whatever stops a run.

Texts come first, all of them, then images. What is there already, from this run or an earlier
one, is found by a key that names all that decides it: another writer makes new texts and, where
these differ, new images; another maker makes new images of the same texts.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from compo_pipeline.counterfactuals.editors.contract import Failed, Request, Role, Writer, Written
from compo_pipeline.counterfactuals.generators.contract import ImageRequest, Made, Maker
from compo_pipeline.counterfactuals.images import ImageStore
from compo_pipeline.counterfactuals.journal import Journal, Outcome
from compo_pipeline.progress import track
from compo_pipeline.records import Caption, Parse
from compo_pipeline.seeding import digest

ROLES: tuple[Role, ...] = ("negative", "positive")
_REQUESTS_PER_CALL = 16_384  # their parses stand in memory

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Edit:
    """One edit that is wanted: of which sentence of which row, to what end.

    `image_hash` is of the real image's bytes, so that another image under the same name
    gets counterfactuals of its own.
    """

    row: Caption
    sentence: int
    role: Role
    image_hash: str

    @property
    def caption(self) -> str:
        """The sentence to edit."""
        return self.row.sentences[self.sentence]

    def key(self, *parts: str | int) -> str:
        """Names the edit together with what else decides an answer."""
        named = (self.row.sample_id, self.sentence, self.role, self.caption, self.image_hash)
        return f"{digest(*parts, *named):016x}"


@dataclass(frozen=True, slots=True)
class Parsing:
    """How sentences become parses: a function of `language.parsing.parse`'s items, and the name
    and version of the language pipeline. For writers that read no parses both are empty.
    """

    language: str
    parse: Callable[[Iterable[tuple[str, int, str]]], Iterable[Parse]]


def wanted(captions: Iterable[Caption], hashes: Mapping[str, str], count: int | None) -> list[Edit]:
    """A negative and a positive edit of each row's first sentences.

    Args:
        captions: the rows that train.
        hashes: of real images, by path.
        count: sentences of each row; None for all.
    """
    return [
        Edit(row, sentence, role, hashes[row.image])
        for row in captions
        for sentence in range(len(row.sentences[:count]))
        for role in ROLES
    ]


def texts(
    edits: Sequence[Edit], writer: Writer, parsing: Parsing, journal: Journal, *, retry: bool
) -> list[Outcome]:
    """The text of every edit, or why there is none; only what the journal lacks is asked for.

    What nobody answered stays out of the journal: the next run asks again.

    Args:
        edits: what is wanted.
        writer: asked for texts.
        parsing: of their captions.
        journal: entered.
        retry: ask again where an earlier answer was no text.
    """
    decided = ("text", writer.name, writer.settings_hash, parsing.language)
    keys = [edit.key(*decided) for edit in edits]
    found = map(journal.get, keys)
    pending = [
        (key, edit)
        for key, edit, outcome in zip(keys, edits, found, strict=True)
        if outcome is None or (retry and not outcome.text)
    ]
    _log.info("%d of %d edited captions are there already", len(edits) - len(pending), len(edits))
    answers = _written([edit for _, edit in pending], writer, parsing)
    unanswered = {}
    for (key, _), answer in zip(
        pending, track(answers, len(pending), "editing captions"), strict=True
    ):
        if isinstance(answer, Written):
            journal.note(key, Outcome(answer.text, answer.detail))
        elif answer.lasting:
            journal.note(key, Outcome("", answer.reason))
        else:
            unanswered[key] = Outcome("", answer.reason)
    return [unanswered[key] if key in unanswered else journal[key] for key in keys]


def _written(edits: Sequence[Edit], writer: Writer, parsing: Parsing) -> Iterator[Written | Failed]:
    for start in range(0, len(edits), _REQUESTS_PER_CALL):
        some = edits[start : start + _REQUESTS_PER_CALL]
        parses = parsing.parse((edit.row.sample_id, edit.sentence, edit.caption) for edit in some)
        yield from writer.write(
            [
                Request(edit.row.sample_id, edit.sentence, edit.role, edit.caption, parse)
                for edit, parse in zip(some, parses, strict=True)
            ]
        )


@dataclass(frozen=True, slots=True)
class Drawn:
    """What became of an image: the file that holds it, or None and the reason."""

    file: Path | None
    reason: str


def images(
    edits: Sequence[tuple[Edit, str]],
    maker: Maker,
    store: ImageStore,
    journal: Journal,
    root: Path,
    seed: int,
    *,
    retry: bool,
) -> list[Drawn]:
    """The image of every edited caption; only what is not in the store is asked for.

    Args:
        edits: each with its text.
        maker: asked for images.
        store: where they lie; whatever is there is whole.
        journal: of the failures, entered.
        root: the folder that real images are relative to.
        seed: of every image's own random numbers.
        retry: ask again where an earlier answer was no image.
    """
    decided = ("image", maker.name, maker.settings_hash, seed, store.encoding)
    keys = [edit.key(*decided, text) for edit, text in edits]
    pending = [
        (key, edit, text)
        for key, (edit, text) in zip(keys, edits, strict=True)
        if not store.path(key).exists() and (retry or journal.get(key) is None)
    ]
    _log.info("%d of %d images are there already", len(edits) - len(pending), len(edits))
    answers = maker.make([_asked(edit, text, root, seed) for _, edit, text in pending])
    for (key, _, _), answer in zip(
        pending, track(answers, len(pending), "making images"), strict=True
    ):
        if isinstance(answer, Made):
            store.save(key, answer.image)
        else:
            journal.note(key, Outcome("", answer.reason))
    return [
        Drawn(path, "") if path.exists() else Drawn(None, journal[key].detail)
        for key, path in zip(keys, map(store.path, keys), strict=True)
    ]


def _asked(edit: Edit, text: str, root: Path, seed: int) -> ImageRequest:
    named = (edit.row.sample_id, edit.sentence, edit.role)
    # 63 bits: generators differ in whether they take the sign bit.
    own = digest(seed, "picture", *named) >> 1
    return ImageRequest(*named, text, root / edit.row.image, own)
