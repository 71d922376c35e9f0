"""The caption lexicon: words of captions with their forms, groups, opposites and synonyms.

The data file, `resources/language/lexicon.tsv`, was written from general knowledge and never from
the captions it is judged on. A line is a lemma, lower-case; its forms follow by rule
(`regular_form`) but for the exceptions that the line names. resources/language/README.md
explains the columns.
"""

from __future__ import annotations

import csv
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from importlib.resources import files
from importlib.resources.abc import Traversable

RESOURCES = files("compo_pipeline") / "resources" / "language"

COLUMNS = tuple("lemma upos forms unsure groups weight opposites synonyms also".split())
# The fine tags that the lemmas of a part of speech have forms for.
_PARADIGMS = {
    "NOUN": ("NN", "NNS"),
    "VERB": ("VB", "VBZ", "VBG", "VBD", "VBN"),
    "ADJ": ("JJ",),
    "ADV": ("RB",),
    "ADP": ("IN",),
    "NUM": ("CD",),
}
_SUFFIXES = {"VBG": "ing", "VBD": "ed", "VBN": "ed", "JJR": "er", "JJS": "est"}
_ALL = "all"
_MASS, _BOTH = "mass", "both"
_PRONOUNS = ("he", "she")
_GROUP = "@"
_SIBILANT = re.compile(r"(s|x|z|ch|sh)$")
_CONSONANT_Y = re.compile(r"[^aeiou]y$")
# One syllable that ends in consonant, vowel, consonant: stop, sit, quit; never w, x or y.
_DOUBLES = re.compile(r"^[^aeiou]*(qu)?[aeiou][^aeiouwxy]$")


@dataclass(frozen=True, slots=True)
class Opposite:
    """Reference to an antonym: a lemma that is false where the referring lemma is true.

    It is an alternative only with nouns of these kinds (`scene_graph.kinds`); of any, if empty.
    """

    lemma: str
    kinds: frozenset[str]


@dataclass(frozen=True, slots=True)
class Lemma:
    """A lexicon entry: a base form, its inflected forms, and its synonyms, antonyms, co-hyponyms.

    Attributes:
        name: the base form; may be several words ("fire hydrant", "to the left of").
        upos: universal part of speech.
        forms: form by fine tag (Penn Treebank); a tag that is not here has no form.
        unsure: tags whose form may have another reading in a caption.
        countable: whether it may follow "a" ("dog", "pizza").
        mass: whether it may be in the singular without a determiner ("snow", "pizza").
        pronoun: "he" or "she" for a person who is always one of the two, else empty.
        groups: names of its groups of co-hyponyms. Members of a group exclude one another (dog,
            cat), except those that `synonyms` and `also` name.
        weight: 0 (rare) to 3: how common it is in captions.
        opposites: words that are false where it is true; a relation with a direction.
        synonyms: words of the same meaning.
        also: words that may be true of the same thing at the same time (dog, puppy); "@group" is
            every member of a group.
    """

    name: str
    upos: str
    forms: Mapping[str, str]
    unsure: frozenset[str]
    countable: bool
    mass: bool
    pronoun: str
    groups: tuple[str, ...]
    weight: int
    opposites: tuple[Opposite, ...]
    synonyms: tuple[str, ...]
    also: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Entry:
    """A word form of a single token, with one of its parts of speech and fine tags.

    Attributes:
        word: the form, lower-case.
        upos: universal part of speech.
        tag: fine tag (Penn Treebank), which distinguishes forms: NN and NNS, VBZ and VBG.
        certain: whether the word has this reading everywhere in a caption. Words like
            "orange", "light" or "watch" are not certain in any of theirs.
    """

    word: str
    upos: str
    tag: str
    certain: bool


class Lexicon:
    """The lemmas of a caption lexicon, with look-ups by form, group and meaning."""

    def __init__(self, lemmas: Iterable[Lemma]) -> None:
        self.lemmas = {(lemma.name, lemma.upos): lemma for lemma in lemmas}

    @cached_property
    def entries(self) -> tuple[Entry, ...]:
        """Entries for all word forms that are single tokens: one per part of speech and fine tag.

        A past tense that is spelled as the participle is never certain.
        """
        entries = []
        for lemma in self.lemmas.values():
            for tag, word in lemma.forms.items():
                if " " not in word and "-" not in word:
                    past = tag == "VBD" and word == lemma.forms.get("VBN")
                    certain = tag not in lemma.unsure and not past
                    entries.append(Entry(word, lemma.upos, tag, certain))
        return tuple(entries)

    def find_lemma(self, word: str, upos: str, tag: str) -> Lemma | None:
        """The most common lemma with this lower-case form, part of speech and fine tag, or None."""
        return self._lemmas_by_form.get((word, upos, tag))

    @cached_property
    def longest_prepositions(self) -> dict[str, int]:
        """Mapping from a first word to the word count of the longest preposition that it begins."""
        longest: dict[str, int] = {}
        for name, upos in self.lemmas:
            if upos == "ADP":
                first, *rest = name.split()
                longest[first] = max(longest.get(first, 0), 1 + len(rest))
        return longest

    def group(self, name: str, upos: str) -> tuple[Lemma, ...]:
        """The lemmas of a group of co-hyponyms, in the order of the lexicon file."""
        return self._lemmas_by_group.get((name, upos), ())

    def synonyms(self, lemma: Lemma) -> frozenset[str]:
        """Names of a lemma's synonyms, without the lemma itself."""
        return self._synonym_sets.get((lemma.name, lemma.upos), frozenset())

    def compatible(self, lemma: Lemma) -> frozenset[str]:
        """Names of lemmas that may be true of the same thing as a lemma, such as its synonyms.

        They are itself, its synonyms, and what `also` says of any of them, in either direction.
        """
        same = {lemma.name} | self.synonyms(lemma)
        return frozenset(same).union(
            *(self._compatible_pairs.get((name, lemma.upos), ()) for name in same)
        )

    @cached_property
    def _lemmas_by_form(self) -> dict[tuple[str, str, str], Lemma]:
        """Mapping from form, part of speech and fine tag to the most common lemma that has them."""
        found: dict[tuple[str, str, str], Lemma] = {}
        for lemma in sorted(self.lemmas.values(), key=lambda lemma: -lemma.weight):
            for tag, word in lemma.forms.items():
                found.setdefault((word, lemma.upos, tag), lemma)
        return found

    @cached_property
    def _lemmas_by_group(self) -> dict[tuple[str, str], tuple[Lemma, ...]]:
        """Mapping from group name and part of speech to the lemmas of the group."""
        members: dict[tuple[str, str], list[Lemma]] = defaultdict(list)
        for lemma in self.lemmas.values():
            for name in lemma.groups:
                members[name, lemma.upos].append(lemma)
        return {key: tuple(group) for key, group in members.items()}

    @cached_property
    def _synonym_sets(self) -> dict[tuple[str, str], frozenset[str]]:
        """Mapping from a lemma to its synonyms.

        Synonym sets with a common member are merged.
        """
        sets: dict[tuple[str, str], set[str]] = {}
        for lemma in self.lemmas.values():
            if lemma.synonyms:
                names = {lemma.name, *lemma.synonyms}
                merged = names.union(*(sets.get((name, lemma.upos), ()) for name in names))
                sets.update({(name, lemma.upos): merged for name in merged})
        return {key: frozenset(names - {key[0]}) for key, names in sets.items()}

    @cached_property
    def _compatible_pairs(self) -> dict[tuple[str, str], set[str]]:
        """Mapping from a lemma to lemmas that may be true of the same thing (column `also`)."""
        also: dict[tuple[str, str], set[str]] = defaultdict(set)
        for lemma in self.lemmas.values():
            for named in lemma.also:
                group = self.group(named.removeprefix(_GROUP), lemma.upos)
                names = [one.name for one in group] if named.startswith(_GROUP) else [named]
                for name in names:
                    also[lemma.name, lemma.upos].add(name)
                    also[name, lemma.upos].add(lemma.name)
        return also


@cache
def load_lexicon() -> Lexicon:
    """The caption lexicon that the package ships, read once per process."""
    return read_lexicon(RESOURCES / "lexicon.tsv")


def read_lexicon(path: Traversable) -> Lexicon:
    """The lexicon of a tab-separated file with the header `COLUMNS`.

    Raises:
        ValueError: a line cannot be read, or names a lemma that has no line.
    """
    with path.open(encoding="utf-8") as file:
        lemmas = []
        for number, row in enumerate(csv.DictReader(file, delimiter="\t"), start=2):
            try:
                lemmas.append(_read_lemma({name: row[name] or "" for name in COLUMNS}))
            except (KeyError, ValueError) as error:
                raise ValueError(
                    f"{path}, line {number}: expected the columns {', '.join(COLUMNS)} as "
                    f"README.md beside it tells; got {list(row.values())} ({error})"
                ) from error
    _check_references(lemmas, path)
    return Lexicon(lemmas)


def _read_lemma(row: dict[str, str]) -> Lemma:
    """Lemma from one row of the lexicon file."""
    name, upos = row["lemma"], row["upos"]
    if not name or name != name.lower() or upos not in _PARADIGMS:
        raise ValueError("no lower-case lemma with a part of speech")
    flags = set(row["forms"].split())
    forms = _inflected_forms(name, upos, flags)
    unsure = forms.keys() if row["unsure"] == _ALL else set(row["unsure"].split())
    if unsure - forms.keys():
        raise ValueError(f"unsure of forms that do not exist: {sorted(unsure - forms.keys())}")
    opposites = (part.split("/") for part in _split_commas(row["opposites"]))
    weight = row["weight"] or "0"
    if weight not in "0123":
        raise ValueError("a weight is 0 to 3")
    return Lemma(
        name,
        upos,
        forms,
        frozenset(unsure),
        "NNS" in forms and _MASS not in flags,
        bool({_MASS, _BOTH} & flags) or (upos == "NOUN" and "NNS" not in forms),
        next((one for one in _PRONOUNS if one in flags), ""),
        tuple(row["groups"].split()),
        int(weight),
        tuple(Opposite(other, frozenset(kinds)) for other, *kinds in opposites),
        tuple(_split_commas(row["synonyms"])),
        tuple(_split_commas(row["also"])),
    )


def _inflected_forms(name: str, upos: str, given: set[str]) -> dict[str, str]:
    """Inflected forms by fine tag: regular, irregular (`TAG=form`) or left out (`-TAG`)."""
    irregular = dict(part.split("=") for part in given if "=" in part)
    missing = {part[1:] for part in given if part.startswith("-")}
    known = _PARADIGMS[upos]
    if unknown := (irregular.keys() | missing) - set(known):
        raise ValueError(f"{upos} has no forms {sorted(unknown)}")
    return {tag: irregular.get(tag, regular_form(name, tag)) for tag in known if tag not in missing}


def _split_commas(cell: str) -> list[str]:
    """Stripped, non-empty values of a comma-separated cell of the lexicon file."""
    return [part.strip() for part in cell.split(",") if part.strip()]


def _check_references(lemmas: list[Lemma], path: Traversable) -> None:
    """Raise an error if a lemma occurs twice, or if a referenced lemma or group does not exist."""
    known = {(lemma.name, lemma.upos) for lemma in lemmas}
    if len(known) < len(lemmas):
        names = [(lemma.name, lemma.upos) for lemma in lemmas]
        twice = sorted({name for name in names if names.count(name) > 1})
        raise ValueError(f"{path}: lemmas on more than one line: {twice}")
    groups = {(_GROUP + group, lemma.upos) for lemma in lemmas for group in lemma.groups}
    for lemma in lemmas:
        named = {*lemma.synonyms, *lemma.also, *(one.lemma for one in lemma.opposites)}
        if missing := sorted(name for name in named if (name, lemma.upos) not in known | groups):
            raise ValueError(f"{path}: {lemma.name} ({lemma.upos}) names unknown lemmas {missing}")


def regular_form(lemma: str, tag: str) -> str:
    """Inflected form of a lemma for a fine tag, by the regular rules of spelling.

    Args:
        lemma: lower-case; of several words the last one is inflected.
        tag: a fine tag (Penn Treebank): NN, NNS, VB, VBZ, VBG, VBD, VBN, JJ, JJR, JJS, or any
            other, which leaves the word as it is.
    """
    if tag in ("NNS", "VBZ"):
        return _add_s(lemma)
    return _add_suffix(lemma, _SUFFIXES[tag]) if tag in _SUFFIXES else lemma


def _add_s(word: str) -> str:
    """A word with -s, -es or -ies: a noun's plural, or a verb's third person."""
    if _SIBILANT.search(word):
        return word + "es"
    return word[:-1] + "ies" if _CONSONANT_Y.search(word) else word + "s"


def _add_suffix(word: str, suffix: str) -> str:
    """A word with the suffix -ing, -ed, -er or -est, by the regular rules of spelling."""
    if suffix == "ing" and word.endswith("ie"):
        return word[:-2] + "ying"
    if suffix != "ing" and _CONSONANT_Y.search(word):
        return word[:-1] + "i" + suffix
    if word.endswith("e") and (suffix != "ing" or not word.endswith(("ee", "oe", "ye"))):
        return word[:-1] + suffix
    return word + word[-1] + suffix if _DOUBLES.match(word) else word + suffix
