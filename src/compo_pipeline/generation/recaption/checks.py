"""Captions from captioning models' answers: cleaning, and the reasons to reject them."""

from __future__ import annotations

import re
from collections import Counter
from typing import NamedTuple

from compo_pipeline.core import sentences
from compo_pipeline.data.quality.caption_form import FILE_NAME, MARKUP, URL
from compo_pipeline.data.quality.caption_language import Vocabulary
from compo_pipeline.generation.chat.answers import PREAMBLE, Answer, bare_text, no_answer, refuses
from compo_pipeline.generation.recaption.settings import RecaptionSettings

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
