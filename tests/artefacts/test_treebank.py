"""Universal Dependencies files as training data."""

from pathlib import Path

import pytest
import spacy

from compo_pipeline.artefacts import treebank
from compo_pipeline.configuration import SettingsError

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
    first, second = treebank.read(path).get_docs(spacy.blank("en").vocab)
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
    for split in treebank.SPLITS:
        (tmp_path / f"en_x-ud-{split}.conllu").touch()
    assert treebank.files(str(tmp_path))["dev"] == tmp_path / "en_x-ud-dev.conllu"
    (tmp_path / "en_y-ud-dev.conllu").touch()
    with pytest.raises(SettingsError, match="holds 2 for 'dev'"):
        treebank.files(tmp_path)


def test_a_folder_that_is_none_or_holds_no_treebank(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"language\.treebank\.root.*absent is no folder"):
        treebank.files(tmp_path / "absent")
    with pytest.raises(SettingsError, match=r"language\.treebank\.root.*holds 0 for 'train'"):
        treebank.files(tmp_path)
