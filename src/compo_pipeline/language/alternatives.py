"""Words that may replace a word of a caption: from the caption lexicon, or from WordNet.

Source: "FSC-CLIP", App. A.1, which draws co-hyponyms and antonyms from WordNet, through nltk, where
the user has installed both: by the rule of the authors' code. Prepositions, which WordNet does not
hold, and irregular forms come from the lexicon.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from compo_pipeline.core.settings import SettingsError, pip_install
from compo_pipeline.language.lexicon import Lemma, load_lexicon, regular_form
from compo_pipeline.language.scene_graph import MODIFYING

if TYPE_CHECKING:
    from nltk.corpus.reader.wordnet import WordNetCorpusReader

ReplacementSource = Literal["lexicon", "wordnet_cousins"]
"""Where replacements come from: the shipped lexicon, or WordNet through nltk, by the rule of
FSC-CLIP's code."""

_POS = {"NOUN": "n", "VERB": "v", "ADJ": "a", "PROPN": "n", "PRON": "n", "ADV": "r"}
_PREPOSITIONS = frozenset("at by de for from in of on to with".split())
_PLURAL = re.compile(r"[^sui]s$")


class Alternative(NamedTuple):
    """A word form that may replace another word, with its sampling weight.

    Of a singular noun also: whether it can follow "a" (`countable`) or have no determiner (`mass`).
    """

    word: str
    weight: int
    countable: bool = True
    mass: bool = True


Source = Callable[[str, str, str, frozenset[str]], Sequence[Alternative]]
"""Gives forms with the same tag that cannot be true of the same thing: of a word (one or several in
lower case), its part of speech, its fine tag, and the conditions of `scene_graph.Element`."""


@lru_cache(maxsize=20_000)
def lexicon_alternatives(
    word: str, upos: str, tag: str, conditions: frozenset[str]
) -> tuple[Alternative, ...]:
    """Words that may replace a word, from the caption lexicon: co-hyponyms and antonyms."""
    lemma = load_lexicon().find_lemma(word, upos, tag)
    if lemma is None:
        return ()
    # "his" in the caption excludes "woman".
    unfit = {"he", "she"} - conditions if {"he", "she"} & conditions else set()
    found = {
        one.name: one
        for one in _exclusive_lemmas(lemma, conditions)
        if tag in one.forms and one.pronoun not in unfit
    }
    return tuple(
        Alternative(one.forms[tag], 3**one.weight, one.countable, one.mass)
        for one in found.values()
    )


def _exclusive_lemmas(lemma: Lemma, conditions: Set[str]) -> Iterator[Lemma]:
    """Lemmas that cannot be true of the same thing as a lemma: co-hyponyms and antonyms."""
    lexicon = load_lexicon()
    compatible = lexicon.compatible(lemma)
    for group in lemma.groups:
        if _group_fits(lemma.upos, group, conditions):
            for one in lexicon.group(group, lemma.upos):
                if one.name not in compatible:
                    yield one
    for opposite in lemma.opposites:
        wanted = opposite.kinds or ({"transitive"} if lemma.upos == "VERB" else set())
        if not wanted or wanted & conditions:
            yield lexicon.lemmas[opposite.lemma, lemma.upos]


def _group_fits(upos: str, group: str, conditions: Set[str]) -> bool:
    """Whether the words of a lexicon group fit the conditions of a replaced element's context.

    Groups of verbs are named by what follows them (transitive, intransitive) or who does it
    (animate), some of adjectives by what they are said of (place).
    """
    area, dot, _ = group.partition(".")
    if upos == "VERB" or (upos == "ADJ" and dot):
        return area in conditions
    return "before" not in conditions or group in MODIFYING


def open_wordnet(key: str) -> WordNetCorpusReader:
    """The WordNet corpus reader of nltk.

    An error tells how to install it.

    Args:
        key: the YAML key that asks for it, for errors.

    Raises:
        SettingsError: nltk or its corpus is not installed.
    """
    instead = f"or set {key} to lexicon"
    try:
        from nltk.corpus import wordnet
    except ImportError as error:
        raise SettingsError(
            f"{key} is wordnet_cousins, and nltk is not installed: "
            f"{pip_install('wordnet')}, "
            f"then python -m nltk.downloader wordnet; {instead}"
        ) from error
    try:
        wordnet.ensure_loaded()
    except LookupError as error:
        raise SettingsError(
            f"{key} is wordnet_cousins, and nltk finds no WordNet: "
            f"python -m nltk.downloader wordnet, {instead}"
        ) from error
    return wordnet  # nltk loads the reader into its place


class WordNetCousins:
    """Source of replacement words as in FSC-CLIP's code: WordNet's antonyms, siblings and cousins.

    Those of every sense of a word.

    Cousins share a grandparent among the hypernyms; those of an adjective are found through the
    nouns that it is derived from. Each counts as often as WordNet met it, at least once; names of
    the word's own senses are left out. Any other preposition replaces a preposition; numbers are
    left as they are.
    """

    def __init__(self, reader: WordNetCorpusReader) -> None:
        self._reader = reader
        self.alternatives = lru_cache(maxsize=20_000)(self._alternatives)
        self._cousins = lru_cache(maxsize=20_000)(lambda sense: tuple(_cousins(sense)))

    def _alternatives(
        self, word: str, upos: str, tag: str, conditions: frozenset[str]
    ) -> tuple[Alternative, ...]:
        """Antonyms, siblings and cousins of all senses of a word, inflected for a fine tag."""
        del conditions
        if upos == "ADP":
            return tuple(
                Alternative(lemma.name, 3**lemma.weight)
                for (name, kind), lemma in load_lexicon().lemmas.items()
                if kind == upos and name != word
            )
        if upos not in _POS:
            return ()
        senses = self._reader.synsets(word.replace(" ", "_"), _POS[upos])
        own = {lemma for sense in senses for lemma in sense.lemmas()}
        weights: Counter[str] = Counter()
        for sense in senses:
            for lemma in (*_antonyms(sense), *self._cousin_lemmas(sense)):
                if lemma not in own:
                    weights[lemma.name().replace("_", " ")] += max(lemma.count(), 1)
        return tuple(_inflect_all(weights, upos, tag))

    def _cousin_lemmas(self, sense: Any) -> Iterator[Any]:
        """WordNet lemmas of a sense's siblings and cousins, for adjectives by derived nouns."""
        if sense.pos() not in "as":
            yield from self._cousins(sense)
            return
        nouns = {
            derived.synset(): None
            for lemma in sense.lemmas()
            for derived in lemma.derivationally_related_forms()
            if derived.synset().pos() == "n"
        }
        for noun in nouns:
            for lemma in self._cousins(noun):
                for derived in lemma.derivationally_related_forms():
                    if derived.synset() != sense and derived.synset().pos() in "as":
                        yield derived


def _inflect_all(weights: Mapping[str, int], upos: str, tag: str) -> Iterator[Alternative]:
    """Alternatives from WordNet names, inflected for a fine tag.

    Names without that form are dropped.
    """
    for name, weight in weights.items():
        lemma = load_lexicon().lemmas.get((name, upos))
        if form := lemma.forms.get(tag) if lemma else _inflect(name, upos, tag):
            yield Alternative(form, weight)


def _inflect(name: str, upos: str, tag: str) -> str | None:
    """Inflected form of a WordNet lemma missing in the lexicon, or None if it has no such form.

    Of several words the head is inflected: a verb's first ("blowing up"), a noun's before its
    preposition ("mothers of pearl") or last. A plural has no singular ("widow's weeds").
    """
    words = name.split()
    if upos not in ("NOUN", "VERB") or len(words) == 1:
        return regular_form(name, tag)
    head = 0
    if upos == "NOUN":
        within = (place for place in range(1, len(words)) if words[place] in _PREPOSITIONS)
        head = next(within, len(words)) - 1
    lemma = load_lexicon().lemmas.get((words[head], upos))
    if upos == "NOUN" and lemma is None and _PLURAL.search(words[head]):
        return name if tag == "NNS" else None
    form = lemma.forms.get(tag) if lemma else regular_form(words[head], tag)
    return " ".join([*words[:head], form, *words[head + 1 :]]) if form else None


def _antonyms(synset: Any) -> Iterator[Any]:
    """WordNet lemmas that are antonyms of a synset's lemmas."""
    for lemma in synset.lemmas():
        yield from lemma.antonyms()


def _cousins(synset: Any) -> Iterator[Any]:
    """WordNet lemmas of synsets with a common grandparent, repeated for each common grandparent."""
    for parent in synset.hypernyms():
        for grandparent in parent.hypernyms():
            for uncle in grandparent.hyponyms():
                for cousin in uncle.hyponyms():
                    if cousin != synset:
                        yield from cousin.lemmas()
