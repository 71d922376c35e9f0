"""Whether the language pipeline knows the captions' language: the share of words that it knows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any

from compo_pipeline.core.records import Caption
from compo_pipeline.core.settings import PlainError
from compo_pipeline.core.tables import Table
from compo_pipeline.data.quality.settings import DataValidationSettings

if TYPE_CHECKING:
    from spacy.language import Language

_ROWS = 2_000  # read at even distances
_LEAST_WORDS = 100  # of fewer the share says nothing
_LEAST_VOCABULARY = 5_000  # words; pipelines with fewer keep no list of those they were trained on
_SHOWN = 5


class UnknownLanguage(PlainError, ValueError):
    """Error: the captions are in another language than that of the spaCy pipeline."""


class Vocabulary:
    """Vocabulary of a spaCy pipeline: the words that it was trained with."""

    def __init__(self, nlp: Language) -> None:
        self._nlp, self._words = nlp, set(nlp.vocab.strings)

    @property
    def judges(self) -> bool:
        """Whether the vocabulary can judge words, as its pipeline stores its training words."""
        return len(self._words) >= _LEAST_VOCABULARY

    def count(self, texts: Iterable[str]) -> Counter[str]:
        """Count the words in texts, as tokenised by the spaCy pipeline."""
        words: Counter[str] = Counter()
        with self._nlp.memory_zone():
            for text in texts:
                words.update(token.text for token in self._nlp.make_doc(text) if token.is_alpha)
        return words

    def unknown(self, words: Counter[str]) -> Counter[str]:
        """Counts of the words that are not in the vocabulary."""
        return Counter(
            {
                word: count
                for word, count in words.items()
                if word not in self._words and word.lower() not in self._words
            }
        )


def measure_sources(
    captions: Sequence[Caption], nlp: Language, settings: DataValidationSettings
) -> dict[str, Any]:
    """Share of captions' words that the spaCy pipeline knows, in the source with the lowest share.

    It is that of `measure`, with the name of the source where there are several.
    """
    table = Table.of(captions, Caption)
    names = table.column("source").unique().to_pylist()
    if len(names) < 2:
        return measure(captions, nlp, settings)
    found = (
        {**measure(table.having("source", [name]), nlp, settings), "source": name} for name in names
    )
    return min(found, key=lambda each: 1 if each["known_share"] is None else each["known_share"])


def measure(
    captions: Sequence[Caption], nlp: Language, settings: DataValidationSettings
) -> dict[str, Any]:
    """Share of the captions' words that are in a spaCy pipeline's vocabulary, with examples.

    English captions of photographs reach 98% with the shipped pipeline, captions in other languages
    a third to a half, as words are common to languages.

    Args:
        captions: caption rows, of which some thousand are read.
        nlp: a spaCy pipeline.
        settings: the least share.

    Returns:
        pipeline, words read, known_share (None where it says nothing), the most frequent unknown
        words, and the least share.
    """
    vocabulary = Vocabulary(nlp)
    rows = captions[:: max(1, -(-len(captions) // _ROWS))]
    words = vocabulary.count(chain.from_iterable(row.sentences for row in rows))
    unknown = vocabulary.unknown(words)
    judged = words.total() >= _LEAST_WORDS and vocabulary.judges
    return {
        "pipeline": nlp.meta["name"],
        "words": words.total(),
        "known_share": 1 - unknown.total() / words.total() if judged else None,
        "unknown": [word for word, _ in unknown.most_common(_SHOWN)],
        "least_share": settings.known_words,
    }


def refuse_unknown(result: Mapping[str, Any]) -> None:
    """Raise an error if too few of the captions' words are known to the spaCy pipeline.

    Args:
        result: result of `measure`.

    Raises:
        UnknownLanguage: names the keys to change.
    """
    share, least = result["known_share"], result["least_share"]
    if share is None or least is None or share >= least:
        return
    of = f" of the source {result['source']}" if "source" in result else ""
    raise UnknownLanguage(
        f"validation.known_words: the language pipeline {result['pipeline']} knows {share:.0%} of "
        f"the captions' words{of} (not {', '.join(map(repr, result['unknown']))}), expected at "
        f"least {least:.0%}: name a spaCy pipeline of their language, with a tagger and a parser, "
        "in language.model. Of the generators, swap (CLIC's, method=clic) and bigram then work, as "
        "they read parts of speech alone; the others have rules for English. method=clip and "
        "method=siglip read no words: validation.known_words=null lets the captions pass"
    )
