"""Split captions into sentences: opening phrases and sentences of unfit length are removed."""

from __future__ import annotations

from collections import Counter
from functools import lru_cache
from typing import Any

from compo_pipeline.core import sentences as language
from compo_pipeline.data.quality.caption_form import FORMS, count_forms, plain
from compo_pipeline.data.quality.settings import SentenceSettings
from compo_pipeline.data.readers.record import RawCaption

Counted = tuple[tuple[str, int], ...]
"""Sentences with their numbers of words."""

# Each caption of an image is read once per row, and those rows are close together.
_CACHED_TEXTS = 50_000

_REASONS = ("too_few_words", "too_many_words")

_SHOWN = 20  # examples of cleaned captions in the report


class Preparation:
    """Cleans captions and splits them into sentences, with counts for the ingest report.

    Only the rows' own captions count, so each caption of a source counts once.
    """

    def __init__(self, settings: SentenceSettings) -> None:
        self._settings = settings
        self._captions = self._cleaned = self._without_own = 0
        self._openings: Counter[str] = Counter()
        self._sentences: Counter[str] = Counter()
        self._examples: list[dict[str, str]] = []
        self._forms = {name: {"captions": 0, "examples": []} for name in FORMS}

    def sentences(self, raw: RawCaption) -> tuple[Counted, list[int]]:
        """Distinct usable sentences of a row, and their numbers of words.

        If the row's own caption has no usable sentence, there is none, and the numbers are those of
        all its sentences.
        """
        texts, opening = [plain(text) for text in raw.own], None
        if not self._settings.whole:
            texts[0], opening = language.clean(texts[0])
        self._captions += 1
        count_forms(" ".join(raw.own), " ".join(texts), self._forms)
        if opening is not None:
            self._cleaned += 1
            self._openings[opening] += 1
            if len(self._examples) < _SHOWN:
                example = {"sample_id": raw.sample_id, "before": raw.own[0], "after": texts[0]}
                self._examples.append(example)
        fit: list[tuple[str, int]] = []
        lengths = []
        for text in texts:
            for counted in _sentences_with_lengths(text, self._settings.whole):
                lengths.append(counted[1])
                problem = self._problem(counted)
                self._sentences[problem or "used"] += 1
                if problem is None:
                    fit.append(counted)
        if not fit:
            self._without_own += 1
            return (), lengths
        for text in raw.further:
            parts = _sentences_with_lengths(plain(text), self._settings.whole)
            fit += [counted for counted in parts if self._problem(counted) is None]
        distinct = tuple(dict.fromkeys(fit))
        return distinct, [words for _, words in distinct]

    def report(self) -> dict[str, Any]:
        """Counts of cleaned captions and used sentences so far, with examples."""
        return {
            "captions": self._captions,
            "captions_cleaned": self._cleaned,
            "share_cleaned": self._cleaned / self._captions if self._captions else 0.0,
            "openings": dict(self._openings.most_common()),
            "examples": self._examples,
            "sentences_used": self._sentences["used"],
            "sentences_dropped": {reason: self._sentences[reason] for reason in _REASONS},
            "captions_without_a_sentence": self._without_own,
            "forms": self._forms,
        }

    def _problem(self, counted: tuple[str, int]) -> str | None:
        """Reason why a sentence is dropped (too short or too long), or None for a usable one."""
        _, words = counted
        if words < self._settings.least_words:
            return "too_few_words"
        return "too_many_words" if words > self._settings.most_words else None


@lru_cache(_CACHED_TEXTS)
def _sentences_with_lengths(text: str, whole: bool) -> Counted:
    """Sentences of a plain text, each with its number of words."""
    sentences = [text] if whole else language.split(text)
    return tuple((sentence, language.word_count(sentence)) for sentence in sentences)
