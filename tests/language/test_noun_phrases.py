"""Base noun phrases of hand-built docs, in both label sets."""

import pytest
import spacy
from spacy.tokens import Doc

from compo_pipeline.language.noun_phrases import noun_phrases

VOCAB = spacy.blank("en").vocab


def phrases(sentence: str) -> list[str]:
    """Noun phrases of a sentence written as `word/UPOS/head/label` or `word/UPOS/head/label/TAG`,
    heads counted from 0.
    """
    tokens = [token.split("/") for token in sentence.split()]
    words, upos, heads, labels = map(list, zip(*(token[:4] for token in tokens), strict=True))
    tags = [token[4] if len(token) > 4 else "" for token in tokens]
    places = [int(head) for head in heads]
    doc = Doc(VOCAB, words=words, pos=upos, tags=tags, heads=places, deps=labels)
    return [doc[start:end].text for start, end in noun_phrases(doc)]


UD = [
    (
        "A/DET/3/det small/ADJ/3/amod red/ADJ/3/amod ball/NOUN/4/nsubj lies/VERB/4/ROOT "
        "on/ADP/8/case the/DET/8/det kitchen/NOUN/8/compound table/NOUN/4/obl ./PUNCT/4/punct",
        ["A small red ball", "the kitchen table"],
    ),
    (
        "his/PRON/1/nmod:poss father/NOUN/3/nmod:poss 's/PART/1/case dog/NOUN/3/ROOT",
        ["his father 's dog"],
    ),
    (
        "two/NUM/1/nummod men/NOUN/1/ROOT and/CCONJ/4/cc a/DET/4/det dog/NOUN/1/conj",
        ["two men", "a dog"],
    ),
    ("a/DET/3/det very/ADV/2/advmod old/ADJ/3/amod man/NOUN/3/ROOT", ["a very old man"]),
    ("only/ADV/1/advmod dogs/NOUN/1/ROOT", ["dogs"]),
    (
        "a/DET/4/det black/ADJ/4/amod and/CCONJ/3/cc white/ADJ/1/conj photo/NOUN/4/ROOT",
        ["a black and white photo"],
    ),
    ("New/PROPN/0/ROOT York/PROPN/0/flat at/ADP/3/case night/NOUN/0/nmod", ["New York", "night"]),
    ("she/PRON/1/nsubj sleeps/VERB/1/ROOT", []),
]
CLEARNLP = [
    (
        "A/DET/2/det red/ADJ/2/amod ball/NOUN/3/nsubj lies/VERB/3/ROOT on/ADP/3/prep "
        "the/DET/7/det kitchen/NOUN/7/compound table/NOUN/4/pobj",
        ["A red ball", "the kitchen table"],
    ),
    ("his/PRON/1/poss father/NOUN/3/poss 's/PART/1/case dog/NOUN/3/ROOT", ["his father 's dog"]),
    ("all/DET/2/predet the/DET/2/det dogs/NOUN/2/ROOT", ["all the dogs"]),
    ("about/ADV/1/quantmod ten/NUM/2/nummod dogs/NOUN/2/ROOT", ["about ten dogs"]),
]


# What a parser hung on another word, or parted, belongs to its phrase as far as it can.
MISTAKEN = [
    ("a/DET/2/det steel/NOUN/2/nmod bridge/NOUN/2/ROOT", ["a steel bridge"]),
    ("A/DET/1/det length/NOUN/3/obj bus/NOUN/3/nsubj drives/VERB/3/ROOT", ["A length", "bus"]),
    (
        "A/DET/1/det length/NOUN/3/compound bus/NOUN/3/nsubj drives/VERB/3/ROOT",
        ["A length bus"],
    ),
    ("A/DET/3/det young/ADJ/3/amod gymnast/NOUN/3/compound leaps/VERB/3/ROOT", ["A young gymnast"]),
    ("is/AUX/2/cop that/DET/2/nsubj good/ADJ/2/ROOT food/NOUN/2/obj", ["that good food"]),
    ("Here/ADV/0/ROOT a/DET/2/det pink/ADJ/0/nsubj arrow/NOUN/0/discourse", ["a pink arrow"]),
    ("over/ADP/2/case a/DET/2/det pink/ADJ/3/compound arrow/NOUN/3/ROOT", ["a pink arrow"]),
    ("Just/ADV/2/advmod a/DET/2/det red/ADJ/3/amod cup/NOUN/3/ROOT", ["a red cup"]),
    ("A/DET/1/det zoo/NOUN/2/obj/NN house/NOUN/2/ROOT", ["A zoo house"]),
    (
        "a/DET/1/det snow/NOUN/3/obj/NN covered/VERB/3/amod/VBN slope/NOUN/3/ROOT/NN",
        ["a snow covered slope"],
    ),
    ("men/NOUN/2/nsubj/NNS bananas/NOUN/2/obj/NNS eat/VERB/2/ROOT", ["men", "bananas"]),
    ("a/DET/1/det chair/NOUN/3/obl/NN a/DET/3/det cup/NOUN/3/ROOT", ["a chair", "a cup"]),
]


@pytest.mark.parametrize(("sentence", "expected"), UD + CLEARNLP + MISTAKEN)
def test_noun_phrases(sentence: str, expected: list[str]) -> None:
    assert phrases(sentence) == expected


def test_no_tokens() -> None:
    assert noun_phrases(Doc(VOCAB)) == []
