"""Parser of the sentences that `captions` writes: the claims that words make about a scene.

The grammar is closed, and a thing's kind identifies it: no scene has two of one kind. Other
sentences are not parsed, not even in part.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from compo_scenes.captions import (
    COLOUR_WORDS,
    CONTAINED,
    JOINED,
    PATTERN_WORDS,
    RELATED,
    RELATION_WORDS,
    SINGLE,
    SIZE_WORDS,
    THING_WORDS,
    THIRD,
    sentence,
)
from compo_scenes.world import (
    BACKGROUNDS,
    COLOURS,
    INVERSE,
    THINGS,
    Scene,
    place,
    relation,
)

Field = Literal["kind", "colour", "size", "pattern", "relation", "place", "background"]


@dataclass(frozen=True, slots=True)
class WordClaim:
    """One claim of a caption: the words from `start` to `end` say that `field` is `value`.

    `kinds` names the thing, or the two things of a relation; empty for the background. A relation
    that the whole frame expresses ("contains") has no words of its own: start is end.
    """

    start: int
    end: int
    field: Field
    value: str
    kinds: tuple[str, ...]

    def holds(self, scene: Scene) -> bool:
        """Whether the claim is true of a scene."""
        if self.field == "background":
            return scene.background == self.value
        shown = {thing.kind: thing for thing in scene.things}
        things = [shown[kind] for kind in self.kinds if kind in shown]
        if len(things) < len(self.kinds):
            return False
        if self.field == "relation":
            return relation(*things) == self.value
        if self.field == "place":
            return self.value in (place(things[0], scene) or ("middle",))
        return bool(getattr(things[0], self.field) == self.value)


@dataclass(frozen=True, slots=True)
class ParsedCaption:
    """A caption's sentence with all its claims about the scene.

    Attributes:
        text: the sentence without capital and period.
        words: the claims; of each thing, the kind first.
        mentions: start and end of each phrase that names a thing, its article included.
    """

    text: str
    words: tuple[WordClaim, ...]
    mentions: tuple[tuple[int, int], ...]

    @property
    def kinds(self) -> tuple[str, ...]:
        """Kinds of the named things, in the order of the sentence."""
        return tuple(word.value for word in self.words if word.field == "kind")

    @property
    def claims(self) -> frozenset[tuple[str, ...]]:
        """Claims in a normal form that is independent of wording.

        `a above b` equals `b below a`.
        """
        return frozenset(_normal_form(word) for word in self.words)

    def holds(self, scene: Scene) -> bool:
        """Whether all claims of the caption are true of a scene."""
        return all(word.holds(scene) for word in self.words)

    def of_field(self, field: Field) -> list[WordClaim]:
        """Claims of the caption about one field, such as colour."""
        return [word for word in self.words if word.field == field]

    def reworded(self, claim: WordClaim, words: str) -> str:
        """The sentence with the words of one claim replaced."""
        return self.with_changes([(claim.start, claim.end, words)])

    def with_changes(self, changes: Iterable[tuple[int, int, str]]) -> str:
        """The sentence with spans of characters replaced, and articles adapted."""
        text = self.text
        for start, end, words in sorted(changes, reverse=True):
            text = text[:start] + words + text[end:]
        return sentence(_ARTICLE.sub(_fitting_article, text))


def _normal_form(word: WordClaim) -> tuple[str, ...]:
    """Normal form of a claim: relations only as left, above and inside, as a tuple."""
    if word.field == "relation" and word.value in ("right", "below", "around"):
        return (word.field, INVERSE[word.value], *reversed(word.kinds))
    return (word.field, word.value, *word.kinds)


_ARTICLE = re.compile(r"\ban? (?=([a-z]))")


def _fitting_article(match: re.Match[str]) -> str:
    """Article "a" or "an" for a regular expression's match, by the letter that follows."""
    return "an " if match[1] in "aeiou" else "a "


def _names_by_word(names: Iterable[str], words: Mapping[str, Sequence[str]]) -> dict[str, str]:
    """Mapping from each word to the name that it stands for."""
    return {word: name for name in names for word in words.get(name, (name,))}


_OF_FIELD: dict[Field, dict[str, str]] = {
    "kind": _names_by_word(THINGS, THING_WORDS),
    "colour": _names_by_word(COLOURS, COLOUR_WORDS),
    "size": _names_by_word(SIZE_WORDS, SIZE_WORDS),
    "pattern": {**_names_by_word(PATTERN_WORDS, PATTERN_WORDS), "plain": "solid"},
    "relation": {word: name for name, words in RELATION_WORDS.items() for word in words},
    "place": {"in the middle": "middle"} | {n: n for n in ("left", "right", "top", "bottom")},
    "background": {name: name for name in BACKGROUNDS},
}
_ANY = {
    # The longest first: "left of" is a part of "to the left of".
    field: f"(?P<{field}>{'|'.join(sorted(words, key=len, reverse=True))})"
    for field, words in _OF_FIELD.items()
}
_MENTION = re.compile(
    rf"\b(?:an?|the) (?:{_ANY['size']} )?(?:{_ANY['pattern']} )?(?:{_ANY['colour']} )?"
    rf"{_ANY['kind']}\b"
)
_M = "#++"  # a mention, masked letter by letter


def _clause_patterns(*clauses: str) -> list[re.Pattern[str]]:
    """Regular expressions of clauses with an optional third thing and background."""
    third = "|".join(frame.format(c=_M) for frame in THIRD)
    backdrop = f" (?:on|against) a {_ANY['background']} background"
    return [re.compile(f"(?:{clause})(?:{third})?(?:{backdrop})?") for clause in clauses]


def _frames() -> Iterator[tuple[re.Pattern[str], str]]:
    """Regular expressions of all sentence forms, each with the relation that the form implies."""
    plain = "|".join(frame.format(a=_M, b=_M) for frame in (*SINGLE, *JOINED))
    spoken = [frame.format(a=_M, r=_ANY["relation"], b=_M) for frame in RELATED]
    for pattern in _clause_patterns(plain, *spoken):
        yield pattern, ""
    for frame in CONTAINED:
        (pattern,) = _clause_patterns(frame.format(a=_M, b=_M))
        yield pattern, "inside" if frame.index("{a}") < frame.index("{b}") else "around"
    looks = f"(?:{_ANY['size']}|{_ANY['pattern']})"
    for detail in (
        rf"{_M} is {_ANY['colour']}",
        rf"the color of {_M} is {_ANY['colour']}",
        rf"the {_ANY['colour']} one is {_M}",
        rf"one of the things is {_M}",
        rf"{_M} (?:is|looks) {looks}",
        rf"it shows {_M}",
        rf"{_M} is (?:placed )?(?:on|at) the (?P<place>left|right|top|bottom)(?: side)?",
        rf"{_M} is (?:placed )?(?P<place>in the middle)",
        rf"the background is {_ANY['background']}",
        rf"the wall behind is {_ANY['background']}",
        rf"everything is on a {_ANY['background']} background",
    ):
        yield re.compile(detail), ""


_FRAMES = tuple(_frames())


def read(caption: str) -> ParsedCaption | None:
    """Parse a sentence into its claims, or None for a sentence outside the grammar."""
    if not caption[:1].isupper() or not caption.endswith("."):
        return None
    text = caption[0].lower() + caption[1:-1]
    words: list[WordClaim] = []
    mentions = []
    masked = text
    for match in _MENTION.finditer(text):
        kind = _OF_FIELD["kind"][match["kind"]]
        words += _claims_of_match(match, ("kind", "colour", "size", "pattern"), (kind,))
        mentions.append(match.span())
        start, end = match.span()
        masked = f"{masked[:start]}{'#' * (end - start)}{masked[end:]}"
    kinds = tuple(word.value for word in words if word.field == "kind")
    if len(set(kinds)) < len(kinds):
        return None
    for pattern, silent in _FRAMES:
        if found := pattern.fullmatch(masked):
            words += _claims_of_match(found, ("relation",), kinds[:2])
            words += _claims_of_match(found, ("colour", "size", "pattern", "place"), kinds[:1])
            words += _claims_of_match(found, ("background",), ())
            if silent:
                words.append(WordClaim(0, 0, "relation", silent, kinds[:2]))
            return ParsedCaption(text, tuple(words), tuple(mentions))
    return None


def _claims_of_match(
    match: re.Match[str], fields: Sequence[Field], kinds: tuple[str, ...]
) -> list[WordClaim]:
    """Claims from the named groups of a regular expression's match."""
    groups = match.groupdict()
    return [
        WordClaim(*match.span(field), field, _OF_FIELD[field][groups[field]], kinds)
        for field in fields
        if groups.get(field)
    ]
