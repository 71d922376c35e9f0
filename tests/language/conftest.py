"""Pipelines, parses and measures that several tests of the language room use."""

from __future__ import annotations

import random
import unicodedata
from collections import Counter
from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING

import pytest
import spacy
from hypothesis import strategies as st

from compo_pipeline.records import Parse

if TYPE_CHECKING:
    from spacy.language import Language

_KINDS = ("NOUN/NN", "NOUN/NNS", "ADJ", "ADJ", "ADV", "VERB", "VERB", "AUX", "PROPN", "DET")
_TRICKY = (
    *("a", "A", "-", "...", "cat", "Cat", "cat's", "don't", "can't", "red-haired", '"Stop"', "I"),
    *("TV", "$5", "5pm", "o’clock", "straße", "STRASSE", "İstanbul", "ﬁsh", "ΟΔΟΣ", "🐈"),
    *("👩\u200d🚀", "50%", "dogs'", "(red)", "…"),
)
_PIECES = st.one_of(st.sampled_from(_TRICKY), st.text(min_size=1, max_size=8))


@cache
def _tokenizer() -> Language:
    return spacy.blank("en")


@st.composite
def _parses(draw: st.DrawFn) -> Parse:
    """Any text as spaCy parts it, tagged at random, with random noun phrases."""
    separator, ending = draw(st.sampled_from([(" ", "."), (" ", " "), ("", "")]))
    text = separator.join(draw(st.lists(_PIECES, min_size=1, max_size=8))) + ending
    doc = _tokenizer()(text)
    chance = random.Random(draw(st.integers(0, 999)))
    kinds = [(chance.choice((*_KINDS, "PUNCT", "X")) + "/").split("/") for _ in doc]
    upos = ["SPACE" if token.is_space else kind[0] for token, kind in zip(doc, kinds, strict=True)]
    ends = sorted(chance.sample(range(len(doc) + 1), 2 * min(2, (len(doc) + 1) // 2)))
    return Parse(
        sample_id="id",
        sentence=0,
        text=text,
        words=tuple(token.text for token in doc),
        offsets=tuple(token.idx for token in doc),
        upos=tuple(upos),
        tags=tuple(kind[1] for kind in kinds),
        noun_phrases=tuple(ends),
    )


@pytest.fixture(scope="session")
def parses() -> st.SearchStrategy[Parse]:
    """Parses of any text, sensible or not."""
    return _parses()


@pytest.fixture(scope="session")
def written_words() -> Callable[..., Counter[str]]:
    """Words of texts without case, as punctuation and spaces part them."""

    def count(*texts: str) -> Counter[str]:
        counted: Counter[str] = Counter()
        for text in texts:
            parted = (" " if unicodedata.category(c)[0] in "PZ" else c for c in text.casefold())
            counted.update("".join(parted).split())
        return counted

    return count


@pytest.fixture(scope="session")
def tagged() -> Callable[[str], Parse]:
    """A parse of space-separated `word/UPOS` or `word/UPOS/TAG`.

    A `_` before a word glues it to the one before; brackets of their own enclose noun phrases.
    """

    def make(source: str) -> Parse:
        words, offsets, upos, tags, phrases, text = [], [], [], [], [], ""
        for token in source.split():
            if token in "[]":
                phrases.append(len(words))
                continue
            word, *kind = token.split("/")
            text += "" if word.startswith("_") or not text else " "
            words.append(word.removeprefix("_"))
            offsets.append(len(text))
            text += words[-1]
            upos.append(kind[0])
            tags.append(kind[-1])
        columns = (tuple(column) for column in (words, offsets, upos, tags, phrases))
        return Parse("id", 0, text, *columns)

    return make
