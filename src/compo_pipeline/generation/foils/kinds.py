"""Draft foil items: a caption, and a false version by the generators of hard negatives.

Every draft exchanges one expression for another one. Captions and foils of a draft have as many
words, but where one of the two expressions has more (in front of, behind).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property, partial
from itertools import combinations, product
from typing import NamedTuple

from compo_pipeline.core.records import Parse
from compo_pipeline.core.sentences import bare
from compo_pipeline.generation.foils.settings import Kind
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


class Draft(NamedTuple):
    """A possible foil and the true caption beside it, each given as edits of one parsed caption.

    Attributes:
        words: the expression of the caption and that of the foil; where two are exchanged, the
            first and the second of the caption.
        parse: parse of the edited text: a caption of the image, or a part of it.
        false: edits that make the foil.
        problem: why the foil may be true, or empty.
        true: edits that make the item's caption; none leaves it as it is.
        lead: text before both.
        names: names that identify inverse drafts, if it is not the words that do so. For exchanged
            objects they are kinds of nouns, because people and animals come first in most captions.
        kind: kind of the change.
        sentence: index of the caption that the foil is made of.
    """

    words: tuple[str, str]
    parse: Parse
    false: Sequence[Edit]
    problem: str
    true: Sequence[Edit] = ()
    lead: str = ""
    names: tuple[str, str] | None = None
    kind: Kind = "replaced_object"
    sentence: int = 0

    @property
    def key(self) -> tuple[str, str]:
        """What the draft exchanges: a draft of the reversed key is its inverse."""
        return self.names or self.words

    @property
    def texts(self) -> tuple[str, str]:
        """Texts of the caption and of the foil."""
        caption, foil = (apply_edits(self.parse, edits) for edits in (self.true, self.false))
        if self.lead:
            return f"{self.lead}{caption.lower()}", f"{self.lead}{foil.lower()}"
        return caption, foil


NAMED = "another caption names it"
SYNONYM = "a word of the captions may mean it"
STATED = "another caption states it"
DISAGREE = "the captions disagree"
SAME = "it is a caption of the image"


def drafts(parses: Sequence[Parse], wanted: Sequence[Kind]) -> Iterator[Draft]:
    """All possible foils of an image's captions, including those that may be true.

    Args:
        parses: parses of its captions, all different.
        wanted: kinds to make.
    """
    evidence = Evidence(parses)
    for number, parse in enumerate(parses):
        for kind in wanted:
            for draft in _MAKERS[kind](parse, evidence):
                same = (
                    not draft.problem
                    and evidence.contains(draft.words[1])
                    and evidence.is_caption(draft.texts[1])
                )
                problem = SAME if same else draft.problem
                yield draft._replace(kind=kind, sentence=number, problem=problem)


def _replacement_drafts(category: Category, parse: Parse, evidence: Evidence) -> Iterator[Draft]:
    """Drafts of foils with one scene-graph element of a category replaced."""
    for element in scene_graph(parse).elements:
        if element.category == category:
            for one in shipped_replacer().all_replacements(parse, element):
                problem = _replacement_problem(parse, element, one, evidence)
                yield Draft(_fold_pair(one.words), parse, one.edits, problem)


def _replacement_problem(
    parse: Parse, element: Element, one: Replacement, evidence: Evidence
) -> str:
    """Reason why a foil with this replacement may be true of the image, empty if none is known."""
    word = one.words[1]
    if element.upos == "ADP":
        noun = noun_of_phrase_at(parse, element.end)
        own = {lemma_name(word, element.upos, element.tag)}
        stated = noun is not None and evidence.states("relation", own, noun_lemmas(parse, noun))
        return STATED if stated else ""
    return _word_problem(word, element, evidence)


def _word_problem(word: str, element: Element, evidence: Evidence) -> str:
    """Reason why a new word may be true of the image, by the captions' words, empty if none."""
    if evidence.contains(word):
        return NAMED
    return SYNONYM if evidence.may_name(word, element.upos, element.tag) else ""


def _swapped_attribute_drafts(parse: Parse, evidence: Evidence) -> Iterator[Draft]:
    """Drafts of foils with the attributes of two nouns exchanged, if these exclude each other."""
    elements = [one for one in scene_graph(parse).elements if one.category == "attribute"]
    for one, other in combinations(sorted(elements), 2):
        places = (one.start, one.end), (other.start, other.end)
        words = (fold_case(token_text(parse, *places[0])), fold_case(token_text(parse, *places[1])))
        nouns = [modified_noun(parse, start) for start, _ in places]
        if (
            words[0] == words[1]
            or None in nouns
            or nouns[0] == nouns[1]
            or not all(is_movable(parse, *place) for place in places)
            or not (_rules_out(one, *words) or _rules_out(other, *reversed(words)))
            or not sense.can_exchange(parse, *places)
        ):
            continue
        first, second = (noun_lemmas(parse, noun) for noun in nouns if noun is not None)
        new = {lemma_name(words[1], other.upos, other.tag)}
        old = {lemma_name(words[0], one.upos, one.tag)}
        bound = evidence.states("attribute", new, first) or evidence.states(
            "attribute", old, second
        )
        edits, problem = exchange_edits(parse, *places), STATED if bound else ""
        yield Draft(words, parse, edits, problem, names=("", ""))


def _rules_out(element: Element, own: str, other: str) -> bool:
    """Whether one word excludes another word for the same thing, by the lexicon's alternatives."""
    found = lexicon_alternatives(own, element.upos, element.tag, element.conditions)
    return other in {one.word for one in found}


def _swapped_object_drafts(parse: Parse, evidence: Evidence) -> Iterator[Draft]:
    """Drafts of foils with subject and object of a relation exchanged."""
    for unit in units(parse):
        if edits := subject_object_exchange(parse, unit):
            subject, _, other = unit.parts
            ends = (noun_lemmas(parse, end - 1) for _, end in (other, subject))
            words = fold_case(token_text(parse, *subject)), fold_case(token_text(parse, *other))
            key = _noun_kind(parse, subject[1] - 1), _noun_kind(parse, other[1] - 1)
            problem = STATED if evidence.states("entity", *ends) else ""
            yield Draft(words, parse, edits, problem, names=key)


def _noun_kind(parse: Parse, place: int) -> str:
    """Kind of thing that a noun names, such as animate: the first one in alphabetical order."""
    noun = fold_case(parse.words[place]), "NOUN", fine_tag(parse, place)
    return min(kinds(load_lexicon().find_lemma(*noun)), default="")


def _added_attribute_drafts(parse: Parse, evidence: Evidence) -> Iterator[Draft]:
    """Drafts with an attribute added to a noun: a stated one, and an excluded one in the foil.

    Another caption states it of that noun.
    """
    for place, noun in _bare_nouns(parse):
        if evidence.contains(regular_form(noun, "NNS")):
            continue
        for other, element in _stated_adjectives(noun, evidence.parses):
            own = fold_case(token_text(other, element.start, element.end))
            if own in map(fold_case, parse.words):
                continue
            found = lexicon_alternatives(own, element.upos, element.tag, element.conditions)
            others = [one.word for one in found if " " not in one.word]
            lemmas = {lemma_name(word, element.upos, element.tag) for word in others}
            disagree = evidence.states("attribute", lemmas, {noun})
            for word in others:
                true, false = (
                    replacement_edits(parse, (place, place + 1), f"{each} {noun}")
                    for each in (own, word)
                )
                problem = DISAGREE if disagree else _word_problem(word, element, evidence)
                yield Draft((own, word), parse, false, problem, true)


def _bare_nouns(parse: Parse) -> Iterator[tuple[int, str]]:
    """Yield index and text of singular nouns with a determiner only, each once in the caption."""
    words = [fold_case(word) for word in parse.words]
    for start, end in noun_phrases_of(parse):
        plain = end - start == 2 and parse.upos[start] == "DET" and parse.tags[end - 1] == "NN"
        if plain and words.count(words[end - 1]) == 1 and is_movable(parse, end - 1, end):
            yield end - 1, words[end - 1]


def _stated_adjectives(noun: str, parses: Sequence[Parse]) -> Iterator[tuple[Parse, Element]]:
    """Yield each adjective directly before a given noun in the captions, once, with its parse.

    The noun stands once in its caption.
    """
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


def _half_truth_drafts(parse: Parse, evidence: Evidence) -> Iterator[Draft]:
    """Drafts of half-truths: an entity or relation of the caption with one detail replaced.

    An entity comes after another entity.
    """
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
                yield from _detail_drafts(parse, unit, element, lead, first, evidence)


def _detail_drafts(
    parse: Parse, unit: Unit, element: Element, lead: str, first: int, evidence: Evidence
) -> Iterator[Draft]:
    """Drafts of half-truths with one element of an entity or relation replaced."""
    part = sub_parse(parse, first, unit.phrase[1])
    for one in shipped_replacer().all_replacements(parse, element):
        edits = [Edit(a - first, b - first, text) for a, b, text in one.edits]
        if edits[0].start >= 0:
            problem = _replacement_problem(parse, element, one, evidence)
            yield Draft(_fold_pair(one.words), part, edits, problem, lead=lead)


def _fold_pair(words: tuple[str, str]) -> tuple[str, str]:
    """Case-fold a pair of words."""
    return fold_case(words[0]), fold_case(words[1])


def compatible_lemmas(word: str, upos: str, tag: str) -> frozenset[str]:
    """Lemmas that may be true of the same thing as a word, such as its own lemma and synonyms."""
    lemma = load_lexicon().find_lemma(fold_case(word), upos, tag)
    return load_lexicon().compatible(lemma) if lemma else frozenset({fold_case(word)})


def lemma_name(word: str, upos: str, tag: str) -> str:
    """Lemma of a word form, or the case-folded word itself if the lexicon lacks it."""
    lemma = load_lexicon().find_lemma(fold_case(word), upos, tag)
    return lemma.name if lemma else fold_case(word)


def modified_noun(parse: Parse, place: int) -> int | None:
    """Token index of the noun that an attribute modifies, in its phrase or before it, or None.

    One before it is the last of the preceding phrase ("the ball is red").
    """
    before = None
    for start, end in noun_phrases_of(parse):
        if start <= place < end:
            return end - 1
        if end <= place:
            before = end - 1
    return before


def noun_of_phrase_at(parse: Parse, place: int) -> int | None:
    """Token index of the noun whose noun phrase starts at a token, or None if none starts there."""
    return next((end - 1 for start, end in noun_phrases_of(parse) if start == place), None)


class Evidence:
    """Facts that the captions of one image state, to find out whether a foil is true of it.

    Args:
        parses: parses of all captions of the image.
    """

    def __init__(self, parses: Iterable[Parse]) -> None:
        self.parses = tuple(parses)
        words = (" ".join(map(fold_case, parse.words)) for parse in self.parses)
        self._text = f" {' . '.join(words)} "

    def contains(self, word: str) -> bool:
        """Whether a caption of the image contains a word or an expression of several words."""
        return f" {fold_case(word)} " in self._text

    def may_name(self, word: str, upos: str, tag: str) -> bool:
        """Whether the captions name a thing that this word may name as well."""
        return (upos, lemma_name(word, upos, tag)) in self._named_lemmas

    def is_caption(self, text: str) -> bool:
        """Whether a text equals a caption of the image except for case and closing punctuation."""
        return bare(text) in self._captions

    def states(self, category: Category, firsts: Iterable[str], seconds: Iterable[str]) -> bool:
        """Whether a caption joins one of these lemmas with one of the others.

        Args:
            category: "attribute" joins attributes with nouns, "relation" prepositions with their
                objects, "entity" subjects with objects.
            firsts: candidate lemmas of the first phrase.
            seconds: candidate lemmas of the second phrase.
        """
        return not self._stated[category].isdisjoint(product(firsts, seconds))

    @cached_property
    def _captions(self) -> set[str]:
        """The image's captions, case-folded and without closing punctuation."""
        return {bare(parse.text) for parse in self.parses}

    @cached_property
    def _named_lemmas(self) -> set[tuple[str, str]]:
        """Pairs (part of speech, lemma) of lemmas that may be true of things in the captions."""
        return {
            (upos, found)
            for parse in self.parses
            for word, upos, tag in _mentions(parse)
            for found in compatible_lemmas(word, upos, tag)
        }

    @cached_property
    def _stated(self) -> dict[Category, set[tuple[str, str]]]:
        """Pairs of lemmas that the captions join, by category."""
        found: dict[Category, set[tuple[str, str]]] = {
            "attribute": set(),
            "relation": set(),
            "entity": set(),
        }
        for parse in self.parses:
            for element in scene_graph(parse).elements:
                if element.category == "attribute":
                    noun = modified_noun(parse, element.start)
                elif element.category == "relation":
                    noun = noun_of_phrase_at(parse, element.end)
                else:
                    continue
                if noun is not None:
                    word = token_text(parse, element.start, element.end)
                    own = compatible_lemmas(word, element.upos, element.tag)
                    found[element.category].update(product(own, noun_lemmas(parse, noun)))
            for unit in units(parse):
                if unit.category == "relation":
                    subject, _, other = (noun_lemmas(parse, end - 1) for _, end in unit.parts)
                    found["entity"].update(product(subject, other))
        return found


def noun_lemmas(parse: Parse, place: int) -> frozenset[str]:
    """Lemmas that may be true of the same thing as the noun at a token index, such as synonyms."""
    return compatible_lemmas(parse.words[place], "NOUN", fine_tag(parse, place))


def _mentions(parse: Parse) -> Iterator[tuple[str, str, str]]:
    """All words with part of speech and fine tag, and the compounds that end noun phrases."""
    for place, (word, upos) in enumerate(zip(parse.words, parse.upos, strict=True)):
        yield word, "NOUN" if upos in NOUNS else upos, fine_tag(parse, place)
    for start, end in noun_phrases_of(parse):
        for first in range(start, end - 1):
            yield token_text(parse, first, end), "NOUN", fine_tag(parse, end - 1)


_MAKERS: Mapping[Kind, Callable[[Parse, Evidence], Iterator[Draft]]] = {
    "swapped_attributes": _swapped_attribute_drafts,
    "swapped_objects": _swapped_object_drafts,
    "replaced_attribute": partial(_replacement_drafts, "attribute"),
    "replaced_object": partial(_replacement_drafts, "entity"),
    "replaced_relation": partial(_replacement_drafts, "relation"),
    "added_attribute": _added_attribute_drafts,
    "half_truth": _half_truth_drafts,
}
