"""Rules that correct the trained taggers: words of the lexicon, and words in context.

Captions are full of words that a general treebank never saw; a small model then guesses with
confidence. All rules are patterns of spaCy's attribute_ruler, which travels inside the model.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from compo_pipeline.language.lexicon import Entry

if TYPE_CHECKING:
    from spacy.language import Language

Attributes = dict[str, Any]


class Rule(NamedTuple):
    """A rule of spaCy's attribute_ruler: pattern, new attributes, index of the token to change."""

    pattern: list[Attributes]
    attributes: dict[str, str]
    place: int


def add_rules(nlp: Language, entries: Iterable[Entry]) -> None:
    """Add two attribute_rulers to a spaCy pipeline: for unambiguous words and for words in context.

    The second one reads what the first one wrote.
    """
    entries = list(entries)
    certain: Any = nlp.add_pipe("attribute_ruler", name="lexicon", after="morphologizer")
    for attributes, words in _unambiguous_words(entries):
        certain.add([[_words(*words)]], attributes)
    context: Any = nlp.add_pipe("attribute_ruler", name="neighbours", after="lexicon")
    for rule in (*_CONTEXT_RULES, *_ambiguous_word_rules(entries)):
        context.add([rule.pattern], rule.attributes, index=rule.place)


def _unambiguous_words(entries: list[Entry]) -> Iterator[tuple[dict[str, str], list[str]]]:
    """Words with one part of speech only, in groups with the tags to set for each group.

    Base forms of verbs keep their fine tag.
    """
    groups: dict[tuple[str, str], list[str]] = defaultdict(list)
    for entry in entries:
        if entry.certain:
            groups[entry.upos, entry.tag].append(entry.word)
    for (upos, tag), words in sorted(groups.items()):
        yield ({"POS": upos} if tag == "VB" else {"POS": upos, "TAG": tag}), sorted(words)


def _words(*words: str) -> Attributes:
    """Token pattern (attribute_ruler) that matches any of these words, without regard to case."""
    return {"LOWER": {"IN": list(words)}}


def _upos(*tags: str) -> Attributes:
    """Token pattern (attribute_ruler) that matches any of these parts of speech."""
    return {"POS": {"IN": list(tags)}}


_NOUN, _ADJECTIVE, _ADVERB = (
    {"POS": "NOUN", "TAG": "NN"},
    {"POS": "ADJ", "TAG": "JJ"},
    {"POS": "ADV", "TAG": "RB"},
)
_OWNERS = _words("a", "an", "the", "his", "her", "its", "their", "another", "each", "every", "no")
_SIDES = _words("left", "right")
_BE = _words("is", "are", "was", "were")

_CONTEXT_RULES = (
    # Compounds whose first half looks like a participle.
    Rule([_words("living", "dining", "waiting"), _words("room", "rooms", "area")], _NOUN, 0),
    Rule([_words("dining"), _words("table", "tables", "chair", "chairs", "car")], _NOUN, 0),
    Rule([_words("swimming"), _words("pool", "pools", "trunks", "suit")], _NOUN, 0),
    Rule([_words("cutting", "chopping"), _words("board", "boards")], _NOUN, 0),
    Rule(
        [_words("baking", "cooking", "frying"), _words("pan", "pans", "pot", "sheet")],
        _NOUN,
        0,
    ),
    Rule([_words("washing", "sewing", "vending"), _words("machine", "machines")], _NOUN, 0),
    Rule(
        [
            _words("parking"),
            _words("lot", "lots", "meter", "meters", "garage", "space", "spaces"),
        ],
        _NOUN,
        0,
    ),
    Rule([_words("stop", "traffic"), _words("sign", "signs", "light", "lights")], _NOUN, 0),
    # Colours that are things too: adjectives before what they colour and after a copula.
    Rule([_OWNERS, _words("orange")], _NOUN, 1),
    Rule([_words("orange", "silver", "gold"), _upos("NOUN", "PROPN", "ADJ")], _ADJECTIVE, 0),
    Rule([_BE, _words("orange", "silver", "gold")], _ADJECTIVE, 1),
    Rule([_words("light", "dark", "bright", "pale"), _upos("ADJ")], _ADJECTIVE, 0),
    # Sides: "the left of", "left of", "the left side".
    Rule([_upos("NOUN", "AUX", "VERB"), _SIDES, _words("of")], _ADVERB, 1),
    Rule([_words("the", "its", "his", "her", "their", "far"), _SIDES], _NOUN, 1),
    Rule([_SIDES, _upos("NOUN", "PROPN")], _ADJECTIVE, 0),
    Rule([_words("next", "close"), _words("to")], {"POS": "ADP", "TAG": "IN"}, 1),
    # Drawn shapes that prose knows as other words.
    Rule([_upos("DET", "ADJ", "NUM"), _words("plus")], _NOUN, 1),
    # "has" and "have" before what is had.
    Rule([_words("has", "have", "had"), _upos("DET", "NUM", "ADJ", "NOUN")], {"POS": "VERB"}, 0),
)


def _ambiguous_word_rules(entries: list[Entry]) -> Iterator[Rule]:
    """Rules that tag ambiguous words by the words around them: "a red slide", "he slides"."""
    readings: dict[str, set[tuple[str, str]]] = defaultdict(set)
    for entry in entries:
        readings[entry.word].add((entry.upos, entry.tag))
    uncertain = sorted(readings.keys() - {entry.word for entry in entries if entry.certain})

    def reading(*wanted: tuple[str, str]) -> Attributes:
        return _words(*(word for word in uncertain if readings[word] == set(wanted)))

    def may_be(upos: str, tag: str) -> Attributes:
        return _words(*(word for word in uncertain if (upos, tag) in readings[word]))

    adjectives: Attributes = {"POS": "ADJ", "OP": "*"}
    singular = reading(("NOUN", "NN"), ("VERB", "VB"))
    plural = reading(("NOUN", "NNS"), ("VERB", "VBZ"))
    # "a red slide", "two big waves"; "a man parks the car", "people board a train".
    yield Rule([_OWNERS, adjectives, singular], _NOUN, -1)
    yield Rule([_upos("NUM"), adjectives, plural], {"POS": "NOUN", "TAG": "NNS"}, -1)
    yield Rule([{"TAG": "NN"}, plural, _OWNERS], {"POS": "VERB", "TAG": "VBZ"}, 1)
    yield Rule([{"TAG": "NNS"}, singular, _OWNERS], {"POS": "VERB", "TAG": "VBP"}, 1)
    # "the open door"; "covered in snow".
    yield Rule([_OWNERS, may_be("ADJ", "JJ"), _upos("NOUN")], _ADJECTIVE, 1)
    yield Rule(
        [may_be("VERB", "VBN"), _words("with", "in", "by", "from")],
        {"POS": "VERB", "TAG": "VBN"},
        0,
    )
