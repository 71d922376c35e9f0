"""NegCLIP's hard negatives: two phrases of one kind change places within a caption.

Source: "When and Why Vision-Language Models Behave like Bags-of-Words, and What to Do About It?",
Sec. 4, as FSC-CLIP (App. A.1) uses it: drawn afresh at each sight of a caption.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from itertools import combinations

from compo_pipeline.language import sense
from compo_pipeline.language.editing import exchanged, key, movable, written
from compo_pipeline.language.generated import Generated
from compo_pipeline.language.sense import Phrase
from compo_pipeline.records import Parse

_TAGS = ("NN", "NNS")
_UPOS = ("ADJ", "ADV")
NOUN_PHRASE, VERB_PHRASE = "noun phrase", "verb phrase"
_LEAST_TOKENS = 3  # of a noun phrase: shorter ones are nouns with a determiner at most
# VERB? ADV* AUX* VERB+, over one letter a token.
_LETTERS = {"VERB": "v", "ADV": "r", "AUX": "x"}
_VERBS = re.compile("v?r*x*v+")


def swap_phrases(parse: Parse, rng: random.Random, *, careful: bool = False) -> Generated | None:
    """Exchange two different phrases of one kind that do not overlap.

    The kinds: singular nouns (tag NN), plural ones (NNS), adjectives, adverbs, noun phrases of more
    than two tokens, verb phrases. One kind is drawn of those that have a pair, then a pair.

    Args:
        parse: the caption.
        rng: decides.
        careful: leave pairs out that make broken English, or a caption as true as before: a
            departure from the paper (`sense`).

    Returns:
        None where no kind has two different phrases.
    """
    candidates = {
        name: list(_pairs(parse, found, careful)) for name, found in _phrases(parse).items()
    }
    while kinds := [name for name, pairs in candidates.items() if pairs]:
        kind = rng.choice(kinds)
        one, other = candidates[kind].pop(rng.randrange(len(candidates[kind])))
        text, spans = exchanged(parse, one, other)
        # Different phrases can still read the same after it: "red red", "red".
        if key(text) != key(parse.text):
            words = (written(parse, *one), written(parse, *other))
            return Generated(text, "negclip", kind, words, spans)
    return None


def _phrases(parse: Parse) -> dict[str, list[Phrase]]:
    """Phrases by kind, those that can leave their place alone."""
    found: dict[str, list[Phrase]] = {name: [] for name in (*_TAGS, *_UPOS)}
    for place, (tag, upos) in enumerate(zip(parse.tags, parse.upos, strict=True)):
        for name in {tag, upos} & found.keys():
            found[name].append((place, place + 1))
    bounds = parse.noun_phrases
    found[NOUN_PHRASE] = [
        (start, end)
        for start, end in zip(bounds[::2], bounds[1::2], strict=True)
        if end - start >= _LEAST_TOKENS
    ]
    letters = "".join(_LETTERS.get(upos, " ") for upos in parse.upos)
    found[VERB_PHRASE] = [match.span() for match in _VERBS.finditer(letters)]
    return {
        name: [phrase for phrase in phrases if movable(parse, *phrase)]
        for name, phrases in found.items()
    }


def _pairs(parse: Parse, phrases: list[Phrase], careful: bool) -> Iterator[tuple[Phrase, Phrase]]:
    """Pairs of different phrases; those of one kind never overlap."""
    if careful:
        units = (sense.unit(parse, phrase) for phrase in phrases)
        phrases = [unit for unit in units if unit and movable(parse, *unit)]
    keys = {phrase: key(written(parse, *phrase)) for phrase in phrases}
    for one, other in combinations(phrases, 2):
        if keys[one] != keys[other] and (not careful or _makes_sense(parse, one, other)):
            yield one, other


def _makes_sense(parse: Parse, one: Phrase, other: Phrase) -> bool:
    return sense.fits(parse, one, parse, other) and not sense.says_the_same(parse, one, other)
