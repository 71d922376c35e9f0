"""Which spaCy pipelines are taken, and how others are refused."""

from pathlib import Path

import pytest
import spacy
from spacy.language import Language

from compo_pipeline.configuration import SettingsError
from compo_pipeline.language.lexicon import RESOURCES
from compo_pipeline.language.loading import identity, load


def test_the_shipped_pipeline_tags_and_parses(compo_en: Language) -> None:
    doc = compo_en("A black dog chases two cats.")
    assert [token.pos_ for token in doc] == ["DET", "ADJ", "NOUN", "VERB", "NUM", "NOUN", "PUNCT"]
    assert [token.tag_ for token in doc] == ["DT", "JJ", "NN", "VBZ", "CD", "NNS", "."]
    assert doc[2].dep_ == "nsubj" and doc[2].head.text == "chases"
    assert identity(compo_en) == "compo_en==1.0.0"


def test_the_shipped_folder_is_small_holds_no_pickle_and_names_its_licence() -> None:
    folder = Path(str(RESOURCES / "compo_en"))
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) < 10e6
    # The first bytes of a pickle of protocol 2 to 5; JSON, msgpack and numpy begin otherwise.
    assert [
        path
        for path in files
        if path.read_bytes()[:2] in {b"\x80" + bytes([n]) for n in range(2, 6)}
    ] == []
    assert spacy.util.load_meta(folder / "meta.json")["license"] == "CC BY-SA 4.0"
    assert "Attribution-ShareAlike 4.0" in (RESOURCES / "LICENSE").read_text(encoding="utf-8")
    for path in ("meta.json", "config.cfg"):
        assert "/tmp" not in (folder / path).read_text(encoding="utf-8")


def test_a_folder_loads_without_the_components_that_nobody_reads(
    compo_en: Language, tmp_path: Path
) -> None:
    nlp = spacy.load(RESOURCES / "compo_en")
    nlp.add_pipe("entity_ruler", name="names")
    nlp.meta["name"], nlp.meta["version"] = "mine", "2.1"
    nlp.to_disk(tmp_path / "mine")
    loaded = load(str(tmp_path / "mine"))
    assert loaded.pipe_names == compo_en.pipe_names
    assert set(loaded.disabled) == {"names", "sentencizer"}
    assert identity(loaded) == "en_mine==2.1"


def test_what_is_not_installed(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"language\.model: cannot load 'en_core_web_xl'"):
        load("en_core_web_xl")
    with pytest.raises(SettingsError, match=r"language\.model: cannot load"):
        load(str(tmp_path))


@pytest.mark.parametrize(
    ("dropped", "missing"),
    [
        (["parser"], "gives no dependencies"),
        (["morphologizer", "lexicon", "neighbours"], "gives no parts of speech"),
        (["tagger", "lexicon", "neighbours"], "gives no fine tags"),
    ],
)
def test_a_pipeline_that_lacks_a_part_is_refused(
    tmp_path: Path, dropped: list[str], missing: str
) -> None:
    nlp = spacy.load(RESOURCES / "compo_en", exclude=dropped)
    nlp.to_disk(tmp_path)
    with pytest.raises(SettingsError, match=rf"language\.model: .*{missing}"):
        load(str(tmp_path))


def test_a_blank_pipeline_is_refused(tmp_path: Path) -> None:
    spacy.blank("en").to_disk(tmp_path)
    with pytest.raises(SettingsError, match="parts of speech, no fine tags, no dependencies"):
        load(str(tmp_path))
