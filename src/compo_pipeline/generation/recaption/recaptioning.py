"""From the records of a source to recaptions: images are asked about, answers stored and checked.

Answers are stored as they come, under keys of everything that they depend on, and rows are made of
stored answers alone: an interrupted run continues where it stopped.
"""

from __future__ import annotations

import hashlib
import heapq
import logging
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from compo_pipeline.core import sentences
from compo_pipeline.core.progress import Meter
from compo_pipeline.core.records import Recaption, Rejected
from compo_pipeline.core.seeding import digest
from compo_pipeline.core.sentences import split
from compo_pipeline.core.settings import SettingsError
from compo_pipeline.core.table_files import LOCAL, PrepareSettings
from compo_pipeline.core.tables import HELD_OUT, Table, grouped
from compo_pipeline.data.images.decoding import DecodedImage, file_name
from compo_pipeline.data.quality.caption_form import FILE_NAME, MARKUP, URL
from compo_pipeline.data.quality.caption_language import Vocabulary
from compo_pipeline.data.quality.ingest import measure
from compo_pipeline.data.quality.settings import IngestSettings
from compo_pipeline.data.readers.record import RawCaption, rejected
from compo_pipeline.data.settings import SampleSettings
from compo_pipeline.generation.chat.answers import PREAMBLE, Answer, bare_text, no_answer, refuses
from compo_pipeline.generation.chat.endpoint import NoAnswer
from compo_pipeline.generation.recaption.captioners import Captioner, Question, shown_image
from compo_pipeline.generation.recaption.settings import KEY, RecaptionSettings

UNREADABLE = "unreadable"
"""Rule of images that cannot be read; ingest, too, finds and quarantines them."""
NO_ANSWER = "no_answer"
"""Rule of images about which the model gave no answer; another run asks again."""

_AT_ONCE = 4096  # images, answers of which are in memory
_SHARED = 0.05  # of the captions, from which on a first sentence is reported

log = logging.getLogger(__name__)


class Captioned(NamedTuple):
    """Original captions of an image in the source, and the id of its first record."""

    sample_id: str
    originals: tuple[str, ...]


class Recaptioning(NamedTuple):
    """Results of recaptioning: new captions, images without one, and a report.

    Rows are in the order in which the records name the images. The report has captioner, model and
    prompt, and the numbers of images, captions, rejected ones by rule, openings and shared first
    sentences.
    """

    rows: Table[Recaption]
    rejected: list[Rejected]
    report: dict[str, Any]


def captioned_images(
    records: Iterable[RawCaption | Rejected], splits: Sequence[str] | None
) -> dict[str, Captioned]:
    """Mapping from image path to the original captions of the image in the source's records.

    Args:
        records: records of a source.
        splits: splits whose images are captioned. None for all.
    """
    found: dict[str, Captioned] = {}
    for record in records:
        if isinstance(record, Rejected) or not _is_in_splits(record, splits):
            continue
        texts = tuple(text for text in (*record.own, *record.further) if text.strip())
        known = found.get(record.image)
        if known is None:
            found[record.image] = Captioned(record.sample_id, tuple(dict.fromkeys(texts)))
        elif new := [text for text in texts if text not in known.originals]:
            originals = (*known.originals, *dict.fromkeys(new))
            found[record.image] = known._replace(originals=originals)
    return found


def drawn(sources: Mapping[str, Captioned], count: int) -> dict[str, Captioned]:
    """Sample of `count` images, by a seeded hash of their paths, in their order."""
    chosen = set(heapq.nsmallest(count, sources, key=lambda path: digest(0, path)))
    return {path: source for path, source in sources.items() if path in chosen}


def recaption(
    sources: Mapping[str, Captioned],
    root: Path,
    captioner: Captioner,
    settings: RecaptionSettings,
    ingest: IngestSettings,
    vocabulary: Vocabulary,
    engine: PrepareSettings = LOCAL,
) -> Recaptioning:
    """Caption all images with a captioner, reuse stored answers, and check every answer.

    Args:
        sources: images by path, with the source's captions.
        root: folder of the images.
        captioner: writes the captions.
        settings: settings of how images are shown and which captions are rejected.
        ingest: settings of ingest, whose measurements of images are used.
        vocabulary: vocabulary of the language pipeline.
        engine: measures images.
    """
    folder = ingest.journal and ingest.journal.parent
    measured = Table.spilled(measure(root, sources, ingest, engine), DecodedImage, folder)
    unanswered = _ask(measured, root, captioner, settings, ingest)
    source = captioner.name, captioner.model, captioner.prompt
    rejected: list[Rejected] = []
    openings, firsts = Counter[str](), Counter[str]()

    def accepted() -> Iterator[Recaption]:
        for image, answer, reason in _answers(measured, captioner, unanswered):
            own = sources[image.path]
            checked = check(answer, settings, vocabulary) if answer else Checked("", "", *reason)
            if checked.opening:
                openings[checked.opening] += 1
            if checked.rule:
                place = -1, own.sample_id, image.path
                rejected.append(Rejected(*place, checked.rule, checked.detail))
            elif answer:
                firsts[next(iter(split(checked.text)), "")] += 1
                texts = checked.text, own.originals
                yield Recaption(image.path, image.sha256, *texts, *source, answer.date)

    rows = Table.spilled(accepted(), Recaption, folder)
    least = max(3, len(rows) * _SHARED)
    shared = {text: count for text, count in firsts.most_common(5) if count >= least}
    counts = Counter(one.rule for one in rejected)
    shown = ", ".join(f"{rule} {count}" for rule, count in counts.most_common())
    log.info(
        "Recaptions: %d of %d images have one%s.",
        len(rows),
        len(measured),
        f"; rejected: {shown}" if shown else "",
    )
    for text, count in shared.items():
        log.warning(
            "%s: %d of %d captions begin with %r: another prompt (recaption.prompt) or model may "
            "describe the images instead.",
            KEY,
            count,
            len(rows),
            text[:100],
        )
    report = {
        **dict(zip(("captioner", "model", "prompt"), source, strict=True)),
        "images": len(measured),
        "captions": len(rows),
        "rejected": dict(sorted(counts.items())),
        "openings": dict(openings),
        "shared_first_sentences": shared,
    }
    return Recaptioning(rows, rejected, report)


def _ask(
    measured: Iterable[DecodedImage],
    root: Path,
    captioner: Captioner,
    settings: RecaptionSettings,
    ingest: IngestSettings,
) -> dict[str, str]:
    """Ask about readable images without a stored answer.

    Returns, by key, why there is no answer.

    Equal images share a question.
    """
    questions: dict[str, Question] = {}
    for some in grouped(measured, _AT_ONCE):
        readable = [(image.path, _image_content(image)) for image in some if image.error is None]
        keys = {captioner.key(content): (path, content) for path, content in readable}
        known = captioner.answers.get(keys)
        for key, (path, content) in keys.items():
            if key not in known:
                load = partial(shown_image, root, path, ingest.limits, settings.max_side)
                questions.setdefault(key, Question(key, content, load))
    if not questions:
        log.info("Recaptioning: every answer is stored, nothing is asked.")
        return {}
    log.info("Recaptioning: %s %s.", f"{len(questions):,}", captioner.place)
    reasons: dict[str, str] = {}
    tokens: Counter[str] = Counter()
    with Meter(len(questions), "captioning images") as meter:
        for key, result in zip(questions, captioner.ask([*questions.values()]), strict=True):
            if isinstance(result, NoAnswer):
                reasons[key] = str(result)
            else:
                tokens.update(prompts=result.prompt_tokens, answers=result.answer_tokens)
            meter.advance()
    log.info(
        "%d replies took %s tokens of prompts and %s of answers.",
        len(questions) - len(reasons),
        *(f"{tokens[kind]:,}" for kind in ("prompts", "answers")),
    )
    return reasons


def _answers(
    measured: Iterable[DecodedImage], captioner: Captioner, unanswered: Mapping[str, str]
) -> Iterator[tuple[DecodedImage, Answer | None, tuple[str, str]]]:
    """Yield each image with its stored answer, or with the rule and the reason why it has none."""
    for some in grouped(measured, _AT_ONCE):
        keys = [captioner.key(_image_content(one)) if one.error is None else "" for one in some]
        stored = captioner.answers.get(filter(None, keys))
        for image, key in zip(some, keys, strict=True):
            reason = NO_ANSWER, unanswered.get(key, "the stored answer is damaged")
            if image.error is not None:
                reason = UNREADABLE, image.error
            yield image, stored.get(key), reason


def _image_content(image: DecodedImage) -> str:
    """Hash of an image's bytes, with the crop box of its name appended."""
    return f"{image.sha256}{image.path[len(file_name(image.path)) :]}"


RULE = "recaption"
"""Quarantine rule of records whose image has no recaption."""


class Recaptions:
    """Replaces a source's captions by recaptions: one row for each image of a split."""

    def __init__(
        self,
        rows: Table[Recaption],
        rejected: Iterable[Rejected],
        settings: RecaptionSettings,
        splits: Sequence[str] | None,
    ) -> None:
        """Of all images of some splits.

        Args:
            rows: rows of the images that have one.
            rejected: the images that have none.
            settings: whether the source's captions stay.
            splits: splits whose images are captioned. None for all.
        """
        self._rows, self._keep, self._splits = rows, settings.keep_original, splits
        self._places = {path: n for n, path in enumerate(rows.column("image").to_pylist())}
        self._rejected = {one.image: one for one in rejected}
        self._counts: Counter[str] = Counter()
        hashed = hashlib.sha256()
        for batch in rows.batches("image", "caption"):
            hashed.update(batch.serialize())
        self.fingerprint = hashed.hexdigest()

    def report(self) -> dict[str, int]:
        """Numbers of records that were recaptioned, merged, rejected or unreadable."""
        names = ("recaptioned", "merged", "rejected", "unreadable")
        return {name: self._counts[name] for name in names}

    def replaced(self, records: Iterable[RawCaption | Rejected]) -> Iterator[RawCaption | Rejected]:
        """Yield the records with recaptions.

        Records of one image and split are merged into one.

        The first of each image and split stands for all of it.

        Records of images that cannot be read stay as they are, for ingest to find it, too.

        Raises:
            SettingsError: an image was never asked about: the records have changed.
        """
        seen: set[int] = set()
        for record in records:
            if isinstance(record, Rejected) or not _is_in_splits(record, self._splits):
                yield record
                continue
            rejection = self._rejected.get(record.image)
            if rejection is not None and rejection.rule == UNREADABLE:
                self._counts["unreadable"] += 1
                yield record
                continue
            image = digest(record.split, record.image)
            if image in seen:
                self._counts["merged"] += 1
                continue
            seen.add(image)
            place = self._places.get(record.image)
            if place is not None:
                self._counts["recaptioned"] += 1
                row = self._rows[place]
                further = row.originals if self._keep else ()
                yield replace(record, own=(row.caption,), further=further)
            elif rejection is not None:
                self._counts["rejected"] += 1
                detail = f"{rejection.rule}: {rejection.detail}"
                yield rejected(record.sample_id, record.image, detail, RULE)
            else:
                raise SettingsError(
                    f"{KEY}: nothing was asked about {record.image}: the data or their sample have "
                    f"changed since; run `kedro run --pipeline=ingest` again"
                )


def captioned_splits(settings: RecaptionSettings, sample: SampleSettings) -> list[str] | None:
    """Splits to caption: the configured ones, and `held_out` if one is sampled, or None for all."""
    if settings.splits is None:
        return None
    return [*settings.splits, *([HELD_OUT] if sample.split in settings.splits else [])]


def _is_in_splits(record: RawCaption, splits: Sequence[str] | None) -> bool:
    """Whether a record belongs to one of the splits, or None stands for all splits."""
    return splits is None or record.split in splits


_OFFER = re.compile(
    r"(?:(?<=[.!?\"”*])\s|\n)(?:-{3,}\s{1,4})?[*_(]{0,4}(?:(?:please )?(?:let me know|feel free)"
    r"|would you like|do you (?:want|need)|i hope|hope (?:this|that)|is there anything"
    r"|if you(?: (?:have|need|want|would)|['’]d)|note:).{0,300}\Z",
    re.IGNORECASE | re.DOTALL,
)
_PICTURE = re.compile(r"!\[[^\]\n]*\]\([^)\n]*\)")
_EMPHASIS = re.compile(r"(\*\*|__|\*|`)(?=\S)([^*`\n]+?)(?<=\S)\1")
_MARK = re.compile(r"^(?:[-*•>]\s+|#+\s+)", re.MULTILINE)
# Lines of lists, tables and of one label each, of which a text has two.
_LISTED = re.compile(
    r"^ *(?:[-*+•–]\s|\d{1,2}[.)]\s|\||\*\*[^*\n]+\*\*:?|[\w()]+(?: [\w()]+){0,2}:).*",
    re.MULTILINE,
)
# Headings, numbered items, JSON, a text in brackets, tags.
_STRUCTURED = re.compile(
    r"(?:^|\s)#{2,6}\s|^#\s|(?:^|[\s:])1[.)]\s.+\s2[.)]\s|\A\s*[\[{]\s*[\"'\[{]|\A\[[^\]]*\]\Z"
    r"|\A(?:[\w'-]+(?: [\w'-]+){0,2}, ){5,}[\w'-]+(?: [\w'-]+){0,2}\.?\Z",
    re.MULTILINE | re.DOTALL,
)
_QUOTED = re.compile(r"""\A(["“'‘«])([^"“”'‘«»]*(?:['’]\w[^"“”'‘«»]*)*)["”'’»]\Z""")
_WORD = re.compile(r"\w+")
_MOST_WORDS = 250
_RUN = 3  # words
_REPEATED = 0.3  # most of a caption's runs that repeat an earlier one
_SHOWN = 200  # characters of an answer in a reason


class Checked(NamedTuple):
    """Caption in a model's answer, the opening phrase removed from it, and why it is rejected.

    Rule and detail are empty where the caption is usable, the opening where there was none.
    """

    text: str
    opening: str = ""
    rule: str = ""
    detail: str = ""


def check(answer: Answer, settings: RecaptionSettings, vocabulary: Vocabulary) -> Checked:
    """Clean a model's answer, and check whether the rest is a caption.

    Args:
        answer: answer of the model.
        settings: the prompt, and the least share of known words.
        vocabulary: vocabulary of the language pipeline.
    """
    lines = _unwrapped(answer.text)
    text, opening = sentences.clean(_QUOTED.sub(r"\2", _without_marks(lines)))
    rule, found = _reason_to_reject(answer, lines, text, settings, vocabulary) or ("", "")
    detail = f"{found}: {_shown(text or answer.text)}" if rule else ""
    return Checked(text, opening or "", rule, detail)


def _unwrapped(answer: str) -> str:
    """Lines of a model's answer without wrapping, such as "Sure! Here's a caption:"."""
    text, before = _PICTURE.sub("", bare_text(answer)).strip(), None
    while text != before:
        before = text
        text = _QUOTED.sub(r"\2", PREAMBLE.sub("", text, count=1)).strip()
    return _OFFER.sub("", text)


def _without_marks(text: str) -> str:
    """A text without Markdown's emphasis, and marks of quotes and items."""
    while (plain := _EMPHASIS.sub(r"\2", text)) != text:
        text = plain
    return _MARK.sub("", text).strip()


def _reason_to_reject(
    answer: Answer, lines: str, text: str, settings: RecaptionSettings, vocabulary: Vocabulary
) -> tuple[str, str] | None:
    """Broken rule and finding for an answer that is not a usable caption."""
    if answer.refusal:
        return "refusal", no_answer(answer)
    if refuses(lines) or (text.casefold() in settings.prompt.casefold() and " " in text):
        return "refusal", "it speaks of the task"
    if not any(char.isalpha() for char in text):
        return "empty", "no word"
    if _STRUCTURED.search(lines) or len(_LISTED.findall(lines)) > 1 or MARKUP.search(text):
        return "list", "a list, headings or markup"
    if URL.fullmatch(text) or FILE_NAME.fullmatch(text):
        return "empty", "a name"
    if answer.cut:
        return "too_long", no_answer(answer)
    words = _WORD.findall(text.casefold())
    if len(words) > _MOST_WORDS:
        return "too_long", f"{len(words)} words, at most {_MOST_WORDS} are usable"
    if (share := repeated_share(words)) > _REPEATED:
        return "repetition", f"{share:.0%} of the runs of {_RUN} words are repetitions"
    if settings.known_words is not None and vocabulary.judges:
        counts = vocabulary.count([text])
        known = 1 - vocabulary.unknown(counts).total() / max(1, counts.total())
        if known < settings.known_words:
            return "unknown_words", f"the language pipeline knows {known:.0%} of the words"
    return None


def repeated_share(words: list[str]) -> float:
    """Share of the word trigrams in a text that occurred before, or 0 below three words."""
    runs = Counter(zip(*(words[start:] for start in range(_RUN)), strict=False))
    return 1 - len(runs) / runs.total() if runs else 0.0


def _shown(text: str) -> str:
    """Beginning of a text on one line, in quotes, for messages."""
    return repr(" ".join(text.split())[:_SHOWN])
