"""Scene graphs of captions: entities, their attributes, and relations between them.

Source: "FSC-CLIP", App. A.1. Read from the noun phrases and tags of a parse: entities are heads of
noun phrases, attributes their modifiers (and adjectives after "is"), relations the prepositions
and verbs with an entity on either side.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, NamedTuple

from compo_pipeline.core.records import Parse
from compo_pipeline.language.editing import NOUNS, noun_phrases_of, token_text
from compo_pipeline.language.lexicon import Lemma, load_lexicon

Category = Literal["entity", "attribute", "relation"]

_PREPOSITIONS = frozenset({"ADP", "ADV", "SCONJ"})
# How a tagger may tag what the lexicon lists under another tag.
_TAGS = {"NNP": "NN", "NNPS": "NNS", "VBP": "VB"}
_COPULAS = frozenset({"is", "are", "was", "were", "looks", "look"})
# Groups of nouns that precede nouns: "a wood table", "a kitchen chair".
MODIFYING = frozenset({"material", "fabric", "room.kind"})
# "covered with snow", "filled by water": the preposition belongs to the participle.
_PARTICIPLE_PREPOSITIONS = frozenset({"with", "by", "in", "of", "as"})
# Kinds of nouns by group, or by the first part of its name.
_KINDS = {
    "person": ("animate", "grown"),
    "person.child": ("animate",),
    "person.age": ("animate",),
    "animal": ("animate", "grown"),
    "animal.toy": ("thing",),
    "place": ("place",),
    "place.slope": ("slope",),
    "building": ("place", "room"),
    "home.room": ("place", "room"),
    "room": ("place", "room"),
    "nature.ground": ("place",),
    "nature.weather": ("air",),
    "nature.light": ("air",),
    "nature.season": ("air",),
    "nature.time": ("air",),
    "clothes": ("worn",),
}
# Verbs that take "at" for their aim: "looking at".
_AIMING = frozenset(
    "look stare gaze glance peer point smile wave laugh bark aim throw swing work arrive".split()
)
PRONOUNS = {
    **dict.fromkeys(("he", "him", "his", "himself"), "he"),
    **dict.fromkeys(("she", "her", "hers", "herself"), "she"),
}
# Before these words "with" cannot become "without".
_COUNTED = frozenset({"some", "several", "lots", "many", "few", "both", "all", "various", "no"})
# Determiners of one thing.
_SINGLE = frozenset({"a", "an", "one", "another", "each", "every", "this", "that"})


class Element(NamedTuple):
    """An entity, attribute or relation of a caption that another word may replace.

    Attributes:
        category: entity, attribute or relation.
        start: index of the first word.
        end: the word behind it.
        upos: the part of speech to look it up under.
        tag: fine tag, as in the lexicon.
        conditions: context that the element needs: the kinds of its noun. For verbs `transitive`,
            or `intransitive` and the kinds of their subject; `before` for nouns before a noun; `he`
            and `she` if the caption has such a pronoun; `bare` for prepositions before a phrase
            that counts nothing.
    """

    category: Category
    start: int
    end: int
    upos: str
    tag: str
    conditions: frozenset[str]


@dataclass(frozen=True, slots=True)
class SceneGraph:
    """Replaceable elements of a caption, and the number of all its entities."""

    entities: int
    elements: tuple[Element, ...]


@dataclass(frozen=True, slots=True)
class _Phrase:
    """A noun phrase: token span, index and lemma of its head noun, kinds of thing that it names."""

    start: int
    end: int
    head: int
    lemma: Lemma | None
    kinds: frozenset[str]


def kinds(lemma: Lemma | None) -> frozenset[str]:
    """Kinds of thing that a noun names, such as animate or place, by its groups in the lexicon.

    They are animate, grown (animate, of no age), place, room (a place with walls), slope, worn, air
    (weather, light, times) or thing; nothing for a noun in no group.
    """
    if lemma is None:
        return frozenset()
    return frozenset(kind for group in lemma.groups for kind in _kinds_of_group(group))


def _kinds_of_group(group: str) -> tuple[str, ...]:
    """Kinds of thing (such as animate) that a lexicon group of nouns names, else `thing`."""
    return _KINDS.get(group) or _KINDS.get(group.partition(".")[0], ("thing",))


def scene_graph(parse: Parse) -> SceneGraph:
    """Scene graph of a parsed caption, with its elements by category, each in text order."""
    words = [word.lower() for word in parse.words]
    found = list(_prepositions(parse, words))
    covered = {index for start, end in found if end - start > 1 for index in range(start, end)}
    phrases = list(_phrases(parse, covered))
    elements = [
        *_entities(parse, phrases),
        *_attributes(parse, words, phrases),
        *_preposition_relations(parse, words, phrases, found),
        *_verb_relations(parse, phrases),
    ]
    return SceneGraph(len(phrases), tuple(elements))


def fine_tag(parse: Parse, index: int) -> str:
    """Fine tag of a word as the lexicon lists it: a proper noun has the tag of a common noun."""
    return _TAGS.get(parse.tags[index], parse.tags[index])


def _prepositions(parse: Parse, words: list[str]) -> Iterator[tuple[int, int]]:
    """Token spans of the lexicon's prepositions, the longest match first ("to the left of")."""
    lexicon, index = load_lexicon(), 0
    while index < len(words):
        end = index + 1
        longest = lexicon.longest_prepositions.get(words[index], 0)
        for length in range(min(longest, len(words) - index), 0, -1):
            known = (" ".join(words[index : index + length]), "ADP") in lexicon.lemmas
            if known and (length > 1 or parse.upos[index] in _PREPOSITIONS):
                end = index + length
                yield index, end
                break
        index = end


def _phrases(parse: Parse, covered: set[int]) -> Iterator[_Phrase]:
    """Noun phrases with their heads, except those inside a preposition ("to the left of")."""
    for start, end in noun_phrases_of(parse):
        if parse.upos[end - 1] not in NOUNS or covered & set(range(start, end)):
            continue
        for head in range(start, end):
            name = token_text(parse, head, end).lower()
            lemma = load_lexicon().find_lemma(name, "NOUN", fine_tag(parse, end - 1))
            if lemma:
                break
        yield _Phrase(start, end, head, lemma, kinds(lemma))


def _entities(parse: Parse, phrases: list[_Phrase]) -> Iterator[Element]:
    """Entities of a scene graph: head nouns, except of compounds ("baseball bat") and measures."""
    named = {PRONOUNS[word.lower()] for word in parse.words if word.lower() in PRONOUNS}
    for phrase in phrases:
        modified = NOUNS & set(parse.upos[phrase.start : phrase.head])
        tag = _number_tag(parse, phrase)
        if tag and not modified and not _is_measure(parse, phrase):
            yield Element("entity", phrase.head, phrase.end, "NOUN", tag, phrase.kinds | named)


def _is_measure(parse: Parse, phrase: _Phrase) -> bool:
    """Whether a noun is an amount or kind of another noun ("a bed of flowers").

    Kitchen things are none: the like of it can replace "cup" in "a cup of tea".
    """
    groups = phrase.lemma.groups if phrase.lemma else ()
    of = parse.words[phrase.end : phrase.end + 1] == ("of",)
    kitchen = any(group.startswith("kitchen.") for group in groups)
    return of and "thing" in phrase.kinds and not kitchen


def _number_tag(parse: Parse, phrase: _Phrase) -> str | None:
    """Number tag (NN, NNS) of a phrase's head, or None if the number is unclear or wrong."""
    tag = fine_tag(parse, phrase.end - 1)
    first = parse.words[phrase.start].lower()
    single = first in _SINGLE
    counted = parse.upos[phrase.start] == "NUM" and first != "one"
    if single or counted:
        return tag if single == (tag == "NN") else None
    forms = phrase.lemma.forms if phrase.lemma else {}
    return None if forms.get("NN") == forms.get("NNS", "") else tag


def _attributes(parse: Parse, words: list[str], phrases: list[_Phrase]) -> Iterator[Element]:
    """Attributes of a scene graph: modifiers before a noun, and adjectives after "is"."""
    for phrase in phrases:
        for index in range(phrase.start, phrase.head):
            upos, tag = parse.upos[index], parse.tags[index]
            counted = index > 0 and words[index] in _COUNTED and words[index - 1] == "a"
            behind_noun = index > 0 and parse.upos[index - 1] in NOUNS
            if counted or behind_noun or _begins_compound(parse, index):
                continue
            if upos in ("ADJ", "NUM"):
                tag = "CD" if upos == "NUM" else "JJ"
                yield Element("attribute", index, index + 1, upos, tag, phrase.kinds)
            elif upos == "NOUN" and index + 1 == phrase.head:
                lemma = load_lexicon().find_lemma(words[index], upos, tag)
                if lemma and MODIFYING.intersection(lemma.groups):
                    conditions = phrase.kinds | {"before"}
                    yield Element("attribute", index, index + 1, upos, tag, conditions)
    inside = _token_indices(phrases)
    for index in range(1, len(words)):
        if parse.upos[index] == "ADJ" and index not in inside and words[index - 1] in _COPULAS:
            before = [phrase for phrase in phrases if phrase.end <= index]
            if before:
                yield Element("attribute", index, index + 1, "ADJ", "JJ", before[-1].kinds)


def _begins_compound(parse: Parse, index: int) -> bool:
    """Whether a word begins a noun of two words in the lexicon: "hot" of "hot dog"."""
    pair = token_text(parse, index, index + 2).lower()
    return load_lexicon().find_lemma(pair, "NOUN", "NN") is not None


def _token_indices(phrases: list[_Phrase]) -> set[int]:
    """Indices of all tokens in these noun phrases."""
    return {index for phrase in phrases for index in range(phrase.start, phrase.end)}


def _preposition_relations(
    parse: Parse, words: list[str], phrases: list[_Phrase], found: list[tuple[int, int]]
) -> Iterator[Element]:
    """Relations of a scene graph that are prepositions between two entities."""
    starts = {phrase.start: phrase for phrase in phrases}
    for start, end in found:
        follows = starts.get(end)
        if follows and phrases[0].end <= start and not _belongs_to_word_before(parse, start, end):
            counted = words[end] in _COUNTED or parse.upos[end] == "NUM"
            bare = not counted and words[follows.end : follows.end + 1] != ["of"]
            conditions = follows.kinds | {"bare"} if bare else follows.kinds
            yield Element("relation", start, end, "ADP", "IN", conditions)


def _belongs_to_word_before(parse: Parse, start: int, end: int) -> bool:
    """Whether a preposition belongs to the word before it: "covered with", "looking at"."""
    word, before = parse.words[start].lower(), start - 1
    if parse.upos[before] == "ADP":
        return True
    if end - start > 1 or parse.upos[before] != "VERB":
        return False
    if word == "at":
        verb = load_lexicon().find_lemma(
            parse.words[before].lower(), "VERB", fine_tag(parse, before)
        )
        return verb is None or verb.name in _AIMING
    return word in _PARTICIPLE_PREPOSITIONS and parse.tags[before] == "VBN"


def _verb_relations(parse: Parse, phrases: list[_Phrase]) -> Iterator[Element]:
    """Relations of a scene graph that are verbs between two entities.

    They are transitive where an entity follows at once.
    """
    if not phrases:
        return
    starts, inside = {phrase.start for phrase in phrases}, _token_indices(phrases)
    for index, upos in enumerate(parse.upos):
        if upos != "VERB" or index in inside or not phrases[0].end <= index < phrases[-1].start:
            continue
        before = [phrase for phrase in phrases if phrase.end <= index]
        tag = fine_tag(parse, index)
        if index + 1 in starts:
            # "A plate holding a pizza" throws nothing.
            if any("animate" in one.kinds for one in before):
                yield Element("relation", index, index + 1, "VERB", tag, frozenset({"transitive"}))
        elif parse.upos[index - 1] != "AUX" or tag != "VBN":
            # Without an object it is no passive: "a dog crouched under a table".
            tag = "VBD" if tag == "VBN" else tag
            conditions = before[-1].kinds | {"intransitive"}
            yield Element("relation", index, index + 1, "VERB", tag, conditions)
