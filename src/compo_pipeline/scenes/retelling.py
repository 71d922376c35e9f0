"""The same told anew: a scene's things in other places, a sentence's claims in other words."""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import combinations

from compo_pipeline.scenes.captions import BACKDROP, compose, detail
from compo_pipeline.scenes.reading import Reading, read
from compo_pipeline.scenes.words import Phrase, sentence
from compo_pipeline.scenes.world import GAP, INVERSE, NESTED, Relation, Scene, Thing, relation

# Tries. The rarest detail comes once in about a hundred draws.
_RETELLINGS, _REDRAWS = 600, 100


def redrawn(scene: Scene, reading: Reading, random_: random.Random) -> Scene | None:
    """The same things in other places and shades, standing to each other as they did.

    Places are drawn from the whole image at first, and ever nearer to the old ones where that
    finds none.
    """
    pairs = list(combinations(range(len(scene.things)), 2))
    for left in range(_REDRAWS, 0, -1):
        reach = max(6, max(scene.width, scene.height) * left // _REDRAWS)
        things = _moved(scene, reach, random_)
        if any(
            relation(things[i], things[j]) != (stood := relation(scene.things[i], scene.things[j]))
            or (stood not in NESTED and things[i].overlaps(things[j], GAP))
            for i, j in pairs
        ):
            continue
        after = replace(scene, things=things, shade=random_.randint(-8, 8))
        if reading.holds(after):
            return after
    return None


def _moved(scene: Scene, reach: int, random_: random.Random) -> tuple[Thing, ...]:
    """The things up to `reach` pixels away; one inside another moves with it."""
    fresh = []
    for thing in scene.things:
        shade = (random_.randint(-12, 12), random_.randint(-12, 12), random_.randint(-12, 12))
        x = _near(thing.x, reach, thing, scene.width, random_)
        y = _near(thing.y, reach, thing, scene.height, random_)
        fresh.append(replace(thing, shade=shade, x=x, y=y))
    if len(fresh) == 2 and relation(*scene.things) in NESTED:
        outer, inner = (0, 1) if fresh[0].size_px > fresh[1].size_px else (1, 0)
        dx, dy = (getattr(fresh[outer], axis) - getattr(scene.things[outer], axis) for axis in "xy")
        old = scene.things[inner]
        fresh[inner] = replace(fresh[inner], x=old.x + dx, y=old.y + dy)
    return tuple(fresh)


def _near(at: int, reach: int, thing: Thing, side: int, random_: random.Random) -> int:
    """A coordinate up to `reach` from `at` at which the thing stays whole in the image.

    Drawn within the image, not pushed back into it: things that crowd at the border would tell
    a redrawn scene from a real one.
    """
    margin = thing.size_px // 2 + 2
    return random_.randint(max(at - reach, margin), min(at + reach, side - margin))


def retold(scene: Scene, caption: str, reading: Reading, random_: random.Random) -> str | None:
    """Another sentence with the same claims: put together from them, or drawn until it fits."""
    composed = (
        (len(reading.kinds) > 1 or len(reading.kinds) == len(scene.things))
        and not reading.told("place")
        and all(word.value != "solid" for word in reading.words)
    )
    for _ in range(_RETELLINGS):
        text = _composed(reading, random_) if composed else detail(scene, random_)
        if text == caption:
            continue
        new = read(text)
        if new is not None and new.claims == reading.claims:
            return text
    return None


def _composed(reading: Reading, random_: random.Random) -> str:
    """What a sentence claims in the frames of a first sentence, from either end."""
    order = list(reading.kinds)
    between: Relation | None = None
    for told in reading.told("relation"):
        between = INVERSE[told.value]
        if random_.random() < 0.5:
            between = INVERSE[between]
        else:
            order[:2] = order[1::-1]
    if between is None:
        random_.shuffle(order)
    phrases = []
    for kind in order:
        said = {word.field: word.value for word in reading.words if word.kinds == (kind,)}
        phrases.append(Phrase(**said).indefinite(random_))
    text = compose(phrases, between, random_)
    for told in reading.told("background"):
        text += random_.choice(BACKDROP).format(told.value)
    return sentence(text)
