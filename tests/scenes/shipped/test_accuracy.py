"""Figures of a pipeline whose answers are known."""

import pytest
import spacy
from spacy.language import Language
from spacy.tokens import Doc

from compo_pipeline.language.lexicon import RESOURCES
from compo_scenes.language_model.accuracy import (
    GoldCaption,
    caption_accuracy,
    read_gold,
    report,
    treebank_accuracy,
)


@Language.component("fixed_answers")
def fixed_answers(doc: Doc) -> Doc:
    """Every word a noun of its own that hangs on the first; the first is an adjective."""
    for token in doc:
        token.pos_, token.tag_, token.dep_, token.head = "NOUN", "NNS", "dep", doc[0]
    doc[0].pos_ = "ADJ"
    return doc


@pytest.fixture(scope="module")
def nlp() -> Language:
    nlp = spacy.blank("en")
    nlp.add_pipe("fixed_answers")
    return nlp


def test_on_captions(nlp: Language) -> None:
    caption = GoldCaption(
        words=("old", "dogs", "cats"),
        upos=(frozenset({"ADJ", "VERB"}), frozenset({"NOUN"}), frozenset({"VERB"})),
        phrases=frozenset({(0, 2), (0, 1)}),
        optional=frozenset({(2, 3)}),
    )
    # It answers ADJ NOUN NOUN, and the phrases (0, 2) and (2, 3); the latter is optional.
    assert caption_accuracy(nlp, [caption]) == {
        "upos": pytest.approx(2 / 3),
        "noun_phrase_precision": 1.0,
        "noun_phrase_recall": 0.5,
        "noun_phrase_f1": pytest.approx(2 / 3),
    }


def test_on_treebank(nlp: Language) -> None:
    gold = Doc(
        nlp.vocab,
        words=["old", "dogs", "run", "."],
        pos=["ADJ", "NOUN", "VERB", "PUNCT"],
        tags=["JJ", "NNS", "NNS", "."],
        heads=[0, 0, 1, 0],
        deps=["ROOT", "dep", "dep", "punct"],
    )
    assert treebank_accuracy(nlp, [gold]) == {
        "upos": 0.5,
        "xpos": 0.5,
        "uas": pytest.approx(2 / 3),
        "las": pytest.approx(1 / 3),
    }


def test_the_shipped_pipeline_on_captions(compo_en: Language) -> None:
    gold = read_gold(RESOURCES / "gold_captions.txt")
    figures = report(compo_en, _one_doc(compo_en), gold)
    assert figures["treebank"]["upos"] == 1.0
    assert figures["captions"]["upos"] > 0.98
    assert figures["captions_lower_cased"]["upos"] > 0.98
    assert figures["captions"]["noun_phrase_f1"] > 0.95
    assert figures["captions_lower_cased"]["noun_phrase_f1"] > 0.95


def _one_doc(nlp: Language) -> list[Doc]:
    return [Doc(nlp.vocab, words=["dogs"], pos=["NOUN"], tags=["NNS"], heads=[0], deps=["ROOT"])]
