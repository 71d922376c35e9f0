"""spaCy pipelines, and rows of parses."""

import shutil
from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest
import spacy
from hypothesis import given
from hypothesis import strategies as st
from spacy.language import Language

from compo_pipeline.core.records import Parse
from compo_pipeline.core.settings import SettingsError
from compo_pipeline.language import parsing
from compo_pipeline.language.lexicon import RESOURCES
from compo_pipeline.language.parsing import load, name_and_version, parse


def test_the_shipped_pipeline_tags_and_parses(compo_en: Language) -> None:
    doc = compo_en("A black dog chases two cats.")
    assert [token.pos_ for token in doc] == ["DET", "ADJ", "NOUN", "VERB", "NUM", "NOUN", "PUNCT"]
    assert [token.tag_ for token in doc] == ["DT", "JJ", "NN", "VBZ", "CD", "NNS", "."]
    assert doc[2].dep_ == "nsubj" and doc[2].head.text == "chases"
    assert name_and_version(compo_en) == "compo_en==1.0.0"


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
    assert name_and_version(loaded) == "en_mine==2.1"


def test_what_is_not_installed(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"language\.model: cannot load 'en_core_web_xl'"):
        load("en_core_web_xl")
    with pytest.raises(SettingsError, match=r"language\.model: cannot load"):
        load(str(tmp_path))


def test_a_blank_pipeline_is_refused(tmp_path: Path) -> None:
    spacy.blank("en").to_disk(tmp_path)
    with pytest.raises(SettingsError, match="parts of speech, no fine tags, no dependencies"):
        load(str(tmp_path))


@pytest.mark.parametrize(
    ("before", "after", "named"),
    [
        ('factory = "tagger"', 'factory = "own_factory"', "components.tagger"),
        ('factory = "tagger"', 'source = "folder_of_another"', "components.tagger"),
        ('"spacy.Tagger.v2"', '"spacy-transformers.TransformerModel.v3"', "@architectures"),
        ("[components]\n", "[components]\nextra = 3\n", "components.extra"),
        ("before_creation = null", "", "nlp.before_creation.@callbacks"),
    ],
)
def test_a_folder_may_name_nothing_but_spacys_own(
    tmp_path: Path, before: str, after: str, named: str
) -> None:
    """Factories and functions of other packages may run code that the folder brings."""
    folder = Path(shutil.copytree(str(RESOURCES / "compo_en"), tmp_path / "mine"))
    (folder / "__init__.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    load(str(folder))
    config = (folder / "config.cfg").read_text()
    assert before in config
    config = config.replace(before, after)
    if not after:
        config += '\n[nlp.before_creation]\n@callbacks = "spacy.copy_from_base_model.v1"\n'
    (folder / "config.cfg").write_text(config)
    with pytest.raises(SettingsError, match=rf"language\.model: .*config\.cfg: .*{named}"):
        load(str(folder))
    assert not (tmp_path / "ran").exists()


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


def test_words_that_come_once_do_not_stay_in_memory(compo_en: Language) -> None:
    """A million captions have hundreds of thousands of them."""
    texts = [("", 0, f"A dog with the tag abc{number}xyz sits.") for number in range(300)]
    before = len(compo_en.vocab.strings)
    parsed = list(parse(compo_en, texts))
    assert parsed[-1].words[5] == "abc299xyz"
    assert len(compo_en.vocab.strings) == before
