"""Captions of scenes: words and synonyms, a sentence about the whole scene, then details."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import permutations

from compo_scenes.world import INVERSE, NESTED, Relation, Scene, Thing, place, relation

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
    """Word for a name: drawn from its synonyms, or the plain word if no generator is given."""
    words = table.get(name, (name,))
    return random_.choice(words) if random_ else words[0]


def with_article(phrase: str) -> str:
    """Phrase with the article "a" or "an" before it."""
    return f"an {phrase}" if phrase[0] in "aeiou" else f"a {phrase}"


def sentence(text: str) -> str:
    """Text as a sentence, with a capital letter and a period."""
    return f"{text[0].upper()}{text[1:]}."


@dataclass(frozen=True, slots=True)
class Phrase:
    """A noun phrase for a thing: its kind and the properties to mention, or None."""

    kind: str
    colour: str | None = None
    size: str | None = None
    pattern: str | None = None

    def bare(self, random_: random.Random | None) -> str:
        """Words of the phrase without an article, with random synonyms."""
        named = (
            (SIZE_WORDS, self.size),
            (PATTERN_WORDS, self.pattern),
            (COLOUR_WORDS, self.colour),
            (THING_WORDS, self.kind),
        )
        return " ".join(word(table, name, random_) for table, name in named if name)

    def indefinite(self, random_: random.Random | None) -> str:
        """Words of the phrase after "a" or "an", with random synonyms."""
        return with_article(self.bare(random_))


def describe(
    thing: Thing,
    random_: random.Random,
    *,
    colour: float = 0.92,
    size: float = 0.3,
    pattern: float = 0.5,
) -> Phrase:
    """Noun phrase for a thing, which mentions each property with a probability of its own."""
    return Phrase(
        thing.kind,
        thing.colour if random_.random() < colour else None,
        thing.size if thing.size in SIZE_WORDS and random_.random() < size else None,
        thing.pattern if thing.pattern in PATTERN_WORDS and random_.random() < pattern else None,
    )


# At least four words, the shortest sentence that ingest uses. Few nouns and verbs beside
# those of the scene: a swapped "picture" or "shown" makes nonsense, which needs no look at the
# image.
SINGLE = ("there is {a}", "here is {a}", "{a} is here", "just {a} alone")
JOINED = (
    "{a} and {b}",
    "{a} next to {b}",
    "{a} beside {b}",
    "there are {a} and {b}",
    "{a} together with {b}",
)
RELATED = ("{a} {r} {b}", "{a} is {r} {b}", "there is {a} {r} {b}")
CONTAINED = ("{b} contains {a}", "{a} is surrounded by {b}", "{b} with {a} inside")
# Never a bare "and": in "a ball left of a box and a star" the star would be on the right too.
THIRD = (", with {c} too", ", and there is also {c}", ", with {c} as well")
BACKDROP = (" on a {} background", " against a {} background")
RELATIONS = 0.65  # chance that a clear relation is named
LISTED_POSITION = ("{n} on the {p}", "{n} at the {p}", "{n}, {p}")


def related(a: str, b: str, relation_: Relation, random_: random.Random) -> str:
    """Clause that states the relation of two phrases, without capital and period."""
    if relation_ == "inside" and random_.random() < 0.5:
        return random_.choice(CONTAINED).format(a=a, b=b)
    words = random_.choice(RELATION_WORDS[relation_])
    return random_.choice(RELATED).format(a=a, r=words, b=b)


def compose(phrases: Sequence[str], between: Relation | None, random_: random.Random) -> str:
    """Clause about one to three things, without capital and period.

    It has the relation of the first two if `between` is given.
    """
    if len(phrases) == 1:
        return random_.choice(SINGLE).format(a=phrases[0])
    if between:
        text = related(phrases[0], phrases[1], between, random_)
    else:
        text = random_.choice(JOINED).format(a=phrases[0], b=phrases[1])
    if len(phrases) == 3:
        text += random_.choice(THIRD).format(c=phrases[2])
    return text


def first(scene: Scene, random_: random.Random, *, relations: float = RELATIONS) -> str:
    """Draw the first sentence of a scene's caption, which is about the whole scene.

    A clear relation is named with chance `relations`.
    """
    things = list(scene.things)
    random_.shuffle(things)
    phrases = [describe(thing, random_).indefinite(random_) for thing in things]
    between = relation(things[0], things[1]) if len(things) > 1 else None
    # One thing within another is not "next to" it: that relation is always named.
    if between and not (random_.random() < relations or between in NESTED):
        between = None
    text = compose(phrases, between, random_)
    if random_.random() < 0.25:
        text += random_.choice(BACKDROP).format(scene.background)
    return sentence(text)


def _colour_clause(thing: Thing, random_: random.Random) -> str:
    """Draw a clause that states the colour of a thing."""
    kind, colour = _kind_word(thing, random_), word(COLOUR_WORDS, thing.colour, random_)
    forms = (
        f"the {kind} is {colour}",
        f"the color of the {kind} is {colour}",
        f"one of the things is {with_article(f'{colour} {kind}')}",
        f"the {colour} one is the {kind}",
    )
    return random_.choice(forms)


def _look_clause(thing: Thing, random_: random.Random) -> str:
    """Draw a clause that states the pattern or size of a thing."""
    named, looks = _thing_name(thing, random_), _pattern_word(thing, random_)
    if thing.size in SIZE_WORDS and random_.random() < 0.5:
        looks = word(SIZE_WORDS, thing.size, random_)
    return _stated_look_clause(named, looks, random_)


def _thing_name(thing: Thing, random_: random.Random) -> str:
    """Name of a thing, with or without its colour, at random."""
    return f"{thing.colour} {_kind_word(thing, random_)}" if random_.random() < 0.5 else thing.kind


def _pattern_word(thing: Thing, random_: random.Random) -> str:
    """Word for the pattern of a thing."""
    return {"solid": "plain"}.get(thing.pattern) or word(PATTERN_WORDS, thing.pattern, random_)


def _stated_look_clause(named: str, looks: str, random_: random.Random) -> str:
    """Draw a clause that states that a named thing looks a given way."""
    forms = (
        f"the {named} is {looks}",
        f"the {named} looks {looks}",
        f"it shows a {looks} {named}",
    )
    return random_.choice(forms)


def _sides(thing: Thing, scene: Scene) -> tuple[str, ...]:
    """Sides of the image at which a thing is, or ("middle",) at no side."""
    return place(thing, scene) or ("middle",)


def _any_side_clause(thing: Thing, scene: Scene, random_: random.Random) -> str:
    """Draw a clause that states one of the sides of the image at which a thing is."""
    return _side_clause(thing, random_.choice(_sides(thing, scene)), random_)


def _side_clause(thing: Thing, where: str, random_: random.Random) -> str:
    """Draw a clause that states that a thing is at a given side of the image."""
    side = f"{where} side" if where in ("left", "right") and random_.random() < 0.3 else where
    named = Phrase(thing.kind, thing.colour if random_.random() < 0.6 else None)
    at = "in" if where == "middle" else random_.choice(("on", "at"))
    if random_.random() < 0.3:
        return f"{named.indefinite(random_)} is placed {at} the {side}"
    return f"the {named.bare(random_)} is {at} the {side}"


def _any_relation_clause(scene: Scene, random_: random.Random) -> str | None:
    """Draw a clause that states the relation of two random things, or None if none is clear."""
    if len(scene.things) < 2:
        return None
    a, b = random_.sample(scene.things, 2)
    return _relation_clause(a, b, random_)


def _relation_clause(a: Thing, b: Thing, random_: random.Random) -> str | None:
    """Draw a clause that states the relation of two given things, or None if none is clear."""
    between = relation(a, b)
    if between is None:
        return None
    names = [
        "the " + describe(t, random_, colour=0.5, size=0, pattern=0).bare(random_) for t in (a, b)
    ]
    if random_.random() < 0.25:  # the other end first
        other = random_.choice(RELATION_WORDS[INVERSE[between]])
        return f"{names[1]} is {other} {names[0]}"
    return f"{names[0]} is {random_.choice(RELATION_WORDS[between])} {names[1]}"


def _background_clause(scene: Scene, random_: random.Random) -> str:
    """Draw a clause that states the colour of the background."""
    forms = ("the background is {}", "the wall behind is {}", "everything is on a {} background")
    return random_.choice(forms).format(scene.background)


def _kind_word(thing: Thing, random_: random.Random) -> str:
    """Word for the kind of a thing, drawn from its synonyms."""
    return word(THING_WORDS, thing.kind, random_)


def detail(scene: Scene, random_: random.Random) -> str:
    """Draw a sentence about one detail: colour, look, place, relation or background."""
    thing = random_.choice(scene.things)
    about = random_.choices(("colour", "looks", "place", "relation", "background"), (3, 3, 2, 2, 1))
    kinds: dict[str, Callable[[], str]] = {
        "colour": lambda: _colour_clause(thing, random_),
        "looks": lambda: _look_clause(thing, random_),
        "place": lambda: _any_side_clause(thing, scene, random_),
        "relation": lambda: (
            _any_relation_clause(scene, random_) or _any_side_clause(thing, scene, random_)
        ),
        "background": lambda: _background_clause(scene, random_),
    }
    return sentence(kinds[about[0]]())


def details(scene: Scene, random_: random.Random) -> list[str]:
    """Sentences about every detail of a scene, in random order.

    They name each thing's colour, pattern, size and sides, each clear relation once or twice, and
    the background. No sentence is there twice.
    """
    texts = [_background_clause(scene, random_)]
    for thing in scene.things:
        looks = [_pattern_word(thing, random_)]
        if thing.size in SIZE_WORDS:
            looks.append(word(SIZE_WORDS, thing.size, random_))
        texts.append(_colour_clause(thing, random_))
        texts += [_stated_look_clause(_thing_name(thing, random_), each, random_) for each in looks]
        texts += [_side_clause(thing, side, random_) for side in _sides(thing, scene)]
    related = (_relation_clause(a, b, random_) for a, b in permutations(scene.things, 2))
    texts += [text for text in related if text]
    random_.shuffle(texts)
    return [sentence(text) for text in dict.fromkeys(texts)]


def sentences(
    scene: Scene, random_: random.Random, *, relations: float = RELATIONS, every: bool = False
) -> tuple[str, ...]:
    """Sentences of a scene's caption: one about the whole scene, then details.

    These are two to four, or `every` detail. No sentence is there twice.
    """
    texts = [first(scene, random_, relations=relations)]
    if every:
        return (*texts, *details(scene, random_))
    wanted = random_.randint(3, 5)
    while len(texts) < wanted:
        text = detail(scene, random_)
        if text not in texts:
            texts.append(text)
    return tuple(texts)


def alt_text(scene: Scene, random_: random.Random, mix: Sequence[float]) -> str:
    """Draw a short, noisy caption like the web's alt texts, to train the base model.

    Args:
        scene: scene to describe, often only in part.
        random_: draws kind and words.
        mix: weights of a single thing, a list of keywords, a full first sentence, a detail, and a
            thing with its place.
    """
    form = random_.choices(("single", "keywords", "first", "detail", "placed"), mix)[0]
    thing = random_.choice(scene.things)
    if form == "keywords":
        return _keyword_list(scene, random_)
    if form == "first":
        return first(scene, random_, relations=0.9)
    if form == "detail":
        return detail(scene, random_)
    if form == "placed":
        where = " ".join(place(thing, scene)) or "middle"
        name = describe(thing, random_, colour=0.7, size=0.1, pattern=0.2).bare(random_)
        return random_.choice(LISTED_POSITION).format(n=name, p=where)
    said = describe(thing, random_)
    name = said.indefinite(random_) if random_.random() < 0.6 else said.bare(random_)
    return random_.choice(("{}", "a photo of {}", "{} picture", "there is {}")).format(name)


def _keyword_list(scene: Scene, random_: random.Random) -> str:
    """Draw a caption that is a list of keywords about the scene's things."""
    words = []
    for thing in scene.things:
        words.append(_kind_word(thing, random_))
        if random_.random() < 0.8:
            words.append(word(COLOUR_WORDS, thing.colour, random_))
        if thing.pattern in PATTERN_WORDS and random_.random() < 0.4:
            words.append(word(PATTERN_WORDS, thing.pattern, random_))
        if thing.size in SIZE_WORDS and random_.random() < 0.2:
            words.append(word(SIZE_WORDS, thing.size, random_))
    if random_.random() < 0.3:
        words.append(scene.background)
    random_.shuffle(words)
    words = [w for w in words if random_.random() < 0.9] or words
    return (", " if random_.random() < 0.5 else " ").join(words)
