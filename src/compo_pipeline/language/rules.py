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
    """A pattern of tokens, the attributes that one of them gets, and which one."""

    pattern: list[Attributes]
    attributes: dict[str, str]
    place: int


def add_rules(nlp: Language, entries: Iterable[Entry]) -> None:
    """Put two attribute_rulers after the taggers: certain words first, then neighbours.

    The second one reads what the first one wrote.
    """
    entries = list(entries)
    certain: Any = nlp.add_pipe("attribute_ruler", name="lexicon", after="morphologizer")
    for attributes, words in _certain(entries):
        certain.add([[_word(*words)]], attributes)
    context: Any = nlp.add_pipe("attribute_ruler", name="neighbours", after="lexicon")
    for rule in (*_CONTEXT_RULES, *_open_words(entries)):
        context.add([rule.pattern], rule.attributes, index=rule.place)


def _certain(entries: list[Entry]) -> Iterator[tuple[dict[str, str], list[str]]]:
    """Words by what they are. The base form of verbs has several fine tags: it keeps its own."""
    groups: dict[tuple[str, str], list[str]] = defaultdict(list)
    for entry in entries:
        if entry.certain:
            groups[entry.upos, entry.tag].append(entry.word)
    for (upos, tag), words in sorted(groups.items()):
        yield ({"POS": upos} if tag == "VB" else {"POS": upos, "TAG": tag}), sorted(words)


def _word(*words: str) -> Attributes:
    return {"LOWER": {"IN": list(words)}}


def _pos(*tags: str) -> Attributes:
    return {"POS": {"IN": list(tags)}}


_NOUN, _ADJECTIVE, _ADVERB = (
    {"POS": "NOUN", "TAG": "NN"},
    {"POS": "ADJ", "TAG": "JJ"},
    {"POS": "ADV", "TAG": "RB"},
)
_OWNERS = _word("a", "an", "the", "his", "her", "its", "their", "another", "each", "every", "no")
_SIDES = _word("left", "right")
_BE = _word("is", "are", "was", "were")

_CONTEXT_RULES = (
    # Compounds whose first half looks like a participle.
    Rule([_word("living", "dining", "waiting"), _word("room", "rooms", "area")], _NOUN, 0),
    Rule([_word("dining"), _word("table", "tables", "chair", "chairs", "car")], _NOUN, 0),
    Rule([_word("swimming"), _word("pool", "pools", "trunks", "suit")], _NOUN, 0),
    Rule([_word("cutting", "chopping"), _word("board", "boards")], _NOUN, 0),
    Rule([_word("baking", "cooking", "frying"), _word("pan", "pans", "pot", "sheet")], _NOUN, 0),
    Rule([_word("washing", "sewing", "vending"), _word("machine", "machines")], _NOUN, 0),
    Rule(
        [_word("parking"), _word("lot", "lots", "meter", "meters", "garage", "space", "spaces")],
        _NOUN,
        0,
    ),
    Rule([_word("stop", "traffic"), _word("sign", "signs", "light", "lights")], _NOUN, 0),
    # Colours that are things too: adjectives before what they colour and after a copula.
    Rule([_OWNERS, _word("orange")], _NOUN, 1),
    Rule([_word("orange", "silver", "gold"), _pos("NOUN", "PROPN", "ADJ")], _ADJECTIVE, 0),
    Rule([_BE, _word("orange", "silver", "gold")], _ADJECTIVE, 1),
    Rule([_word("light", "dark", "bright", "pale"), _pos("ADJ")], _ADJECTIVE, 0),
    # Sides: "the left of", "left of", "the left side".
    Rule([_pos("NOUN", "AUX", "VERB"), _SIDES, _word("of")], _ADVERB, 1),
    Rule([_word("the", "its", "his", "her", "their", "far"), _SIDES], _NOUN, 1),
    Rule([_SIDES, _pos("NOUN", "PROPN")], _ADJECTIVE, 0),
    Rule([_word("next", "close"), _word("to")], {"POS": "ADP", "TAG": "IN"}, 1),
    # Drawn shapes that prose knows as other words.
    Rule([_pos("DET", "ADJ", "NUM"), _word("plus")], _NOUN, 1),
    # "has" and "have" before what is had.
    Rule([_word("has", "have", "had"), _pos("DET", "NUM", "ADJ", "NOUN")], {"POS": "VERB"}, 0),
)


def _open_words(entries: list[Entry]) -> Iterator[Rule]:
    """Rules for words of several readings: things and acts, acts and states."""
    readings: dict[str, set[tuple[str, str]]] = defaultdict(set)
    for entry in entries:
        readings[entry.word].add((entry.upos, entry.tag))
    uncertain = sorted(readings.keys() - {entry.word for entry in entries if entry.certain})

    def reading(*wanted: tuple[str, str]) -> Attributes:
        return _word(*(word for word in uncertain if readings[word] == set(wanted)))

    def may_be(upos: str, tag: str) -> Attributes:
        return _word(*(word for word in uncertain if (upos, tag) in readings[word]))

    adjectives: Attributes = {"POS": "ADJ", "OP": "*"}
    singular = reading(("NOUN", "NN"), ("VERB", "VB"))
    plural = reading(("NOUN", "NNS"), ("VERB", "VBZ"))
    # "a red slide", "two big waves"; "a man parks the car", "people board a train".
    yield Rule([_OWNERS, adjectives, singular], _NOUN, -1)
    yield Rule([_pos("NUM"), adjectives, plural], {"POS": "NOUN", "TAG": "NNS"}, -1)
    yield Rule([{"TAG": "NN"}, plural, _OWNERS], {"POS": "VERB", "TAG": "VBZ"}, 1)
    yield Rule([{"TAG": "NNS"}, singular, _OWNERS], {"POS": "VERB", "TAG": "VBP"}, 1)
    # "the open door"; "covered in snow".
    yield Rule([_OWNERS, may_be("ADJ", "JJ"), _pos("NOUN")], _ADJECTIVE, 1)
    yield Rule(
        [may_be("VERB", "VBN"), _word("with", "in", "by", "from")],
        {"POS": "VERB", "TAG": "VBN"},
        0,
    )
