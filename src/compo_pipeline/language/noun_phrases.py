"""Base noun phrases of a parsed doc, under Universal Dependencies and under ClearNLP labels.

spaCy's own `doc.noun_chunks` expects the ClearNLP labels of its English models.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from compo_pipeline.language.editing import NOUNS

if TYPE_CHECKING:
    from spacy.tokens import Doc, Token

# Children to the left of the head that belong to its phrase: UD's labels, then ClearNLP's own.
_PREMODIFIERS = frozenset(
    "det det:predet amod compound nummod nmod:poss predet poss quantmod nmod nn".split()
)
# They join the phrase only where a premodifier precedes them: "a very small dog".
_BETWEEN = frozenset({"punct", "advmod", "cc", "conj"})
# A noun under such a label is a part of the phrase of its head.
_INNER = frozenset({"compound", "flat", "fixed", "goeswith", "nmod:poss", "poss", "nn"})

# Parts of speech that belong to the noun behind them; before which a phrase cannot go on; that join
# phrases.
_ATTRIBUTES = frozenset({"DET", "NUM", "ADJ"})
_OPENING = frozenset({"DET", "PRON"})
_JOINING = frozenset({"ADP", "CCONJ", "SCONJ", "PUNCT"})
_SINGULAR = frozenset({"NN", "NNP"})


def noun_phrases(doc: Doc) -> list[tuple[int, int]]:
    """Token spans [start, end) of the base noun phrases of a spaCy doc, in text order.

    A phrase is a noun with its determiners, adjectives, numbers, possessors and compound parts,
    without anything that follows it. Candidates that overlap are one phrase.
    """
    candidates = sorted(_phrase_of_head(token) for token in doc if _heads_a_phrase(token))
    found: list[tuple[int, int]] = []
    for start, end in candidates:
        if found and (start < found[-1][1] or _continues_compound(doc, found[-1], start)):
            start, end = found[-1][0], max(end, found.pop()[1])
        found.append((start, end))
    return found


def _heads_a_phrase(token: Token) -> bool:
    """Whether a token is a noun that heads its own noun phrase, not a part of another noun's."""
    inner = token.dep_ in _INNER and token.head.pos_ in NOUNS and token.head.i != token.i
    return token.pos_ in NOUNS and not inner


def _continues_compound(doc: Doc, phrase: tuple[int, int], start: int) -> bool:
    """Whether a noun or participle right after a phrase continues it: "a zoo | enclosure".

    A parser took the two for a subject and its verb, or for two objects ("a snow | covered slope").
    """
    following = doc[start].pos_ in NOUNS or doc[start].tag_ == "VBN"
    return start == phrase[1] and following and doc[start - 1].tag_ in _SINGULAR


def _is_misattached(token: Token) -> bool:
    """Whether a premodifier, such as a determiner, is attached to a word that is not a noun."""
    return token.dep_ in _PREMODIFIERS and token.head.pos_ not in NOUNS and token.i < token.head.i


def _opens_next_phrase(token: Token) -> bool:
    """Whether a word, by its part of speech, belongs to the noun phrase after it.

    Whatever the parser attached it to: "here is a pink | arrow".
    """
    return token.pos_ in _ATTRIBUTES and token.nbor().pos_ not in _OPENING


def _phrase_of_head(head: Token) -> tuple[int, int]:
    """Token span [start, end) of the base noun phrase that a noun heads."""
    start, end = head.i, head.i + 1
    # From the nearest child outwards; under UD the preposition is a child too and ends the walk.
    for child in reversed(list(head.lefts)):
        if child.dep_ in _PREMODIFIERS and child.right_edge.i < start:
            start = child.left_edge.i
        elif child.dep_ not in _BETWEEN or child.pos_ in NOUNS:
            break
    # A premodifier may include what precedes the phrase: "over | a pink arrow".
    while start < head.i and _cannot_open_phrase(head.doc[start]):
        start += 1
    # The parser hangs the determiner of "a gymnast leaps" on "leaps" when it takes that for a noun.
    while start and (
        _is_misattached(head.doc[start - 1]) or _opens_next_phrase(head.doc[start - 1])
    ):
        start -= 1
    for child in head.rights:
        if child.dep_ != "flat" or child.left_edge.i != end:
            break
        end = child.right_edge.i + 1
    return start, end


def _cannot_open_phrase(token: Token) -> bool:
    """Whether a token cannot open a noun phrase: a preposition, a conjunction, punctuation."""
    return token.pos_ in _JOINING or (token.pos_ == "ADV" and token.nbor().pos_ == "DET")
