"""Captions become sentences: the opening phrase goes, sentences of unfit length are dropped.

Where captions stay whole, each is one sentence, as it was written.
"""

from __future__ import annotations

from collections import Counter
from functools import lru_cache
from typing import Any

from compo_pipeline.datasets.readers.record import RawCaption
from compo_pipeline.language import sentences as language
from compo_pipeline.quality.settings import SentenceSettings

Counted = tuple[tuple[str, int], ...]
"""Sentences with their numbers of words."""

# The captions of one image stand close together in most sources, and each is read once per row.
_CACHED_TEXTS = 50_000

_REASONS = ("too_few_words", "too_many_words")


class Preparation:
    """Prepares captions one by one and keeps the tally that the ingest report shows.

    The tally is of the rows' own captions: each caption of a source counts once, however many
    rows it also stands in as a further one.
    """

    def __init__(self, settings: SentenceSettings, shown: int) -> None:
        """Start with an empty tally; `shown` examples of cleaned captions are kept."""
        self._settings = settings
        self._shown = shown
        self._captions = self._cleaned = self._without_own = 0
        self._openings: Counter[str] = Counter()
        self._sentences: Counter[str] = Counter()
        self._examples: list[dict[str, str]] = []

    def sentences(self, raw: RawCaption) -> Counted:
        """The row's sentences, its own first; none when none of its own is fit.

        A sentence that stands in the row already is not repeated.
        """
        cleaned, opening = raw.own[0], None
        if not self._settings.whole:
            cleaned, opening = language.clean(cleaned)
        self._note(raw, cleaned, opening)
        fit = []
        for text in (cleaned, *raw.own[1:]):
            for counted in _counted(text, self._settings.whole):
                problem = self._problem(counted)
                self._sentences[problem or "kept"] += 1
                if problem is None:
                    fit.append(counted)
        if not fit:
            self._without_own += 1
            return ()
        for text in raw.further:
            parts = _counted(text, self._settings.whole)
            fit += [counted for counted in parts if self._problem(counted) is None]
        return tuple(dict.fromkeys(fit))

    def report(self) -> dict[str, Any]:
        """The tally so far."""
        return {
            "captions": self._captions,
            "captions_cleaned": self._cleaned,
            "share_cleaned": self._cleaned / self._captions if self._captions else 0.0,
            "openings": dict(self._openings.most_common()),
            "examples": self._examples,
            "sentences_kept": self._sentences["kept"],
            "sentences_dropped": {reason: self._sentences[reason] for reason in _REASONS},
            "captions_without_a_sentence": self._without_own,
        }

    def _note(self, raw: RawCaption, cleaned: str, opening: str | None) -> None:
        self._captions += 1
        if opening is None:
            return
        self._cleaned += 1
        self._openings[opening] += 1
        if len(self._examples) < self._shown:
            self._examples.append(
                {"sample_id": raw.sample_id, "before": raw.own[0], "after": cleaned}
            )

    def _problem(self, counted: tuple[str, int]) -> str | None:
        """Why a sentence is not kept."""
        _, words = counted
        if words < self._settings.least_words:
            return "too_few_words"
        return "too_many_words" if words > self._settings.most_words else None


@lru_cache(_CACHED_TEXTS)
def _counted(text: str, whole: bool) -> Counted:
    """The sentences of a text, with their numbers of words."""
    line = " ".join(text.split())
    sentences = [line] if whole else language.split(line)
    return tuple((sentence, language.word_count(sentence)) for sentence in sentences)
