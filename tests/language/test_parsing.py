"""Sentences become rows of `parses`, in order and each as one sentence."""

from collections import Counter
from collections.abc import Iterator
from itertools import pairwise

import pytest
import spacy
from hypothesis import given
from hypothesis import strategies as st
from spacy.language import Language

from compo_pipeline.language import parsing
from compo_pipeline.language.parsing import parse
from compo_pipeline.records import Parse


def test_a_row(compo_en: Language) -> None:
    (row,) = parse(compo_en, [("a", 2, "Two small dogs don't chase the cat.")])
    assert row == Parse(
        sample_id="a",
        sentence=2,
        text="Two small dogs don't chase the cat.",
        words=("Two", "small", "dogs", "do", "n't", "chase", "the", "cat", "."),
        offsets=(0, 4, 10, 15, 17, 21, 27, 31, 34),
        upos=("NUM", "ADJ", "NOUN", "AUX", "PART", "VERB", "DET", "NOUN", "PUNCT"),
        tags=("CD", "JJ", "NNS", "VBP", "RB", "VB", "DT", "NN", "."),
        noun_phrases=(0, 3, 6, 8),
    )


def test_rows_keep_the_order_of_the_items(compo_en: Language) -> None:
    items = [("a", 0, "A dog."), ("b", 0, "A cat."), ("a", 1, "A dog."), ("c", 0, "")]
    rows = list(parse(compo_en, items))
    assert [(row.sample_id, row.sentence, row.text) for row in rows] == items
    assert rows[0].words == rows[2].words == ("A", "dog", ".")
    assert rows[3].words == ()


def test_a_text_is_one_sentence_whatever_it_holds(compo_en: Language) -> None:
    text = "A dog. A cat! Is it? Yes"
    splitter = spacy.blank("en").add_pipe("sentencizer")
    assert len(list(splitter(compo_en.make_doc(text)).sents)) == 4
    whole = parsing.one_sentence(compo_en.make_doc(text))
    assert len(list(splitter(whole).sents)) == len(list(compo_en(whole).sents)) == 1
    assert [row.text for row in parse(compo_en, [("a", 0, text)])] == [text]


def test_equal_sentences_are_parsed_once_and_items_come_as_a_stream(
    compo_en: Language, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parsing, "_CHUNK", 4)
    monkeypatch.setattr(parsing, "_REMEMBERED", 2)
    parsed: Counter[str] = Counter()
    taken = 0

    def counting(text: str) -> object:
        parsed[text] += 1
        return Language.make_doc(compo_en, text)

    monkeypatch.setattr(compo_en, "make_doc", counting)

    def items() -> Iterator[tuple[str, int, str]]:
        nonlocal taken
        for number in range(12):
            taken += 1
            yield str(number), 0, f"dog {number % 2}" if number < 8 else f"cat {number}"

    rows = parse(compo_en, items())
    next(rows)
    assert taken == 4
    assert len(list(rows)) == 11
    assert parsed == {"dog 0": 1, "dog 1": 1, **{f"cat {n}": 1 for n in range(8, 12)}}


@given(st.lists(st.one_of(st.text(max_size=20), st.sampled_from(["a  b", " a", "👩‍🚀", "\n"]))))
def test_any_text(compo_en: Language, texts: list[str]) -> None:
    rows = list(parse(compo_en, [("a", 0, text) for text in texts]))
    assert [row.text for row in rows] == texts
    for row in rows:
        for word, offset in zip(row.words, row.offsets, strict=True):
            assert row.text[offset : offset + len(word)] == word
        assert all(tag for tag in row.upos)
        spaces = [word.isspace() for word in row.words]
        assert [tag == "SPACE" for tag in row.upos] == spaces
        spans = list(zip(row.noun_phrases[::2], row.noun_phrases[1::2], strict=True))
        assert all(0 <= start < end <= len(row.words) for start, end in spans)
        assert all(a[1] <= b[0] for a, b in pairwise(spans))
