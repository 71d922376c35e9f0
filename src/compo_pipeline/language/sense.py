"""Find phrases whose exchange leaves a caption fluent but makes it false.

The papers' rules exchange any two words of one part of speech. Read one by one
(docs/explanation/negatives.md), half of what they write is broken English ("a room living"), and
some is as true as before ("a woman and a man"). The rules' careful variants check here first, by
the parse alone; the words that are listed are function words.
"""

from __future__ import annotations

from compo_pipeline.core.records import Parse
from compo_pipeline.language.editing import (
    NOUNS,
    Phrase,
    fold_case,
    indefinite_article,
    noun_phrases_of,
    token_text,
    upos_at,
)

_NOMINAL = NOUNS | {"DET", "ADJ", "PRON", "NUM"}
# Between two phrases these words say as much the other way round.
_EITHER_WAY = frozenset({"and", "or", ",", "&", "next", "to", "near", "beside", "alongside"})


def movable_unit(parse: Parse, phrase: Phrase) -> Phrase | None:
    """Token span that must move with a phrase, such as its whole compound, or None.

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
    """Whether a phrase of one parse can grammatically replace a phrase of another parse.

    It has the same inflection, as much of an object after it, and suits the article before it.
    """
    return _agreement_features(parse, phrase) == _agreement_features(source, taken) and (
        _article_suits(parse, phrase, token_text(source, *taken))
        and _article_suits(source, taken, token_text(parse, *phrase))
    )


def can_exchange(parse: Parse, one: Phrase, other: Phrase) -> bool:
    """Whether exchanging two phrases of a caption gives correct English with another meaning.

    The earlier phrase is given first.
    """
    return can_replace(parse, one, parse, other) and not is_harmless_exchange(parse, one, other)


def is_harmless_exchange(parse: Parse, one: Phrase, other: Phrase) -> bool:
    """Whether a caption keeps its meaning when two of its phrases are exchanged.

    The earlier phrase is given first. Both qualify one noun ("a big red car"), or are in one list
    and differ in nothing else ("a man and a woman", but not "a black cat and a white dog").
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


def _agreement_features(parse: Parse, phrase: Phrase) -> tuple[str, str, bool]:
    """Features that must agree in an exchange: tags at a phrase's ends, whether a noun follows."""
    start, end = phrase
    first = parse.tags[start] if parse.upos[end - 1] == "VERB" else ""
    return first, parse.tags[end - 1], upos_at(parse, end) in _NOMINAL


def _article_suits(parse: Parse, phrase: Phrase, text: str) -> bool:
    """Whether the "a" or "an" before a phrase, if any, suits another text in the phrase's place."""
    before = parse.words[phrase[0] - 1].lower() if phrase[0] else ""
    return before not in ("a", "an") or before == indefinite_article(text)


def _enclosing_noun_phrase(parse: Parse, phrase: Phrase) -> Phrase:
    """Token span of the noun phrase around a phrase, or the phrase itself if there is none."""
    for start, end in noun_phrases_of(parse):
        if start <= phrase[0] and phrase[1] <= end:
            return start, end
    return phrase


def _other_words(parse: Parse, around: Phrase, phrase: Phrase) -> list[str]:
    """Words of a noun phrase that are outside an inner phrase, without determiners."""
    return [
        fold_case(parse.words[at])
        for at in range(*around)
        if not phrase[0] <= at < phrase[1] and parse.upos[at] != "DET"
    ]
