"""Words of the lexicon in the place of a treebank's."""

import random

import spacy
from spacy.tokens import Doc
from spacy.training import Example

from compo_pipeline.artefacts.augmentation import create, replacements, reworded
from compo_pipeline.language.lexicon import Entry

NLP = spacy.blank("en")
WORDS = {("NOUN", "NN"): ["zebra"], ("ADJ", "JJ"): ["snowy"]}


def sentence() -> Doc:
    return Doc(
        NLP.vocab,
        words=["Big", "dogs", "chase", "the", "cat", "."],
        spaces=[True, True, True, True, False, False],
        tags=["JJ", "NNS", "VBP", "DT", "NN", "."],
        pos=["ADJ", "NOUN", "VERB", "DET", "NOUN", "PUNCT"],
        heads=[1, 2, 2, 4, 2, 2],
        deps=["amod", "nsubj", "ROOT", "det", "obj", "punct"],
    )


def test_words_are_replaced_by_others_of_the_same_tag() -> None:
    doc = reworded(sentence(), WORDS, 1.0, random.Random(0))
    assert doc.text == "Snowy dogs chase the zebra."
    for attribute in ("tag_", "pos_", "dep_"):
        expected = [getattr(token, attribute) for token in sentence()]
        assert [getattr(token, attribute) for token in doc] == expected
    assert [token.head.i for token in doc] == [1, 2, 2, 4, 2, 2]


def test_the_share_of_replaced_words() -> None:
    rng = random.Random(0)
    count = sum("zebra" in reworded(sentence(), WORDS, 0.25, rng).text for _ in range(400))
    assert 70 < count < 130


def test_only_certain_words_of_open_classes_and_of_well_filled_tags() -> None:
    nouns = [Entry(f"noun{n}", "NOUN", "NN", n != 7) for n in range(40)]
    verbs = [Entry("sat", "VERB", "VBD", True)]
    adverbs = [Entry(f"adverb{n}", "ADV", "RB", True) for n in range(40)]
    words = replacements([*nouns, *verbs, *adverbs])
    assert list(words) == [("NOUN", "NN")]
    assert len(words["NOUN", "NN"]) == 39 and "noun7" not in words["NOUN", "NN"]


def test_shares_of_sentences_and_the_seed() -> None:
    def texts(**settings: float) -> list[str]:
        augment = create(seed=1, **settings)
        example = Example(NLP.make_doc(sentence().text), sentence())
        made = [next(augment(NLP, example)) for _ in range(200)]
        assert all(one.predicted.text == one.reference.text for one in made)
        return [one.reference.text for one in made]

    plain = sentence().text
    assert set(texts(lower_case=0, caption_words=0, replaced=1)) == {plain}
    assert set(texts(lower_case=1, caption_words=0, replaced=1)) == {plain.lower()}
    assert plain not in texts(lower_case=0, caption_words=1, replaced=1)
    mixed = texts(lower_case=0.3, caption_words=0.5, replaced=1)
    assert 70 < sum(text.lower() == plain.lower() for text in mixed) < 130
    assert 35 < sum(text.islower() for text in mixed) < 85
    assert mixed == texts(lower_case=0.3, caption_words=0.5, replaced=1)
