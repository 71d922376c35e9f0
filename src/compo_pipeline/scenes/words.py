"""The words for what scenes hold. The first of each is the plain one; the others are synonyms."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass

from compo_pipeline.scenes.world import Relation, Thing

THING_WORDS: Mapping[str, tuple[str, ...]] = {
    "ball": ("ball", "disc"),
    "box": ("box", "square"),
    "ring": ("ring", "hoop"),
    "moon": ("moon", "crescent"),
    "house": ("house", "home"),
    "mug": ("mug", "cup"),
    "flower": ("flower", "blossom"),
    "boat": ("boat", "ship"),
    "cross": ("cross", "plus"),
}
COLOUR_WORDS: Mapping[str, tuple[str, ...]] = {
    "cyan": ("cyan", "turquoise"),
    "purple": ("purple", "violet"),
}
SIZE_WORDS: Mapping[str, tuple[str, ...]] = {
    "small": ("small", "tiny", "little"),
    "large": ("large", "big", "huge"),
}
PATTERN_WORDS: Mapping[str, tuple[str, ...]] = {
    "striped": ("striped",),
    "dotted": ("dotted", "spotted"),
}
# A is ... B. The other direction is the inverse relation, so every pair has both readings.
RELATION_WORDS: Mapping[Relation, tuple[str, ...]] = {
    "left": ("to the left of", "left of", "on the left of"),
    "right": ("to the right of", "right of", "on the right of"),
    "above": ("above", "over"),
    "below": ("below", "under", "beneath"),
    "inside": ("inside", "within", "in the middle of"),
    "around": ("around", "surrounding"),
}


def word(table: Mapping[str, tuple[str, ...]], name: str, random_: random.Random | None) -> str:
    """A word for a name: drawn from its synonyms, or the plain one without a generator."""
    words = table.get(name, (name,))
    return random_.choice(words) if random_ else words[0]


def with_article(phrase: str) -> str:
    """The phrase behind `a` or `an`."""
    return f"an {phrase}" if phrase[0] in "aeiou" else f"a {phrase}"


def sentence(text: str) -> str:
    """Text with a capital and a period."""
    return f"{text[0].upper()}{text[1:]}."


@dataclass(frozen=True, slots=True)
class Phrase:
    """What is said of a thing; None is left unsaid."""

    kind: str
    colour: str | None = None
    size: str | None = None
    pattern: str | None = None

    def bare(self, random_: random.Random | None) -> str:
        """The words without an article."""
        words = []
        if self.size:
            words.append(word(SIZE_WORDS, self.size, random_))
        if self.pattern:
            words.append(word(PATTERN_WORDS, self.pattern, random_))
        if self.colour:
            words.append(word(COLOUR_WORDS, self.colour, random_))
        words.append(word(THING_WORDS, self.kind, random_))
        return " ".join(words)

    def indefinite(self, random_: random.Random | None) -> str:
        """The words behind `a` or `an`."""
        return with_article(self.bare(random_))


def describe(
    thing: Thing,
    random_: random.Random,
    *,
    colour: float = 0.92,
    size: float = 0.3,
    pattern: float = 0.5,
) -> Phrase:
    """Choose what to say of a thing: each property with its own probability."""
    return Phrase(
        thing.kind,
        thing.colour if random_.random() < colour else None,
        thing.size if thing.size in SIZE_WORDS and random_.random() < size else None,
        thing.pattern if thing.pattern in PATTERN_WORDS and random_.random() < pattern else None,
    )
