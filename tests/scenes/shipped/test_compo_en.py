"""Treebanks as training data for compo_en, and their augmentation."""

import random
from pathlib import Path

import pytest
import spacy
from spacy.language import Language
from spacy.tokens import Doc
from spacy.training import Example

from compo_pipeline.core.settings import SettingsError
from compo_pipeline.language.lexicon import RESOURCES, Entry
from compo_scenes.language_model import compo_en as training
from compo_scenes.language_model.accuracy import read_gold, report
from compo_scenes.language_model.compo_en import create_augmenter, replace_words, replacements

SENTENCE = """\
# sent_id = 1
# text = Dogs don't eat cakes.
1\tDogs\tdog\tNOUN\tNNS\tNumber=Plur\t4\tnsubj\t_\t_
2-3\tdon't\t_\t_\t_\t_\t_\t_\t_\t_
2\tdo\tdo\tAUX\tVBP\t_\t4\taux\t_\t_
3\tn't\tnot\tPART\tRB\t_\t4\tadvmod:neg\t_\t_
4\teat\teat\tVERB\tVB\t_\t0\troot\t_\t_
5\tcakes\tcake\tNOUN\tNNS\t_\t4\tobj\t_\tSpaceAfter=No
6\t.\t.\tPUNCT\t.\t_\t4\tpunct\t_\t_

# sent_id = 2
# text = His cat
1\tHis\this\tPRON\tPRP$\tCase=Gen\t2\tnmod:poss\t_\t_
2\tcat\tcat\tNOUN\tNN\t_\t0\troot\t_\t_

"""


def test_read(tmp_path: Path) -> None:
    path = tmp_path / "en_x-ud-dev.conllu"
    path.write_text(SENTENCE, encoding="utf-8")
    first, second = training.read_treebank(path).get_docs(spacy.blank("en").vocab)
    assert first.text == "Dogs don't eat cakes. "
    # Words are split as spaCy's tokenizer splits them.
    assert [token.text for token in first] == [
        token.text for token in spacy.blank("en")(first.text)
    ]
    assert [token.pos_ for token in first] == ["NOUN", "AUX", "PART", "VERB", "NOUN", "PUNCT"]
    assert [token.tag_ for token in first] == ["NNS", "VBP", "RB", "VB", "NNS", "."]
    # Subtypes are cut off but for those that are kept; features are left behind.
    assert [token.dep_ for token in first][:3] == ["nsubj", "aux", "advmod"]
    assert [token.dep_ for token in second] == ["nmod:poss", "ROOT"]
    assert [token.head.i for token in second] == [1, 1]
    assert [str(token.morph) for token in first] == [""] * 6


def test_files(tmp_path: Path) -> None:
    for split in training.SPLITS:
        (tmp_path / f"en_x-ud-{split}.conllu").touch()
    assert training.treebank_files(str(tmp_path))["dev"] == tmp_path / "en_x-ud-dev.conllu"
    (tmp_path / "en_y-ud-dev.conllu").touch()
    with pytest.raises(SettingsError, match="holds 2 for 'dev'"):
        training.treebank_files(tmp_path)


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
    doc = replace_words(sentence(), WORDS, 1.0, random.Random(0))
    assert doc.text == "Snowy dogs chase the zebra."
    for attribute in ("tag_", "pos_", "dep_"):
        expected = [getattr(token, attribute) for token in sentence()]
        assert [getattr(token, attribute) for token in doc] == expected
    assert [token.head.i for token in doc] == [1, 2, 2, 4, 2, 2]


def test_the_share_of_replaced_words() -> None:
    rng = random.Random(0)
    count = sum("zebra" in replace_words(sentence(), WORDS, 0.25, rng).text for _ in range(400))
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
        augment = create_augmenter(seed=1, **settings)
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


def test_the_shipped_pipeline_on_captions(compo_en: Language) -> None:
    doc = Doc(compo_en.vocab, words=["dogs"], pos=["NOUN"], tags=["NNS"], heads=[0], deps=["ROOT"])
    figures = report(compo_en, [doc], read_gold(RESOURCES / "gold_captions.txt"))
    assert figures["treebank"]["upos"] == 1.0
    for captions in ("captions", "captions_lower_cased"):
        assert figures[captions]["upos"] > 0.98
        assert figures[captions]["noun_phrase_f1"] > 0.95
