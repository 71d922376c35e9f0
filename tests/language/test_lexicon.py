"""The caption lexicon, its regular forms, and what it says of captions."""

from collections import Counter, defaultdict
from pathlib import Path

import pytest
import spacy

from compo_pipeline.language.lexicon import (
    COLUMNS,
    Entry,
    Lemma,
    Lexicon,
    Opposite,
    load_lexicon,
    read_lexicon,
    regular_form,
)

FORMS = [
    ("geese", "NOUN", "NNS", "goose"),
    ("people", "NOUN", "NNS", "person"),
    ("pants", "NOUN", "NNS", "pants"),
    ("fire hydrants", "NOUN", "NNS", "fire hydrant"),
    ("ridden", "VERB", "VBN", "ride"),
    ("sat", "VERB", "VBD", "sit"),
    ("equipped", "VERB", "VBN", "equip"),
    ("to the left of", "ADP", "IN", "to the left of"),
]


def lexicon(*lines: str) -> str:
    return "\n".join(["\t".join(COLUMNS), *(line.replace("|", "\t") for line in lines)]) + "\n"


def test_words_are_single_tokens_in_lower_case_and_listed_once() -> None:
    tokenizer = spacy.blank("en").tokenizer
    entries = load_lexicon().entries
    assert [e.word for e in entries if len(tokenizer(e.word)) != 1 or e.word.isupper()] == []
    counted = Counter((e.word, e.upos, e.tag) for e in entries)
    assert [key for key, count in counted.items() if count > 1] == []
    assert len(entries) > 9_500


def test_a_certain_word_has_one_reading_as_a_part_of_speech() -> None:
    certain = defaultdict(set)
    for entry in load_lexicon().entries:
        if entry.certain:
            certain[entry.word].add(entry.upos)
    assert [word for word, upos in certain.items() if len(upos) > 1] == []
    assert certain.keys().isdisjoint({"orange", "light", "watch", "can", "left", "right"})


def test_a_past_tense_spelled_as_the_participle_is_never_certain() -> None:
    entries = {(entry.word, entry.tag): entry.certain for entry in load_lexicon().entries}
    assert not entries["chased", "VBD"] and entries["chased", "VBN"]


@pytest.mark.parametrize(("word", "upos", "tag", "lemma"), FORMS)
def test_forms_lead_to_their_lemma(word: str, upos: str, tag: str, lemma: str) -> None:
    found = load_lexicon().find_lemma(word, upos, tag)
    assert found is not None and found.name == lemma


def test_groups_antonyms_synonyms_and_what_may_be_true_as_well() -> None:
    words = load_lexicon()
    pets = {lemma.name for lemma in words.group("animal.pet", "NOUN")}
    assert {"dog", "cat", "puppy"} <= pets
    colours = {lemma.name for lemma in words.group("colour", "ADJ")}
    assert {"red", "cyan", "beige", "turquoise"} <= colours
    dog, tall = words.lemmas["dog", "NOUN"], words.lemmas["tall", "ADJ"]
    assert {"dog", "puppy", "beagle"} <= words.compatible(dog)
    assert "cat" not in words.compatible(dog)
    assert "short" in {opposite.lemma for opposite in tall.opposites}
    assert words.synonyms(words.lemmas["settee", "NOUN"]) == {"sofa", "couch"}


def test_no_opposite_may_be_true_as_well() -> None:
    words = load_lexicon()
    contradictions = [
        (lemma.name, opposite.lemma)
        for lemma in words.lemmas.values()
        for opposite in lemma.opposites
        if opposite.lemma in words.compatible(lemma)
    ]
    assert contradictions == []


def test_read(tmp_path: Path) -> None:
    path = tmp_path / "lexicon.tsv"
    path.write_text(
        lexicon(
            "ox|NOUN|NNS=oxen he|NN|farm yard|2|calf/thing/place, cow|||",
            "cow|NOUN|||farm||||@farm",
            "calf|NOUN|-NNS|all|||||",
            "red|ADJ|||||||",
            "hay|NOUN|mass|all|||||",
            "pizza|NOUN|both NNS=pizze|all|||||",
        ),
        encoding="utf-8",
    )
    read = read_lexicon(path)
    calf = Opposite("calf", frozenset({"thing", "place"}))
    assert read.lemmas["ox", "NOUN"] == Lemma(
        name="ox",
        upos="NOUN",
        forms={"NN": "ox", "NNS": "oxen"},
        unsure=frozenset({"NN"}),
        countable=True,
        mass=False,
        pronoun="he",
        groups=("farm", "yard"),
        weight=2,
        opposites=(calf, Opposite("cow", frozenset())),
        synonyms=(),
        also=(),
    )
    assert read.entries == (
        Entry("ox", "NOUN", "NN", False),
        Entry("oxen", "NOUN", "NNS", True),
        Entry("cow", "NOUN", "NN", True),
        Entry("cows", "NOUN", "NNS", True),
        Entry("calf", "NOUN", "NN", False),
        Entry("red", "ADJ", "JJ", True),
        Entry("hay", "NOUN", "NN", False),
        Entry("hays", "NOUN", "NNS", False),
        Entry("pizza", "NOUN", "NN", False),
        Entry("pizze", "NOUN", "NNS", False),
    )
    uses = {lemma.name: (lemma.countable, lemma.mass) for lemma in read.lemmas.values()}
    assert uses["calf"] == (False, True)
    assert uses["hay"] == (False, True) and uses["pizza"] == (True, True)
    assert read.compatible(read.lemmas["ox", "NOUN"]) == {"ox", "cow"}


def test_the_most_common_of_several_lemmas_is_read() -> None:
    def noun(name: str, plural: str, weight: int) -> Lemma:
        forms = {"NN": name, "NNS": plural}
        return Lemma(name, "NOUN", forms, frozenset(), True, False, "", (), weight, (), (), ())

    words = Lexicon([noun("axis", "axes", 0), noun("axe", "axes", 1)])
    found = words.find_lemma("axes", "NOUN", "NNS")
    assert found is not None and found.name == "axe"
    assert words.find_lemma("axes", "NOUN", "NN") is None


def test_synonyms_that_share_a_word_are_one_set() -> None:
    def noun(name: str, *synonyms: str) -> Lemma:
        return Lemma(
            name, "NOUN", {"NN": name}, frozenset(), True, False, "", (), 0, (), synonyms, ()
        )

    words = Lexicon([noun("sofa"), noun("couch", "sofa"), noun("settee", "couch"), noun("bed")])
    assert words.synonyms(words.lemmas["sofa", "NOUN"]) == {"couch", "settee"}
    assert words.synonyms(words.lemmas["bed", "NOUN"]) == frozenset()


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("Dog|NOUN|||||||", "line 3"),
        ("|NOUN|||||||", "line 3"),
        ("dog|DET|||||||", "line 3"),
        ("dog|NOUN|VBG=dogging||||||", "line 3"),
        ("dog|NOUN|-NNS|NNS|||||", "line 3"),
        ("dog|NOUN||||4|||", "line 3"),
        ("dog|NOUN|||||wolf||", "unknown lemmas .*wolf"),
        ("dog|NOUN||||||wolf|", "unknown lemmas .*wolf"),
        ("dog|NOUN|||||||@pet", "unknown lemmas .*@pet"),
        ("cat|NOUN|||||||", "more than one line.*cat"),
    ],
)
def test_a_bad_line_is_named(tmp_path: Path, line: str, said: str) -> None:
    path = tmp_path / "lexicon.tsv"
    path.write_text(lexicon("cat|NOUN|||||||", line), encoding="utf-8")
    with pytest.raises(ValueError, match=said):
        read_lexicon(path)


@pytest.mark.parametrize(
    ("tag", "forms"),
    [
        ("NNS", {"dog": "dogs", "bus": "buses", "peach": "peaches", "puppy": "puppies"}),
        ("NNS", {"toy": "toys", "fire hydrant": "fire hydrants"}),
        ("VBZ", {"watch": "watches", "carry": "carries"}),
        ("VBG", {"ride": "riding", "see": "seeing", "tie": "tying", "canoe": "canoeing"}),
        ("VBG", {"dye": "dyeing", "stop": "stopping", "quit": "quitting", "wait": "waiting"}),
        ("VBG", {"open": "opening", "show": "showing"}),
        ("VBD", {"fix": "fixed", "play": "played", "dye": "dyed", "grab": "grabbed"}),
        ("VBN", {"carry": "carried", "chase": "chased"}),
        ("JJR", {"big": "bigger"}),
        ("JJS", {"happy": "happiest"}),
        ("JJ", {"red": "red"}),
        ("IN", {"over": "over"}),
    ],
)
def test_regular_forms(tag: str, forms: dict[str, str]) -> None:
    assert {lemma: regular_form(lemma, tag) for lemma in forms} == forms
