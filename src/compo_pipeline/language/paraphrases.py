"""Paraphrases of captions by rule: texts that are true whenever the caption is.

Being true matters more than finding something: each rule reads the tags around what it moves, and
leaves alone what could come to mean another thing ("a man with a dog and a woman").
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import NamedTuple

from compo_pipeline.core.records import Parse
from compo_pipeline.language.clauses import POSSESSIVES, changed_voices, inverted_relations
from compo_pipeline.language.editing import (
    Edit,
    Generated,
    Phrase,
    apply_edits,
    exchange_edits,
    fold_case,
    indefinite_article,
    is_movable,
    noun_phrases_of,
    recapitalise,
    replacement_edits,
    token_text,
    upos_at,
)
from compo_pipeline.language.lexicon import load_lexicon
from compo_pipeline.language.scene_graph import scene_graph

# What may precede the first of two coordinated phrases without drawing it alone into
# something else, and what may follow the second.
_UPOS_BEFORE = frozenset({"", "VERB", "AUX", "PUNCT", "PRON"})
_UPOS_AFTER = frozenset({"", "VERB", "AUX", "PUNCT", "SCONJ"})
_COUNTS = frozenset({"many", "several", "few", "various"})
# Words that speak of what was named before: "a man and his dog", "cakes and other food".
_REFERRING = POSSESSIVES | {"other", "another", "others"}

_FINITE = frozenset({"VBZ", "VBP", "VBD", "VB", "MD"})
# Past participles that captions do not use as a past tense.
_PARTICIPLES = frozenset(
    """parked filled covered surrounded seated decorated topped dressed made lined stacked mounted
    painted loaded piled displayed attached placed taken gathered shown set""".split()
)
_SOME = frozenset({"couple", "number", "lot", "few"})
# What an image is, not what it shows; and pieces of expressions.
_VIEWS = frozenset(
    """picture photo photograph image view shot close closeup close-up scene front top bit
    look""".split()
)


class _Draft(NamedTuple):
    """A candidate paraphrase: its category, the token edits, and the words that they change."""

    category: str
    edits: list[Edit]
    words: tuple[str, ...]


def paraphrase(parse: Parse, rng: random.Random) -> Generated | None:
    """Paraphrase a caption by one rule that keeps it true, drawn from those that apply, or None.

    The categories: `order` (coordinated parts change places), `voice` (active and passive),
    `relation` (the second thing first, the relation reversed), `synonym`; and `there` ("there is"
    put before a caption, or left out) where no other rule applies, since it changes least.

    Returns:
        None where no rule applies.
    """
    drafts = list(_coordination_drafts(parse))
    drafts += (_Draft("voice", *turned) for turned in changed_voices(parse))
    drafts += (_Draft("relation", *turned) for turned in inverted_relations(parse))
    drafts += _synonym_drafts(parse)
    return _draw_draft(parse, drafts, rng) or _draw_draft(
        parse, list(_existential_drafts(parse)), rng
    )


def _draw_draft(parse: Parse, drafts: list[_Draft], rng: random.Random) -> Generated | None:
    """Paraphrase by a random draft that changes the caption, or None if no draft changes it."""
    while drafts:
        category, edits, words = drafts.pop(rng.randrange(len(drafts)))
        text = apply_edits(parse, edits)
        if fold_case(text) != fold_case(parse.text):
            return Generated(text, "paraphrase", category, words)
    return None


def _coordination_drafts(parse: Parse) -> Iterator[_Draft]:
    """Candidate paraphrases that exchange two noun phrases or adjectives around "and" or "or"."""
    phrases = noun_phrases_of(parse)
    starts = dict(phrases)
    for place, word in enumerate(parse.words):
        if word.lower() not in ("and", "or") or not 0 < place < len(parse.words) - 1:
            continue
        for start, end in phrases:
            other = place + 1, starts.get(place + 1, 0)
            if end == place and other[1] and _are_coordinated(parse, (start, end), other):
                yield _exchange_draft(parse, (start, end), other)
        one, other = (place - 1, place), (place + 1, place + 2)
        if upos_at(parse, place - 1) == upos_at(parse, place + 1) == "ADJ" and _are_free_adjectives(
            parse, place
        ):
            yield _exchange_draft(parse, one, other)


def _are_free_adjectives(parse: Parse, place: int) -> bool:
    """Whether the adjectives around an "and" can be exchanged with the same meaning.

    Nothing before belongs to the first alone ("very big and red"), nothing behind to the second
    ("black and white striped"), and the article that may be there suits both.
    """
    before = parse.words[place - 2].lower() if place > 1 else ""
    suits = before not in ("a", "an") or before == indefinite_article(parse.words[place + 1])
    around = {upos_at(parse, place - 2), upos_at(parse, place + 2)}
    return suits and around.isdisjoint({"ADV", "ADJ"})


def _are_coordinated(parse: Parse, one: Phrase, other: Phrase) -> bool:
    """Whether "and" joins just these two phrases, and both share the words around them."""
    before, after = upos_at(parse, one[0] - 1), upos_at(parse, other[1])
    if after not in _UPOS_AFTER or not all(is_movable(parse, *phrase) for phrase in (one, other)):
        return False
    if after in ("VERB", "AUX") and parse.tags[other[1]] in ("VBZ", "VBD"):
        return False  # of one of the two, it may be
    if _REFERRING & {word.lower() for word in parse.words[one[0] : other[1]]}:
        return False
    # "A red apple and pears", "red apples and pears": the second shares what the first says.
    own = _has_determiner(parse, other) or other[1] - other[0] > 1 or one[1] - one[0] == 1
    if _has_determiner(parse, one) != _has_determiner(parse, other) or not own:
        return False
    return before in _UPOS_BEFORE or (before == "ADP" and _share_a_group(parse, one, other))


def _has_determiner(parse: Parse, phrase: Phrase) -> bool:
    """Whether a phrase opens with a determiner or a number word."""
    return parse.upos[phrase[0]] in ("DET", "NUM") or parse.words[phrase[0]].lower() in _COUNTS


def _share_a_group(parse: Parse, one: Phrase, other: Phrase) -> bool:
    """Whether the head nouns of two phrases share a group of the lexicon.

    Then a preposition before them governs both.
    """
    groups = []
    for _, end in (one, other):
        word, tag = parse.words[end - 1].lower(), parse.tags[end - 1]
        lemma = load_lexicon().find_lemma(word, "NOUN", tag)
        groups.append(set(lemma.groups) if lemma else set())
    return bool(groups[0] & groups[1])


def _exchange_draft(parse: Parse, one: Phrase, other: Phrase) -> _Draft:
    """Candidate paraphrase that exchanges two coordinated phrases."""
    words = token_text(parse, *one), token_text(parse, *other)
    return _Draft("order", exchange_edits(parse, one, other), words)


def _synonym_drafts(parse: Parse) -> Iterator[_Draft]:
    """Candidate paraphrases that replace a scene-graph element by a synonym of the lexicon."""
    lexicon = load_lexicon()
    said = f" {' '.join(parse.words).lower()} "
    for element in scene_graph(parse).elements:
        old = token_text(parse, element.start, element.end)
        lemma = lexicon.find_lemma(old.lower(), element.upos, element.tag)
        between = upos_at(parse, element.start - 1) in ("NOUN", "PROPN", "AUX")
        if lemma is None or (element.upos == "ADP" and not between):
            continue
        for name in sorted(lexicon.synonyms(lemma)):
            word = lexicon.lemmas[name, lemma.upos].forms.get(element.tag)
            if word and f" {word} " not in said and is_movable(parse, element.start, element.end):
                edits = replacement_edits(parse, (element.start, element.end), word)
                yield _Draft("synonym", edits, (old, edits[-1].text))


def _existential_drafts(parse: Parse) -> Iterator[_Draft]:
    """Candidate paraphrase that puts "there is" before a noun-phrase caption, or removes it.

    A caption with a finite verb of its own stays as it is.
    """
    words = [word.lower() for word in parse.words]
    said = " ".join(words[:2])
    phrases = dict(noun_phrases_of(parse))
    start = 2 if said in ("there is", "there are") else 0
    end = phrases.get(start)
    if end is None or parse.text.isupper() or not _is_new_indefinite(parse, start, end):
        return
    if start:
        new = recapitalise(parse, 0, token_text(parse, 2, 3), parse, 2)
        yield _Draft("there", [Edit(0, 3, new)], (token_text(parse, 0, 2),))
    elif _FINITE.isdisjoint(parse.tags) and _is_followed_by_modifier(parse, words, end):
        some = words[end - 1] in _SOME and words[end : end + 1] == ["of"]
        be = "are" if parse.tags[end - 1] == "NNS" or some else "is"
        opening = f"there {be}"
        if parse.words[0][0].isupper():
            opening = opening.capitalize()
        yield _Draft("there", [Edit(0, 1, f"{opening} {words[0]}")], (opening,))


def _is_new_indefinite(parse: Parse, start: int, end: int) -> bool:
    """Whether "there is" can introduce a phrase: it is indefinite, and no "view" or "photo"."""
    first, last = parse.words[start].lower(), parse.words[end - 1].lower()
    if last in _VIEWS or not is_movable(parse, start, start + 1):
        return False
    one = first in ("a", "an") and parse.tags[end - 1] == "NN"
    many = parse.upos[start] == "NUM" or first in _COUNTS
    return one or (many and first != "one" and parse.tags[end - 1] == "NNS")


def _is_followed_by_modifier(parse: Parse, words: list[str], end: int) -> bool:
    """Whether the words after a noun phrase modify it, rather than begin a clause."""
    if end == len(words) or parse.upos[end] in ("PUNCT", "ADP"):
        # A past participle further on may be the past tense of a clause of its own.
        return "VBN" not in parse.tags or any(word in _PARTICIPLES for word in words)
    return parse.tags[end] == "VBG" or words[end] in _PARTICIPLES
