"""Which phrases can be exchanged so that a caption stays English and becomes false.

The papers' rules exchange any two words of one part of speech. Read one by one
(docs/explanation/negatives.md), half of what they write is broken English ("a room living"), and
some is as true as before ("a woman and a man"). The rules' careful variants check here first, by
the parse alone; the words that are listed are function words.
"""

from __future__ import annotations

from compo_pipeline.language.editing import (
    NOUNS,
    Phrase,
    fold_case,
    indefinite_article,
    noun_phrases_of,
    upos_at,
    written,
)
from compo_pipeline.storage.records import Parse

_NOMINAL = NOUNS | {"DET", "ADJ", "PRON", "NUM"}
# Between two phrases these words say as much the other way round.
_EITHER_WAY = frozenset({"and", "or", ",", "&", "next", "to", "near", "beside", "alongside"})


def movable_unit(parse: Parse, phrase: Phrase) -> Phrase | None:
    """The expression that a phrase heads, itself in most cases; it moves as a whole or not at all.

    A noun heads its compound ("parking meter"). Nothing is headed by the other nouns in one, by a
    noun before "of" ("in front of", "a pair of"), by an adverb before what it belongs to ("next
    to", "very large"), and by a preposition.
    """
    start, end = phrase
    if end - start > 1:
        return phrase
    upos, after = parse.upos[start], upos_at(parse, end)
    if upos in NOUNS:
        if after in NOUNS or (after == "ADP" and parse.words[end].lower() == "of"):
            return None
        while upos_at(parse, start - 1) in NOUNS:
            start -= 1
        return start, end
    apart = upos != "ADP" and not (upos == "ADV" and after in {"ADP", "ADJ", "ADV"})
    return phrase if apart else None


def can_replace(parse: Parse, phrase: Phrase, source: Parse, taken: Phrase) -> bool:
    """Whether a phrase of one parse can replace the other grammatically: with
    the same inflection, as much of an object after it, and the article before it.
    """
    return _inflection(parse, phrase) == _inflection(source, taken) and (
        _article_suits(parse, phrase, written(source, *taken))
        and _article_suits(source, taken, written(parse, *phrase))
    )


def can_exchange(parse: Parse, one: Phrase, other: Phrase) -> bool:
    """Whether two phrases, the earlier one first, can change places so that the caption stays
    English and says something else.
    """
    return can_replace(parse, one, parse, other) and not is_harmless_exchange(parse, one, other)


def is_harmless_exchange(parse: Parse, one: Phrase, other: Phrase) -> bool:
    """Whether a caption says the same when two of its phrases, the earlier one first, change
    places: both qualify one noun ("a big red car"), or are in one list and differ in nothing
    else ("a man and a woman", but not "a black cat and a white dog").
    """
    first, second = _enclosing_noun_phrase(parse, one), _enclosing_noun_phrase(parse, other)
    if first == second:
        return True
    # A bare second member shares what qualifies the first: "an old church and statue".
    if second != other and _other_words(parse, first, one) != _other_words(parse, second, other):
        return False
    between = range(first[1], second[0])  # other members of the list may be there
    listed = _NOMINAL if parse.upos[one[1] - 1] in NOUNS else frozenset[str]()
    return all(
        fold_case(parse.words[at]) in _EITHER_WAY or parse.upos[at] in listed for at in between
    )


def _inflection(parse: Parse, phrase: Phrase) -> tuple[str, str, bool]:
    """What must agree in an exchange: tags at the phrase's ends, and whether a noun follows."""
    start, end = phrase
    first = parse.tags[start] if parse.upos[end - 1] == "VERB" else ""
    return first, parse.tags[end - 1], upos_at(parse, end) in _NOMINAL


def _article_suits(parse: Parse, phrase: Phrase, text: str) -> bool:
    """Whether a text can follow the article, if any, before a phrase."""
    before = parse.words[phrase[0] - 1].lower() if phrase[0] else ""
    return before not in ("a", "an") or before == indefinite_article(text)


def _enclosing_noun_phrase(parse: Parse, phrase: Phrase) -> Phrase:
    """The noun phrase around a phrase; the phrase itself where there is none."""
    for start, end in noun_phrases_of(parse):
        if start <= phrase[0] and phrase[1] <= end:
            return start, end
    return phrase


def _other_words(parse: Parse, around: Phrase, phrase: Phrase) -> list[str]:
    """The words of a noun phrase outside a phrase within it, without determiners."""
    return [
        fold_case(parse.words[at])
        for at in range(*around)
        if not phrase[0] <= at < phrase[1] and parse.upos[at] != "DET"
    ]
