"""A slow, independent reader of scene captions: sentences back to claims, claims against a scene.

Vocabulary and grammar are written out here anew; nothing is taken from the code that makes the
sentences.
"""

import re
from collections.abc import Callable, Iterable

import pytest

from compo_scenes.world import Scene, Thing


def by_word(names: dict[str, str]) -> dict[str, str]:
    """From `{name: "word|word"}` to `{word: name}`."""
    return {word: name for name, words in names.items() for word in words.split("|")}


KINDS = by_word(
    {
        **{name: name for name in ("star", "heart", "tree", "fish", "key", "cloud", "arrow")},
        "ball": "ball|disc",
        "box": "box|square",
        "ring": "ring|hoop",
        "moon": "moon|crescent",
        "house": "house|home",
        "mug": "mug|cup",
        "flower": "flower|blossom",
        "boat": "boat|ship",
        "cross": "cross|plus",
    }
)
COLOURS = by_word(
    {
        **{name: name for name in ("red", "yellow", "green", "blue", "pink", "brown")},
        "cyan": "cyan|turquoise",
        "purple": "purple|violet",
    }
)
SIZES = by_word({"small": "small|tiny|little", "large": "large|big|huge"})
PATTERNS = by_word({"striped": "striped", "dotted": "dotted|spotted", "solid": "plain"})
BACKGROUNDS = ("white", "gray", "black", "beige")
RELATIONS = by_word(
    {
        "left": "to the left of|left of|on the left of",
        "right": "to the right of|right of|on the right of",
        "above": "above|over",
        "below": "below|under|beneath",
        "inside": "inside|within|in the middle of",
        "around": "around|surrounding",
    }
)


# A small red ball left of a large blue star with stripes.
PAIR = Scene(
    *("hand-placed", 192, 144, "beige"),
    (
        Thing("ball", "red", "small", "solid", 42, 38, 36),
        Thing("star", "blue", "large", "striped", 140, 96, 70),
    ),
)


def any_of(words: Iterable[str]) -> str:
    return "|".join(sorted(words, key=len, reverse=True))


PHRASE = re.compile(
    rf"\b(?:an?|the) (?:({any_of(SIZES)}) )?(?:({any_of(PATTERNS)}) )?"
    rf"(?:({any_of(COLOURS)}) )?({any_of(KINDS)})\b"
)
BACKDROP = re.compile(rf" (?:on|against) a ({any_of(BACKGROUNDS)}) background$")
LAST = re.compile(r"(?: and #|, with # too|, and there is also #|, with # as well)$")
# What remains around the phrases, each written as #.
MENTIONS = re.compile(
    "there is #|here is #|# is here|just # alone|one of the things is #|it shows #|everything is"
    "|# and #|there are # and #|# together with #"
)
RELATED = re.compile(rf"(?:there is )?#(?: is)? ({any_of(RELATIONS)}) #")
APART = re.compile("# next to #|# beside #")
ROUND = re.compile("# contains #|# with # inside")
WITHIN = re.compile("# is surrounded by #")
COLOURED = re.compile(
    rf"(?:# is|the color of # is) ({any_of(COLOURS)})|the ({any_of(COLOURS)}) one is #"
)
LOOKING = re.compile(rf"# (?:is|looks) ({any_of([*SIZES, *PATTERNS])})")
PLACED = re.compile(
    r"# is (?:placed )?(?:in the (middle)"
    r"|(?:on|at) the (left|right)(?: side)?|(?:on|at) the (top|bottom))"
)
BEHIND = re.compile(rf"(?:the background|the wall behind) is ({any_of(BACKGROUNDS)})")

Claim = Callable[[Scene], bool]


def stands(a: Thing, relation: str, b: Thing) -> bool:
    """Whether a relation holds, from the squares alone."""
    dx, dy = b.x - a.x, b.y - a.y
    nested = abs(dx) < (a.size_px + b.size_px) / 2 and abs(dy) < (a.size_px + b.size_px) / 2
    if relation in ("inside", "around"):
        inner, outer = (a, b) if relation == "inside" else (b, a)
        return (
            abs(dx) + inner.size_px / 2 <= outer.size_px / 2
            and abs(dy) + inner.size_px / 2 <= outer.size_px / 2
        )
    far, aside = (dx, dy) if relation in ("left", "right") else (dy, dx)
    if relation in ("right", "below"):
        far = -far
    return not nested and far > 0 and far > 1.5 * abs(aside)


def lies(thing: Thing, where: str, scene: Scene) -> bool:
    across, down = thing.x / scene.width, thing.y / scene.height
    return {
        "left": across < 0.4,
        "right": across > 0.6,
        "top": down < 0.4,
        "bottom": down > 0.6,
        "middle": 0.3 < across < 0.7 and 0.3 < down < 0.7,
    }[where]


class Phrase:
    """Words such as `a small striped red ball`, and the thing of a scene that they may name."""

    def __init__(self, match: re.Match[str]) -> None:
        size, pattern, colour, kind = match.groups()
        self.kind = KINDS[kind]
        self.said = {
            "size": SIZES.get(size),
            "pattern": PATTERNS.get(pattern),
            "colour": COLOURS.get(colour),
        }

    def thing(self, scene: Scene) -> Thing | None:
        for thing in scene.things:
            if thing.kind == self.kind and all(
                value is None or getattr(thing, name) == value for name, value in self.said.items()
            ):
                return thing
        return None


def claims(sentence: str) -> list[Claim]:
    """All that a sentence says; an AssertionError where it is none of the grammar."""
    assert sentence[0].isupper() and sentence[-1] == ".", sentence
    text = sentence[0].lower() + sentence[1:-1]
    told: list[Claim] = []
    if backdrop := BACKDROP.search(text):
        told.append(lambda scene: scene.background == backdrop[1])
        text = text[: backdrop.start()]
    phrases = [Phrase(match) for match in PHRASE.finditer(text)]
    told += [lambda scene, p=p: p.thing(scene) is not None for p in phrases]  # type: ignore[misc]
    frame = PHRASE.sub("#", text)
    if frame.count("#") == 3:
        frame, cut = LAST.subn("", frame)
        assert cut, sentence
    if MENTIONS.fullmatch(frame):
        return told
    return [*told, _claim(frame, phrases, sentence)]


def _claim(frame: str, phrases: list[Phrase], sentence: str) -> Claim:
    """The one claim of a frame that says more than that its things are there."""
    for pattern, fixed in ((RELATED, None), (ROUND, "around"), (WITHIN, "inside")):
        if match := pattern.fullmatch(frame):
            relation = fixed or RELATIONS[match[1]]
            return lambda scene: _related(phrases[0], relation, phrases[1], scene)
    if APART.fullmatch(frame):
        return lambda scene: (
            not _related(phrases[0], "inside", phrases[1], scene)
            and not _related(phrases[0], "around", phrases[1], scene)
        )
    if match := BEHIND.fullmatch(frame):
        return lambda scene: scene.background == match[1]
    (phrase,) = phrases
    if match := COLOURED.fullmatch(frame):
        colour = COLOURS[match[1] or match[2]]
        return lambda scene: (t := phrase.thing(scene)) is not None and t.colour == colour
    if match := LOOKING.fullmatch(frame):
        word = match[1]
        if word in SIZES:
            return lambda scene: (t := phrase.thing(scene)) is not None and t.size == SIZES[word]
        return lambda scene: (t := phrase.thing(scene)) is not None and t.pattern == PATTERNS[word]
    match = PLACED.fullmatch(frame)
    assert match, f"not of the grammar: {sentence!r}"
    where = match[1] or match[2] or match[3]
    return lambda scene: (t := phrase.thing(scene)) is not None and lies(t, where, scene)


def _related(a: Phrase, relation: str, b: Phrase, scene: Scene) -> bool:
    first, second = a.thing(scene), b.thing(scene)
    return first is not None and second is not None and stands(first, relation, second)


@pytest.fixture(scope="session")
def is_true() -> Callable[[str, Scene], bool]:
    """Whether all that a sentence says holds in a scene."""
    return lambda sentence, scene: all(claim(scene) for claim in claims(sentence))


@pytest.fixture(scope="session")
def named() -> Callable[[str], list[str]]:
    """The kinds of things that a sentence mentions, in its order."""
    return lambda sentence: [Phrase(m).kind for m in PHRASE.finditer(sentence.lower())]
