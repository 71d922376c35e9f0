"""Rewrite clauses of captions: active to passive voice, and relations to their inverses.

Only clauses that open the caption, and without a modifier that could come to modify another noun:
"a cup being held by a man on a table" is not what "a man holding a cup on a table" says.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from compo_pipeline.core.records import Parse
from compo_pipeline.language.editing import (
    Edit,
    exchange_edits,
    is_movable,
    noun_phrases_of,
    token_text,
)
from compo_pipeline.language.lexicon import load_lexicon
from compo_pipeline.language.scene_graph import kinds

# Relations of the first thing to the second, and their inverses.
_OPPOSITE_RELATIONS = {
    "above": "below",
    "over": "under",
    "in front of": "behind",
    "around": "inside",
    "to the left of": "to the right of",
    "left of": "right of",
    "on the left of": "on the right of",
}
SYMMETRIC = ("near", "close to", "next to", "beside", "alongside", "far from")
_INVERSE = {
    **_OPPOSITE_RELATIONS,
    **{second: first for first, second in _OPPOSITE_RELATIONS.items()},
    **{word: word for word in SYMMETRIC},
    "beneath": "above",
    "underneath": "above",
    "in back of": "in front of",
}
_LONGEST = 4  # words of a preposition above
# Verbs whose passive is said of what captions show.
_PASSIVE = frozenset(
    """bite board brush build carry catch chase clean climb close cook cover cross cut
    decorate drag draw drink drive eat examine feed fix fly follow groom herd hit hold
    hug inspect kick kiss lead lick lift load milk open paint pet photograph play pour
    prepare pull push read repair ride sell serve slice surround throw touch unload use
    walk wash watch wear write""".split()
)
_BE = {"is": False, "are": True}  # the number that it agrees with: plural?
_ENDS = frozenset({".", ";", "!"})
# Possessives that refer to a person named elsewhere in the caption.
POSSESSIVES = frozenset({"his", "her", "its", "their", "my", "our", "your"})


class TurnedClause(NamedTuple):
    """Edits that exchange the nouns of a clause, and the words between the nouns, old and new."""

    edits: list[Edit]
    words: tuple[str, str]


class _NounPhrase(NamedTuple):
    """Token span of a noun phrase with the "of" phrase behind it, and whether it is plural."""

    start: int
    end: int
    plural: bool


def inverted_relations(parse: Parse) -> Iterator[TurnedClause]:
    """Edits that turn "A left of B" into "B right of A"."""
    for subject in _subject(parse):
        at = subject.end
        agrees = at < len(parse.words) and parse.words[at].lower() in _BE
        link = at + agrees
        for end in range(min(link + _LONGEST, len(parse.words) - 1), link, -1):
            inverse = _INVERSE.get(token_text(parse, link, end).lower())
            other = _noun_phrase_at(parse, end)
            # "is", or the "is" of "there is", has to agree with its new neighbour.
            there = subject.start > 0
            if other and (agrees or there) and subject.plural != other.plural:
                continue
            if other and there and parse.words[other.start].lower() == "the":
                continue
            if inverse and other and _ends_or_background_follows(parse, other.end):
                yield _turn_clause(parse, subject, Edit(link, end, inverse), other)
                break


def changed_voices(parse: Parse) -> Iterator[TurnedClause]:
    """Edits that turn "A is riding B" into "B is being ridden by A", or the reverse."""
    for subject in _subject(parse):
        found = None if subject.start else _other_voice(parse, subject.end)
        other = _noun_phrase_at(parse, found.end) if found else None
        if found and other and _ends_or_place_follows(parse, other.end):
            new = found.plural if other.plural else found.singular
            yield _turn_clause(parse, subject, Edit(subject.end, found.end, new), other)


class _OtherVoice(NamedTuple):
    """A verb changed between active and passive, for a singular and a plural subject.

    `end` is the token behind the old verb.
    """

    end: int
    singular: str
    plural: str


def _other_voice(parse: Parse, start: int) -> _OtherVoice | None:
    """The verb at a token changed between active and passive, or None if captions never do so."""
    words = [word.lower() for word in parse.words[start : start + 4]]
    be = bool(words) and words[0] in _BE
    being = words[be : be + 1] == ["being"]
    at = start + be + being
    if at >= len(parse.words) or parse.upos[at] != "VERB":
        return None
    tag = parse.tags[at]
    word, base = parse.words[at].lower(), "VB" if tag == "VBP" else tag
    lemma = load_lexicon().find_lemma(word, "VERB", base)
    if lemma is None or lemma.name not in _PASSIVE or {"VBG", "VBN"} - lemma.forms.keys():
        return None
    done, doing = lemma.forms["VBN"], lemma.forms["VBG"]
    if tag == "VBG" and not being:
        return _participle_voice(at + 1, f"being {done} by", be)
    if tag in ("VBZ", "VBP") and not be:
        return _OtherVoice(at + 1, f"is {done} by", f"are {done} by")
    if tag != "VBN" or parse.words[at + 1 : at + 2] != ("by",):
        return None
    if being:
        return _participle_voice(at + 2, doing, be)
    return _OtherVoice(at + 2, lemma.forms["VBZ"], lemma.forms["VB"]) if be else None


def _participle_voice(end: int, participle: str, be: bool) -> _OtherVoice:
    """A verb changed in voice whose new form is a participle, after "is" or "are" if needed."""
    if be:
        return _OtherVoice(end, f"is {participle}", f"are {participle}")
    return _OtherVoice(end, participle, participle)


def _subject(parse: Parse) -> Iterator[_NounPhrase]:
    """Yield the noun phrase that opens the caption or follows its opening "there is", if any."""
    opening = [word.lower() for word in parse.words[:2]]
    start = 2 if opening in (["there", "is"], ["there", "are"]) else 0
    subject = _noun_phrase_at(parse, start)
    if subject:
        yield subject


def _noun_phrase_at(parse: Parse, start: int) -> _NounPhrase | None:
    """Noun phrase that starts at a token index, or None if it cannot move or has a possessive."""
    phrases = dict(noun_phrases_of(parse))
    end = phrases.get(start)
    if end is None or POSSESSIVES & {word.lower() for word in parse.words[start:end]}:
        return None
    if {"VERB", "CCONJ", "PUNCT"} & set(parse.upos[start:end]):  # the tagger went astray
        return None
    plural = parse.tags[end - 1] in ("NNS", "NNPS")
    if parse.words[end : end + 1] == ("of",):
        if end + 1 not in phrases:
            return None
        end = phrases[end + 1]
    return _NounPhrase(start, end, plural) if is_movable(parse, start, end) else None


def _is_clause_end(parse: Parse, place: int) -> bool:
    """Whether a token index is behind the last word of the clause."""
    return place == len(parse.words) or parse.words[place] in _ENDS


def _ends_or_background_follows(parse: Parse, place: int) -> bool:
    """Whether nothing follows a token but "on a ... background", "too" or the end of the clause.

    Everything is before the background, and a further thing is there "too".
    """
    if _is_clause_end(parse, place):
        return True
    *words, last = [word.lower() for word in parse.words[place:]]
    if last == "." and words:
        *words, last = words
    if words[:1] == [","]:
        return last in ("too", "well") or words[1:3] == ["and", "there"]
    return words[:1] in (["on"], ["against"]) and last == "background"


def _ends_or_place_follows(parse: Parse, place: int) -> bool:
    """Whether the clause ends at a token, or only a location of the whole follows: "on a beach"."""
    if _is_clause_end(parse, place):
        return True
    phrases = dict(noun_phrases_of(parse))
    end = phrases.get(place + 1)
    if end is None or parse.words[place].lower() not in ("on", "in", "at", "near"):
        return False
    noun = load_lexicon().find_lemma(parse.words[end - 1].lower(), "NOUN", parse.tags[end - 1])
    return "place" in kinds(noun) and _is_clause_end(parse, end)


def _turn_clause(
    parse: Parse, subject: _NounPhrase, link: Edit, other: _NounPhrase
) -> TurnedClause:
    """The clause with its subject and other noun phrase exchanged and the words between edited."""
    first, last = exchange_edits(parse, (subject.start, subject.end), (other.start, other.end))
    return TurnedClause([first, link, last], (token_text(parse, link.start, link.end), link.text))
