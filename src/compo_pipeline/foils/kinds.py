"""Drafts of items: a caption, and one that the generators of hard negatives make false.

Every draft exchanges one expression for another one. Captions and foils of a draft have as many
words, but where one of the two expressions has more (in front of, behind).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import combinations
from typing import NamedTuple

from compo_pipeline.foils import evidence as said
from compo_pipeline.foils.evidence import Evidence
from compo_pipeline.foils.settings import Kind
from compo_pipeline.language import sense
from compo_pipeline.language.alternatives import lexicon_alternatives
from compo_pipeline.language.clauses import POSSESSIVES
from compo_pipeline.language.editing import (
    NOUNS,
    Edit,
    apply_edits,
    exchange_edits,
    fold_case,
    is_movable,
    noun_phrases_of,
    replacement_edits,
    token_text,
)
from compo_pipeline.language.lexicon import load_lexicon, regular_form
from compo_pipeline.language.replacements import Replacement, shipped_replacer
from compo_pipeline.language.scene_graph import Category, Element, fine_tag, kinds, scene_graph
from compo_pipeline.language.units import Unit, sub_parse, subject_object_exchange, units
from compo_pipeline.storage.records import Parse


class Draft(NamedTuple):
    """A caption of an image and a foil of it.

    Attributes:
        kind: what the foil has changed.
        sentence: which of the image's captions it is made of.
        words: the expression of the caption and that of the foil; where two are exchanged, the
            first and the second of the caption.
        key: by which drafts are each other's inverse, as of words that are replaced; of exchanged
            objects what kinds of nouns they are, as people and animals come first in most captions.
        parse: what is edited: that caption, or a part of it.
        true: edits that make the item's caption of it; none leaves it as it is.
        false: edits that make the foil.
        lead: text before both.
        problem: why the foil may be true, or empty.
    """

    kind: Kind
    sentence: int
    words: tuple[str, str]
    key: tuple[str, str]
    parse: Parse
    true: Sequence[Edit]
    false: Sequence[Edit]
    lead: str = ""
    problem: str = ""

    @property
    def texts(self) -> tuple[str, str]:
        """The caption and the foil."""
        pair = (apply_edits(self.parse, edits)[0] for edits in (self.true, self.false))
        if self.lead:
            caption, foil = (f"{self.lead}{text.lower()}" for text in pair)
        else:
            caption, foil = pair
        return caption, foil


NAMED = "another caption names it"
SYNONYM = "a word of the captions may mean it"
STATED = "another caption states it"
DISAGREE = "the captions disagree"
SAME = "it is a caption of the image"


def drafts(parses: Sequence[Parse], wanted: Sequence[Kind]) -> Iterator[Draft]:
    """The drafts of an image, those with a problem included.

    Args:
        parses: of its captions, all different.
        wanted: what to change.
    """
    evidence = Evidence(parses)
    for number, parse in enumerate(parses):
        for kind in wanted:
            for draft in _MAKERS[kind](parse, evidence, parses):
                yield _mark_true_foil(draft._replace(sentence=number), evidence)


def _mark_true_foil(draft: Draft, evidence: Evidence) -> Draft:
    """The draft, with the problem `SAME` if its foil is itself a caption of the image."""
    same = (
        not draft.problem
        and evidence.says(draft.words[1])
        and (evidence.is_caption(draft.texts[1]))
    )
    return draft._replace(problem=SAME) if same else draft


def _replaced(
    kind: Kind, category: Category
) -> Callable[[Parse, Evidence, Sequence[Parse]], Iterator[Draft]]:
    """Maker of drafts with an element of a category replaced."""

    def make(parse: Parse, evidence: Evidence, parses: Sequence[Parse]) -> Iterator[Draft]:
        for element in scene_graph(parse).elements:
            if element.category == category:
                for one in shipped_replacer().all_replacements(parse, element):
                    words, problem = _folded(one.words), _problem(parse, element, one, evidence)
                    yield Draft(kind, 0, words, words, parse, (), one.edits, problem=problem)

    return make


def _problem(parse: Parse, element: Element, one: Replacement, evidence: Evidence) -> str:
    """Why a replacement may be true of the image."""
    word = one.words[1]
    if element.upos == "ADP":
        noun = said.object_of(parse, element.end)
        own = {said.name(word, element.upos, element.tag)}
        related = noun is not None and evidence.relates(own, said.noun_names(parse, noun))
        return STATED if related else ""
    return _named(word, element, evidence)


def _named(word: str, element: Element, evidence: Evidence) -> str:
    """Whether the captions have a word that an element gets, or one that may mean it."""
    if evidence.says(word):
        return NAMED
    return SYNONYM if evidence.names(word, element.upos, element.tag) else ""


def _swapped_attributes(
    parse: Parse, evidence: Evidence, parses: Sequence[Parse]
) -> Iterator[Draft]:
    """Two attributes that exclude one another, of two nouns."""
    elements = [one for one in scene_graph(parse).elements if one.category == "attribute"]
    for one, other in combinations(sorted(elements), 2):
        places = (one.start, one.end), (other.start, other.end)
        words = (fold_case(token_text(parse, *places[0])), fold_case(token_text(parse, *places[1])))
        nouns = [said.noun_of(parse, start) for start, _ in places]
        if (
            words[0] == words[1]
            or None in nouns
            or nouns[0] == nouns[1]
            or not all(is_movable(parse, *place) for place in places)
            or not (_excludes(one, *words) or _excludes(other, *reversed(words)))
            or not sense.can_exchange(parse, *places)
        ):
            continue
        first, second = (said.noun_names(parse, noun) for noun in nouns if noun is not None)
        bound = evidence.binds({said.name(words[1], other.upos, other.tag)}, first) or (
            evidence.binds({said.name(words[0], one.upos, one.tag)}, second)
        )
        edits, problem = exchange_edits(parse, *places), STATED if bound else ""
        yield Draft("swapped_attributes", 0, words, ("", ""), parse, (), edits, problem=problem)


def _excludes(element: Element, own: str, other: str) -> bool:
    """Whether another word cannot be true where an element's own is."""
    found = lexicon_alternatives(own, element.upos, element.tag, element.conditions)
    return other in {one.word for one in found}


def _swapped_objects(parse: Parse, evidence: Evidence, parses: Sequence[Parse]) -> Iterator[Draft]:
    """Subject and object of a relation."""
    for unit in units(parse):
        if edits := subject_object_exchange(parse, unit):
            subject, _, other = unit.parts
            ends = (said.noun_names(parse, end - 1) for _, end in (other, subject))
            words = fold_case(token_text(parse, *subject)), fold_case(token_text(parse, *other))
            key = _noun_kind(parse, subject[1] - 1), _noun_kind(parse, other[1] - 1)
            problem = STATED if evidence.states(*ends) else ""
            yield Draft("swapped_objects", 0, words, key, parse, (), edits, problem=problem)


def _noun_kind(parse: Parse, place: int) -> str:
    """What a noun names (`scene_graph.kinds`): the first of its kinds by name."""
    noun = fold_case(parse.words[place]), "NOUN", fine_tag(parse, place)
    return min(kinds(load_lexicon().find_lemma(*noun)), default="")


def _added_attribute(parse: Parse, evidence: Evidence, parses: Sequence[Parse]) -> Iterator[Draft]:
    """An attribute that another caption has of a noun, added to a caption without it; in the foil
    one that excludes it.
    """
    for place, noun in _bare_nouns(parse):
        if evidence.says(regular_form(noun, "NNS")):
            continue
        for other, element in _attributes_of(noun, parses):
            own = fold_case(token_text(other, element.start, element.end))
            if own in map(fold_case, parse.words):
                continue
            found = lexicon_alternatives(own, element.upos, element.tag, element.conditions)
            others = [one.word for one in found if " " not in one.word]
            disagree = evidence.binds(
                {said.name(word, element.upos, element.tag) for word in others}, {noun}
            )
            for word in others:
                true, false = (
                    replacement_edits(parse, (place, place + 1), f"{each} {noun}")
                    for each in (own, word)
                )
                problem = DISAGREE if disagree else _named(word, element, evidence)
                words = own, word
                yield Draft("added_attribute", 0, words, words, parse, true, false, "", problem)


def _bare_nouns(parse: Parse) -> Iterator[tuple[int, str]]:
    """Nouns in the singular with a determiner and nothing else, each the only one of its name."""
    words = [fold_case(word) for word in parse.words]
    for start, end in noun_phrases_of(parse):
        plain = end - start == 2 and parse.upos[start] == "DET" and parse.tags[end - 1] == "NN"
        if plain and words.count(words[end - 1]) == 1 and is_movable(parse, end - 1, end):
            yield end - 1, words[end - 1]


def _attributes_of(noun: str, parses: Sequence[Parse]) -> Iterator[tuple[Parse, Element]]:
    """Adjectives right before a noun that stands once in its caption, each once."""
    known = set()
    for parse in parses:
        words = [fold_case(word) for word in parse.words]
        if words.count(noun) != 1:
            continue
        for element in scene_graph(parse).elements:
            key = fold_case(token_text(parse, element.start, element.end))
            adjective = element.category == "attribute" and element.upos == "ADJ"
            if adjective and words[element.end : element.end + 1] == [noun] and key not in known:
                following = parse.upos[element.end + 1 : element.end + 2]
                if not NOUNS.intersection(following):
                    known.add(key)
                    yield parse, element


def _half_truth(parse: Parse, evidence: Evidence, parses: Sequence[Parse]) -> Iterator[Draft]:
    """An entity with another one, or a relation, of which a detail is replaced."""
    found = units(parse)
    elements = scene_graph(parse).elements
    entities = [unit for unit in found if unit.category == "entity"]
    for unit in found:
        start, end = unit.phrase
        if POSSESSIVES & {fold_case(word) for word in parse.words[start:end]}:
            continue
        lead, first = "", start
        if unit.category == "relation":
            # The whole of it is written by its parts: the subject, then what is edited.
            first = unit.parts[1][0]
            lead = f"{token_text(parse, *unit.parts[0]).lower()} "
        else:
            anchor = next((one for one in entities if one != unit), None)
            if anchor is None:
                continue
            lead = f"{token_text(parse, *anchor.phrase).lower()} and "
        for element in elements:
            if first <= element.start and element.end <= end:
                yield from _details(parse, unit, element, lead, first, evidence)


def _details(
    parse: Parse, unit: Unit, element: Element, lead: str, first: int, evidence: Evidence
) -> Iterator[Draft]:
    """Half-truths with an element of a unit replaced."""
    part = sub_parse(parse, first, unit.phrase[1])
    for one in shipped_replacer().all_replacements(parse, element):
        edits = [Edit(a - first, b - first, text) for a, b, text in one.edits]
        if edits[0].start >= 0:
            problem = _problem(parse, element, one, evidence)
            words = _folded(one.words)
            yield Draft("half_truth", 0, words, words, part, (), edits, lead, problem)


def _folded(words: tuple[str, str]) -> tuple[str, str]:
    """Two words in lower case."""
    return fold_case(words[0]), fold_case(words[1])


_MAKERS: Mapping[Kind, Callable[[Parse, Evidence, Sequence[Parse]], Iterator[Draft]]] = {
    "swapped_attributes": _swapped_attributes,
    "swapped_objects": _swapped_objects,
    "replaced_attribute": _replaced("replaced_attribute", "attribute"),
    "replaced_object": _replaced("replaced_object", "entity"),
    "replaced_relation": _replaced("replaced_relation", "relation"),
    "added_attribute": _added_attribute,
    "half_truth": _half_truth,
}
