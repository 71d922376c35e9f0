"""Units of a caption, each true of its image by itself, and a foil of each: one edit away, false.

Source: "Half-Truths Break Similarity-Based Retrieval" (CS-CLIP, arXiv 2602.23906). Entities are
noun phrases with their attributes, relations a subject, what relates it, and an object. The authors
have a language model write both units and foils; here the parse gives the units, and the generators
of hard negatives the foils.
"""

from __future__ import annotations

import random
from itertools import pairwise
from typing import Literal, NamedTuple

from compo_pipeline.core.records import Parse
from compo_pipeline.language import sense
from compo_pipeline.language.clauses import POSSESSIVES, SYMMETRIC
from compo_pipeline.language.concepts import naming_phrases
from compo_pipeline.language.editing import (
    Edit,
    Generated,
    Phrase,
    apply_edits,
    exchange_edits,
    extent,
    fold_case,
    is_movable,
    token_text,
    upos_at,
)
from compo_pipeline.language.lexicon import load_lexicon
from compo_pipeline.language.replacements import Replacer
from compo_pipeline.language.scene_graph import scene_graph

# Between a subject and its object there are none: "a cat, a dog on a mat", "a cat and a dog".
_PARTING = frozenset({"CCONJ", "PUNCT", "SCONJ", "SPACE"})
_AUXILIARY = frozenset({"AUX", "PRON", "ADV"})
# Words of relations that hold either way round.
_SYMMETRIC = {"by", "touching", "with"} | {word for name in SYMMETRIC for word in name.split()}


Category = Literal["entity", "relation"]
# The kind of an edit, the edits, and the words that they take and give.
_Draft = tuple[str, list[Edit], tuple[str, str]]


class Unit(NamedTuple):
    """An entity or a relation (subject, relation, object) of a caption, as token spans.

    Attributes:
        category: entity or relation.
        parts: the tokens of the entity; or those of subject, relation and object, which follow
            each other without a gap.
    """

    category: Category
    parts: tuple[Phrase, ...]

    @property
    def phrase(self) -> Phrase:
        """Token span [start, end) of the whole unit."""
        return self.parts[0][0], self.parts[-1][1]


def units(parse: Parse) -> tuple[Unit, ...]:
    """Entities, then relations of a caption, each kind in text order, without repeated texts."""
    phrases = _entities(parse)
    found = [Unit("entity", (phrase,)) for phrase in phrases]
    found += (
        Unit("relation", (subject, (subject[1], other[0]), other))
        for subject, other in pairwise(phrases)
        if _are_related(parse, subject, other)
    )
    distinct = {fold_case(token_text(parse, *unit.phrase)): unit for unit in reversed(found)}
    return tuple(unit for unit in found if unit in distinct.values())


def _entities(parse: Parse) -> list[Phrase]:
    """Token spans of entities: naming noun phrases, joined with an "of" phrase behind them."""
    found: list[Phrase] = []
    for start, end in naming_phrases(parse):
        if found and [fold_case(word) for word in parse.words[found[-1][1] : start]] == ["of"]:
            start, _ = found.pop()
        found.append((start, end))
    return found


def _are_related(parse: Parse, subject: Phrase, other: Phrase) -> bool:
    """Whether the words between two entities state a relation of the first entity to the second.

    In "a man in a suit riding a bike" no suit rides a bike: a participle behind a preposition's
    object may be of another subject.
    """
    between = range(subject[1], other[0])
    kinds = {parse.upos[at] for at in between}
    prepositions = any(
        (fold_case(parse.words[at]), "ADP") in load_lexicon().lemmas for at in between
    )
    astray = upos_at(parse, subject[0] - 1) == "ADP" and parse.tags[subject[1]] == "VBG"
    return (prepositions or "VERB" in kinds) and not kinds & _PARTING and not astray


def foil(parse: Parse, unit: Unit, rng: random.Random, replacer: Replacer) -> Generated | None:
    """Generate a foil of an entity or relation: a text one edit away from it that is false.

    One of the kinds of edit that apply is drawn, then one edit of this kind: another entity,
    attribute or relation (none that the whole caption names), or subject and object exchanged.

    Args:
        parse: the caption.
        unit: one of its units.
        rng: random generator, whose state determines the text.
        replacer: gives other words.

    Returns:
        None where no edit applies.
    """
    drafts = _candidate_edits(parse, unit, unit.phrase, rng, replacer)
    if not drafts:
        return None
    category, edits, words = _draw_draft(drafts, rng)
    start, end = unit.phrase
    part = sub_parse(parse, start, end)
    own = [Edit(a - start, b - start, new) for a, b, new in edits if a >= start]
    return Generated(apply_edits(part, own), "foil", category, words)


def change_relation(parse: Parse, rng: random.Random, replacer: Replacer) -> Generated | None:
    """Hard negative with another relation: one word replaced, or subject and object exchanged.

    Args:
        parse: the caption.
        rng: random generator, whose state determines the text.
        replacer: gives other words.

    Returns:
        None where no relation can be edited.
    """
    drafts: list[_Draft] = []
    for unit in units(parse):
        if unit.category == "relation":
            drafts += _candidate_edits(parse, unit, unit.parts[1], rng, replacer)
    if not drafts:
        return None
    category, edits, words = _draw_draft(drafts, rng)
    return Generated(apply_edits(parse, edits), "relation", category, words)


def _draw_draft(drafts: list[_Draft], rng: random.Random) -> _Draft:
    """Draw a kind of edit, then an edit of it."""
    kind = rng.choice(sorted({kind for kind, _, _ in drafts}))
    return rng.choice([draft for draft in drafts if draft[0] == kind])


def _candidate_edits(
    parse: Parse, unit: Unit, within: Phrase, rng: random.Random, replacer: Replacer
) -> list[_Draft]:
    """Candidate edits of an entity or relation: words replaced, or subject and object exchanged."""
    start, end = within
    elements = [one for one in scene_graph(parse).elements if start <= one.start and one.end <= end]
    drafts: list[_Draft] = [*replacer.replacements(parse, elements, rng)]
    if edits := subject_object_exchange(parse, unit):
        subject, _, other = unit.parts
        drafts.append(("swap", edits, (token_text(parse, *subject), token_text(parse, *other))))
    return drafts


def subject_object_exchange(parse: Parse, unit: Unit) -> list[Edit]:
    """Edits that exchange subject and object of a relation, empty if they cannot be exchanged.

    They cannot where the outcome is broken English, or as true as before.
    """
    if unit.category != "relation" or not _is_reversible(parse, unit):
        return []
    subject, _, other = unit.parts
    return exchange_edits(parse, subject, other)


def _is_reversible(parse: Parse, unit: Unit) -> bool:
    """Whether a relation with subject and object exchanged is correct English, and false."""
    subject, between, other = unit.parts
    relation = [
        fold_case(parse.words[at]) for at in range(*between) if parse.upos[at] not in _AUXILIARY
    ]
    named = {fold_case(word) for word in parse.words[subject[0] : other[1]]}
    return (
        not _SYMMETRIC.issuperset(relation)
        and not POSSESSIVES & named
        and fold_case(token_text(parse, *subject)) != fold_case(token_text(parse, *other))
        and is_movable(parse, *subject)
        and is_movable(parse, *other)
        and sense.can_replace(parse, subject, parse, other)
    )


def sub_parse(parse: Parse, start: int, end: int) -> Parse:
    """Parse of only the tokens `[start, end)`, cut from another parse, without noun phrases."""
    first, last = extent(parse, start, end)
    return Parse(
        parse.sample_id,
        parse.sentence,
        parse.text[first:last],
        parse.words[start:end],
        tuple(offset - first for offset in parse.offsets[start:end]),
        parse.upos[start:end],
        parse.tags[start:end],
        (),
    )
