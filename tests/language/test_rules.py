"""The lexicon's rules in the shipped pipeline, in any case."""

import pytest
import spacy
from spacy.language import Language

from compo_pipeline.language.lexicon import load_lexicon
from compo_pipeline.language.rules import add_rules

SCENES = [
    (
        "A small red ball to the left of a striped blue house.",
        "DET ADJ ADJ NOUN ADP DET NOUN ADP DET ADJ ADJ NOUN PUNCT",
    ),
    (
        "There is a dotted cyan mug inside a large violet ring.",
        "PRON VERB DET ADJ ADJ NOUN ADP DET ADJ ADJ NOUN PUNCT",
    ),
    ("A key lies below the yellow arrow.", "DET NOUN VERB ADP DET ADJ NOUN PUNCT"),
    ("The fish is above a huge star.", "DET NOUN AUX ADP DET ADJ NOUN PUNCT"),
    (
        "To the right of the pink heart is a brown cross.",
        "ADP DET NOUN ADP DET ADJ NOUN {be} DET ADJ NOUN PUNCT",
    ),
    (
        "The green box contains a purple cloud and a plain white moon.",
        "DET ADJ NOUN VERB DET ADJ NOUN CCONJ DET ADJ ADJ NOUN PUNCT",
    ),
    (
        "A boat and a flower on a beige background.",
        "DET NOUN CCONJ DET NOUN ADP DET ADJ NOUN PUNCT",
    ),
]
WORDS = [
    ("an orange ball", "DET ADJ NOUN"),
    ("the ball is orange", "DET NOUN AUX ADJ"),
    ("an orange on a plate", "DET NOUN ADP DET NOUN"),
    ("a light blue disc", "DET ADJ ADJ NOUN"),
    ("a tree left of the house", "DET NOUN ADV ADP DET NOUN"),
    ("a parking lot", "DET NOUN NOUN"),
    ("two zebras graze in a grassy field", "NUM NOUN VERB ADP DET ADJ NOUN"),
    ("a man crosses the street", "DET NOUN VERB DET NOUN"),
    ("a broken window", "DET ADJ NOUN"),
    ("a hill covered in snow", "DET NOUN VERB ADP NOUN"),
    ("a silver car next to a gold ring", "DET ADJ NOUN ADV ADP DET ADJ NOUN"),
]


@pytest.mark.parametrize("lower", [False, True], ids=["written", "lower-cased"])
@pytest.mark.parametrize(("text", "expected"), SCENES)
def test_captions_of_scenes(compo_en: Language, text: str, expected: str, lower: bool) -> None:
    doc = compo_en(text.lower() if lower else text)
    # Whether "is" is a copula or a verb of being there is open under UD: either is no category
    # that shapes share.
    be = next((token.pos_ for token in doc if token.lower_ == "is"), "")
    assert be in ("", "AUX", "VERB")
    assert [token.pos_ for token in doc] == expected.format(be=be).split()


@pytest.mark.parametrize(("text", "expected"), WORDS)
def test_words_whose_neighbours_decide(compo_en: Language, text: str, expected: str) -> None:
    assert [token.pos_ for token in compo_en(text)] == expected.split()


def test_the_shipped_rules_are_those_of_the_lexicon(compo_en: Language) -> None:
    made = spacy.blank("en")
    made.add_pipe("morphologizer")
    add_rules(made, load_lexicon().entries)
    for name in ("lexicon", "neighbours"):
        assert compo_en.get_pipe(name).patterns == made.get_pipe(name).patterns
