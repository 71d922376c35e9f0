"""The caption lexicon: words of captions with what the language room wants to know of them.

The data file, `resources/language/lexicon.tsv`, was written from general knowledge and never from
the captions it is judged on. Words are lower-case single tokens as spaCy's tokenizer makes them.
"""

from __future__ import annotations

import csv
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable

RESOURCES = files("compo_pipeline") / "resources" / "language"


@dataclass(frozen=True, slots=True)
class Entry:
    """One reading of a word form.

    Attributes:
        word: the form, lower-case.
        upos: its universal part of speech.
        tag: its fine tag (Penn Treebank), which tells forms apart: NN and NNS, VBZ and VBG.
        group: name of its co-hyponyms, None for a word in no group. Members of a group exclude
            one another (dog, cat); those with the same tag can take each other's place.
        antonym: its opposite, a word of the lexicon with the same part of speech, or None.
        certain: whether the word has this reading wherever it stands in a caption. Words like
            "orange", "light" or "watch" are not certain in any of theirs.
    """

    word: str
    upos: str
    tag: str
    group: str | None
    antonym: str | None
    certain: bool


@cache
def load_lexicon() -> tuple[Entry, ...]:
    """All entries of the shipped lexicon; a word with several readings has several."""
    return read_lexicon(RESOURCES / "lexicon.tsv")


def read_lexicon(path: Traversable) -> tuple[Entry, ...]:
    """Entries of a tab-separated file with the fields of `Entry` as its header.

    Raises:
        ValueError: a line lacks a field, holds a word that is not lower-case, or a mark of
            certainty other than yes and no.
    """
    entries = []
    with path.open(encoding="utf-8") as file:
        for number, row in enumerate(csv.DictReader(file, delimiter="\t"), start=2):
            values = [row.get(field) for field in Entry.__slots__]
            word, upos, tag, group, antonym, certain = values
            if not (word and upos and tag) or word != word.lower() or certain not in ("yes", "no"):
                raise ValueError(
                    f"{path}, line {number}: expected a lower-case word, its UPOS and tag, and "
                    f"'yes' or 'no' for certain; got {values}"
                )
            entries.append(Entry(word, upos, tag, group or None, antonym or None, certain == "yes"))
    return tuple(entries)
