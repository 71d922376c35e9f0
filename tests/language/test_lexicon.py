"""The shipped lexicon keeps its promises."""

from collections import defaultdict
from pathlib import Path

import pytest
import spacy

from compo_pipeline.language.lexicon import Entry, load_lexicon, read_lexicon

HEADER = "word\tupos\ttag\tgroup\tantonym\tcertain\n"


def test_words_are_single_tokens_in_lower_case_and_listed_once() -> None:
    tokenizer = spacy.blank("en").tokenizer
    entries = load_lexicon()
    assert [e.word for e in entries if len(tokenizer(e.word)) != 1] == []
    assert len({(e.word, e.upos, e.tag) for e in entries}) == len(entries)


def test_a_certain_word_has_one_reading_as_a_part_of_speech() -> None:
    certain = defaultdict(set)
    for entry in load_lexicon():
        if entry.certain:
            certain[entry.word].add(entry.upos)
    assert [word for word, upos in certain.items() if len(upos) > 1] == []
    assert certain.keys().isdisjoint({"orange", "light", "watch", "can", "left", "right"})


def test_antonyms_and_groups() -> None:
    entries = load_lexicon()
    known = {(entry.word, entry.upos) for entry in entries}
    opposed = [entry for entry in entries if entry.antonym]
    assert [e for e in opposed if (e.antonym, e.upos) not in known] == []
    assert [e for e in opposed if e.antonym == e.word] == []
    groups = defaultdict(set)
    for entry in entries:
        groups[entry.group, entry.tag].add(entry.word)
    assert {"dog", "cat"} <= groups["animal.pet", "NN"]
    assert {"dogs", "cats"} <= groups["animal.pet", "NNS"]
    assert {"red", "cyan", "beige"} <= groups["colour", "JJ"]


def test_words_of_rendered_scenes_are_known() -> None:
    words = {(entry.word, entry.upos) for entry in load_lexicon()}
    things = "ball box star heart ring moon house tree fish mug key flower cloud boat arrow cross"
    colours = "red yellow green cyan blue purple pink brown white gray black beige"
    assert {(word, "NOUN") for word in things.split()} <= words
    assert {(word, "ADJ") for word in colours.split()} <= words


def test_read(tmp_path: Path) -> None:
    path = tmp_path / "lexicon.tsv"
    path.write_text(HEADER + "dogs\tNOUN\tNNS\tpet\t\tyes\n", encoding="utf-8")
    assert read_lexicon(path) == (Entry("dogs", "NOUN", "NNS", "pet", None, True),)


@pytest.mark.parametrize(
    "line",
    ["Dog\tNOUN\tNN\t\t\tyes", "dog\tNOUN\t\t\t\tyes", "dog\tNOUN\tNN\t\t\ttrue", "dog\tNOUN"],
)
def test_a_bad_line_is_named(tmp_path: Path, line: str) -> None:
    path = tmp_path / "lexicon.tsv"
    path.write_text(f"{HEADER}cat\tNOUN\tNN\t\t\tyes\n{line}\n", encoding="utf-8")
    with pytest.raises(ValueError, match="line 3"):
        read_lexicon(path)
