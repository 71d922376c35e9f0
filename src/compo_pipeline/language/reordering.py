"""Hard negatives by word order: NegCLIP's exchanged phrases and FSC-CLIP's shuffled word pairs.

Sources: "When and Why Vision-Language Models Behave like Bags-of-Words, and What to Do About It?",
Sec. 4, as FSC-CLIP uses it: drawn afresh each time a caption is seen; "FSC-CLIP", App. A.1.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Sequence
from itertools import combinations

from compo_pipeline.core.records import Parse
from compo_pipeline.language import sense
from compo_pipeline.language.editing import (
    Edit,
    Generated,
    Phrase,
    apply_edits,
    exchange_edits,
    fold_case,
    is_movable,
    is_separator,
    noun_phrases_of,
    recapitalise,
    token_text,
)

_TAGS = ("NN", "NNS")
_UPOS = ("ADJ", "ADV")
NOUN_PHRASE, VERB_PHRASE = "noun phrase", "verb phrase"
_LEAST_TOKENS = 3  # of a noun phrase: shorter ones are nouns with a determiner at most
# VERB? ADV* AUX* VERB+, over one letter a token.
_LETTERS = {"VERB": "v", "ADV": "r", "AUX": "x"}
_VERBS = re.compile("v?r*x*v+")
_TRIES = 10
_MARKS = frozenset({"PUNCT", "SPACE"})
_APOSTROPHES = frozenset("'’")  # they belong to the word: "dogs' bowls"


def swap_phrases(parse: Parse, rng: random.Random, *, careful: bool = False) -> Generated | None:
    """Exchange two different phrases of one kind, such as two adjectives (NegCLIP).

    The kinds: singular nouns (tag NN), plural ones (NNS), adjectives, adverbs, noun phrases of more
    than two tokens, verb phrases. One kind is drawn of those that have a pair, then a pair.

    Args:
        parse: the caption.
        rng: random state.
        careful: leave pairs out that make broken English, or a caption as true as before: a
            departure from the paper (`sense`).

    Returns:
        None where no kind has two different phrases.
    """
    candidates = {
        name: list(_phrase_pairs(parse, found, careful))
        for name, found in _phrases_by_kind(parse).items()
    }
    while kinds := [name for name, pairs in candidates.items() if pairs]:
        kind = rng.choice(kinds)
        one, other = candidates[kind].pop(rng.randrange(len(candidates[kind])))
        text = apply_edits(parse, exchange_edits(parse, one, other))
        # Different phrases can still read the same after it: "red red", "red".
        if fold_case(text) != fold_case(parse.text):
            words = (token_text(parse, *one), token_text(parse, *other))
            return Generated(text, "negclip", kind, words)
    return None


def _phrases_by_kind(parse: Parse) -> dict[str, list[Phrase]]:
    """Token spans of movable phrases by kind: noun tag, ADJ, ADV, noun phrase, verb phrase."""
    found: dict[str, list[Phrase]] = {name: [] for name in (*_TAGS, *_UPOS)}
    for place, (tag, upos) in enumerate(zip(parse.tags, parse.upos, strict=True)):
        for name in {tag, upos} & found.keys():
            found[name].append((place, place + 1))
    found[NOUN_PHRASE] = [
        (start, end) for start, end in noun_phrases_of(parse) if end - start >= _LEAST_TOKENS
    ]
    letters = "".join(_LETTERS.get(upos, " ") for upos in parse.upos)
    found[VERB_PHRASE] = [match.span() for match in _VERBS.finditer(letters)]
    return {
        name: [phrase for phrase in phrases if is_movable(parse, *phrase)]
        for name, phrases in found.items()
    }


def _phrase_pairs(
    parse: Parse, phrases: list[Phrase], careful: bool
) -> Iterator[tuple[Phrase, Phrase]]:
    """Pairs of phrases with different texts, if careful only those that can be exchanged."""
    if careful:
        units = (sense.movable_unit(parse, phrase) for phrase in phrases)
        phrases = [unit for unit in units if unit and is_movable(parse, *unit)]
    keys = {phrase: fold_case(token_text(parse, *phrase)) for phrase in phrases}
    for one, other in combinations(phrases, 2):
        if keys[one] != keys[other] and (not careful or sense.can_exchange(parse, one, other)):
            yield one, other


def shuffle_bigrams(parse: Parse, rng: random.Random) -> Generated | None:
    """Shuffle a caption's consecutive pairs of words (FSC-CLIP).

    An odd word at the end moves as a pair does; a last period stays last.

    Returns:
        None where there are fewer than two pairs, or ten permutations leave the text as it is.
    """
    words = list(_space_separated_words(parse))
    pairs = [words[start : start + 2] for start in range(0, len(words), 2)]
    shuffled = pairs.copy()
    for _ in range(_TRIES if len(pairs) > 1 else 0):
        rng.shuffle(shuffled)
        text = _rearrange(parse, words, [word for pair in shuffled for word in pair])
        if fold_case(text) != fold_case(parse.text):
            parted = [pair for pair, now in zip(pairs, shuffled, strict=True) if pair != now]
            taken = tuple(token_text(parse, pair[0][0], pair[-1][1]) for pair in parted)
            return Generated(text, "bigram", "pairs", taken)
    return None


def _rearrange(parse: Parse, places: Sequence[Phrase], words: Sequence[Phrase]) -> str:
    """Text with words moved to other words' positions."""
    edits = []
    for place, word in zip(places, words, strict=True):
        text = token_text(parse, *word)
        if fold_case(text) != fold_case(token_text(parse, *place)):
            edits.append(Edit(*place, recapitalise(parse, place[0], text, parse, word[0])))
    return apply_edits(parse, edits)


def _space_separated_words(parse: Parse) -> Iterator[Phrase]:
    """Token spans of the words between spaces, without punctuation at their ends."""
    start = 0
    for end in range(1, len(parse.words) + 1):
        if end < len(parse.words) and not _is_after_space(parse, end):
            continue
        first, last = start, end
        while first < last and _is_punctuation(parse, first):
            first += 1
        while first < last and _is_punctuation(parse, last - 1):
            last -= 1
        if first < last:
            yield first, last
        start = end


def _is_after_space(parse: Parse, place: int) -> bool:
    """Whether a space separates a token from the one before it."""
    before = parse.words[place - 1]
    gap = parse.offsets[place] > parse.offsets[place - 1] + len(before)
    return gap or before.isspace() or parse.words[place].isspace()


def _is_punctuation(parse: Parse, place: int) -> bool:
    """Whether a token is punctuation.

    Apostrophes count as parts of words.
    """
    word = parse.words[place]
    return parse.upos[place] in _MARKS and word not in _APOSTROPHES and all(map(is_separator, word))
