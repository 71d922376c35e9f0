"""Base noun phrases of a parsed doc, under Universal Dependencies and under ClearNLP labels.

spaCy's own `doc.noun_chunks` expects the ClearNLP labels of its English models.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from spacy.tokens import Doc, Token

_NOUNS = frozenset({"NOUN", "PROPN"})
# Children to the left of the head that belong to its phrase: UD's labels, then ClearNLP's own.
_PREMODIFIERS = frozenset(
    {"det", "det:predet", "amod", "compound", "nummod", "nmod:poss"}
    | {"predet", "poss", "quantmod", "nmod", "nn"}
)
# They join the phrase only where a premodifier stands further out: "a very small dog".
_BETWEEN = frozenset({"punct", "advmod", "cc", "conj"})
# A noun under such a label is a part of the phrase of its head.
_INNER = frozenset({"compound", "flat", "fixed", "goeswith", "nmod:poss", "poss", "nn"})


def noun_phrases(doc: Doc) -> list[tuple[int, int]]:
    """Half-open word spans of the base noun phrases, in their order.

    A phrase is a noun with its determiners, adjectives, numbers, possessors and compound parts,
    without anything that follows it. Of overlapping candidates the longest is kept, of equally
    long ones the first.
    """
    candidates = [_phrase(token) for token in doc if _heads_a_phrase(token)]
    kept: list[tuple[int, int]] = []
    for start, end in sorted(candidates, key=lambda span: (span[0] - span[1], span[0])):
        if all(end <= other_start or start >= other_end for other_start, other_end in kept):
            kept.append((start, end))
    return sorted(kept)


def _heads_a_phrase(token: Token) -> bool:
    inner = token.dep_ in _INNER and token.head.pos_ in _NOUNS and token.head.i != token.i
    return token.pos_ in _NOUNS and not inner


def _astray(token: Token) -> bool:
    """Whether a premodifier of nouns depends on something that is none."""
    return token.dep_ in _PREMODIFIERS and token.head.pos_ not in _NOUNS and token.i < token.head.i


def _phrase(head: Token) -> tuple[int, int]:
    start, end = head.i, head.i + 1
    # From the nearest child outwards; under UD the preposition is a child too and ends the walk.
    for child in reversed(list(head.lefts)):
        if child.dep_ in _PREMODIFIERS and child.right_edge.i < start:
            start = child.left_edge.i
        elif child.dep_ not in _BETWEEN or child.pos_ in _NOUNS:
            break
    # The parser hangs the determiner of "a gymnast leaps" on "leaps" when it takes that for a noun.
    while start and _astray(head.doc[start - 1]):
        start -= 1
    for child in head.rights:
        if child.dep_ != "flat" or child.left_edge.i != end:
            break
        end = child.right_edge.i + 1
    return start, end
