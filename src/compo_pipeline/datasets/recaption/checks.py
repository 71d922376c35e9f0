"""Cleaning of captioning models' answers, and the reasons to reject them."""

from __future__ import annotations

import re
from collections import Counter
from typing import NamedTuple

from compo_pipeline.chat.answers import Answer, bare_text, no_answer, refuses
from compo_pipeline.datasets.quality.caption_language import Vocabulary
from compo_pipeline.datasets.recaption.settings import RecaptionSettings
from compo_pipeline.language import sentences

_LABEL = re.compile(r"^[*_#\s]*(?:caption|description|answer)[*_\s]*:[*_\s]*", re.IGNORECASE)
_QUOTED = re.compile(r'^(["“])([^"“”]*)["”]$')
_WORD = re.compile(r"\w+")
_RUN = 3  # words
_SHOWN = 200  # characters of an answer in a reason


class Rejection(NamedTuple):
    """Reason why a model's answer is no usable caption: the broken rule, and details."""

    rule: str
    detail: str


class Cleaned(NamedTuple):
    """A cleaned caption, and the opening phrase removed from it ("This image shows"), or None."""

    text: str
    opening: str | None


def clean(answer: str) -> Cleaned:
    """Caption in a model's answer, without reasoning, label, quotes and opening phrase."""
    text = _LABEL.sub("", bare_text(answer), count=1).strip()
    return Cleaned(*sentences.clean(_QUOTED.sub(r"\2", text)))


def reason_to_reject(
    answer: Answer, text: str, settings: RecaptionSettings, vocabulary: Vocabulary
) -> Rejection | None:
    """Reason to reject a model's answer as a caption; None for a usable caption.

    Args:
        answer: of the model.
        text: what `clean` made of it.
        settings: the limits.
        vocabulary: of the language pipeline.
    """
    if answer.refusal or refuses(text):
        return Rejection("refusal", no_answer(answer) or _quoted(text))
    words = _WORD.findall(text.casefold())
    if not any(char.isalpha() for char in text):
        return Rejection("empty", f"no word: {_quoted(answer.text)}")
    if answer.cut:
        return Rejection("too_long", f"{no_answer(answer)}: {_quoted(text)}")
    if len(words) > settings.most_words:
        limit = f"most_words is {settings.most_words}"
        return Rejection("too_long", f"{len(words)} words, {limit}: {_quoted(text)}")
    if (share := repeated_share(words)) > settings.repeated:
        found = f"{share:.0%} of the runs of {_RUN} words are repetitions"
        return Rejection("repetition", f"{found}: {_quoted(text)}")
    if settings.known_words is not None and vocabulary.judges:
        counts = vocabulary.count([text])
        known = 1 - vocabulary.unknown(counts).total() / max(1, counts.total())
        if known < settings.known_words:
            found = f"the language pipeline knows {known:.0%} of the words"
            return Rejection("unknown_words", f"{found}: {_quoted(text)}")
    return None


def repeated_share(words: list[str]) -> float:
    """Share of the word trigrams in a text that occurred before; 0 below three words."""
    runs = Counter(zip(*(words[start:] for start in range(_RUN)), strict=False))
    return 1 - len(runs) / runs.total() if runs else 0.0


def _quoted(text: str) -> str:
    """Beginning of a text on one line, in quotes, for messages."""
    return repr(" ".join(text.split())[:_SHOWN])
