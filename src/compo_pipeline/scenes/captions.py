"""Captions of scenes: a first sentence that describes the scene, then details, in varied words."""

from __future__ import annotations

import random
from collections.abc import Sequence

from compo_pipeline.scenes.words import (
    COLOUR_WORDS,
    PATTERN_WORDS,
    RELATION_WORDS,
    SIZE_WORDS,
    THING_WORDS,
    Phrase,
    describe,
    sentence,
    with_article,
    word,
)
from compo_pipeline.scenes.world import INVERSE, NESTED, Relation, Scene, Thing, place, relation

# Four words at least, the shortest sentence that caption cleaning keeps. Few nouns and verbs beside
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
LISTED_POSITION = ("{n} on the {p}", "{n} at the {p}", "{n}, {p}")


def related(
    a: str, b: str, relation_: Relation, random_: random.Random, *, synonyms: bool = True
) -> str:
    """A clause that states how two phrases stand to each other, not yet a sentence."""
    if relation_ == "inside" and synonyms and random_.random() < 0.5:
        return random_.choice(CONTAINED).format(a=a, b=b)
    words = random_.choice(RELATION_WORDS[relation_]) if synonyms else RELATION_WORDS[relation_][0]
    return random_.choice(RELATED).format(a=a, r=words, b=b)


def compose(phrases: Sequence[str], between: Relation | None, random_: random.Random) -> str:
    """A clause that names one to three things and how the first stands to the second, if that is
    told; not yet a sentence.
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


def first(scene: Scene, random_: random.Random, *, relations: float = 0.65) -> str:
    """The sentence that describes the whole scene; `relations` is the share that name one where
    there is a clear one.
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


def _of_colour(thing: Thing, random_: random.Random) -> str:
    kind, colour = _kind(thing, random_), word(COLOUR_WORDS, thing.colour, random_)
    forms = (
        f"the {kind} is {colour}",
        f"the color of the {kind} is {colour}",
        f"one of the things is {with_article(f'{colour} {kind}')}",
        f"the {colour} one is the {kind}",
    )
    return random_.choice(forms)


def _of_looks(thing: Thing, random_: random.Random) -> str:
    kind = f"{thing.colour} {_kind(thing, random_)}" if random_.random() < 0.5 else thing.kind
    looks = {"solid": "plain"}.get(thing.pattern) or word(PATTERN_WORDS, thing.pattern, random_)
    if thing.size in SIZE_WORDS and random_.random() < 0.5:
        looks = word(SIZE_WORDS, thing.size, random_)
    forms = (f"the {kind} is {looks}", f"the {kind} looks {looks}", f"it shows a {looks} {kind}")
    return random_.choice(forms)


def _of_place(thing: Thing, scene: Scene, random_: random.Random) -> str:
    where = random_.choice(place(thing, scene) or ("middle",))
    side = f"{where} side" if where in ("left", "right") and random_.random() < 0.3 else where
    named = Phrase(thing.kind, thing.colour if random_.random() < 0.6 else None)
    at = "in" if where == "middle" else random_.choice(("on", "at"))
    if random_.random() < 0.3:
        return f"{named.indefinite(random_)} is placed {at} the {side}"
    return f"the {named.bare(random_)} is {at} the {side}"


def _of_relation(scene: Scene, random_: random.Random) -> str | None:
    if len(scene.things) < 2:
        return None
    a, b = random_.sample(scene.things, 2)
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


def _of_background(scene: Scene, random_: random.Random) -> str:
    forms = ("the background is {}", "the wall behind is {}", "everything is on a {} background")
    return random_.choice(forms).format(scene.background)


def _kind(thing: Thing, random_: random.Random) -> str:
    return word(THING_WORDS, thing.kind, random_)


def detail(scene: Scene, random_: random.Random) -> str:
    """A sentence about one detail: a thing's colour, looks or place, a relation, the background."""
    thing = random_.choice(scene.things)
    about = random_.choices(("colour", "looks", "place", "relation", "background"), (3, 3, 2, 2, 1))
    text = {
        "colour": lambda: _of_colour(thing, random_),
        "looks": lambda: _of_looks(thing, random_),
        "place": lambda: _of_place(thing, scene, random_),
        "relation": lambda: _of_relation(scene, random_) or _of_place(thing, scene, random_),
        "background": lambda: _of_background(scene, random_),
    }[about[0]]()
    return sentence(text)


def sentences(scene: Scene, random_: random.Random) -> tuple[str, ...]:
    """Three to five different sentences; the first describes the scene, the others details."""
    told = [first(scene, random_)]
    wanted = random_.randint(3, 5)
    while len(told) < wanted:
        text = detail(scene, random_)
        if text not in told:
            told.append(text)
    return tuple(told)


def alt_text(scene: Scene, random_: random.Random, mix: Sequence[float]) -> str:
    """A short, noisy caption as the web's alt texts are; what the base model learns from.

    Args:
        scene: what is described, often in part only.
        random_: draws kind and words.
        mix: weights of a single thing, a list of keywords, a full first sentence, a detail, and a
            thing with its place.
    """
    form = random_.choices(("single", "keywords", "first", "detail", "placed"), mix)[0]
    thing = random_.choice(scene.things)
    if form == "keywords":
        return _keywords(scene, random_)
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


def _keywords(scene: Scene, random_: random.Random) -> str:
    words = []
    for thing in scene.things:
        words.append(_kind(thing, random_))
        if random_.random() < 0.8:
            words.append(word(COLOUR_WORDS, thing.colour, random_))
        if thing.pattern in PATTERN_WORDS and random_.random() < 0.4:
            words.append(word(PATTERN_WORDS, thing.pattern, random_))
        if thing.size in SIZE_WORDS and random_.random() < 0.2:
            words.append(word(SIZE_WORDS, thing.size, random_))
    if random_.random() < 0.3:
        words.append(scene.background)
    random_.shuffle(words)
    kept = [w for w in words if random_.random() < 0.9] or words
    return (", " if random_.random() < 0.5 else " ").join(kept)
