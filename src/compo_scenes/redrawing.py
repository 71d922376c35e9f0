"""Scenes drawn again: the same claims in other words and places."""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import combinations

from compo_scenes.captions import BACKDROP, Phrase, compose, detail, sentence
from compo_scenes.reading import ParsedCaption, read
from compo_scenes.world import (
    GAP,
    INVERSE,
    NESTED,
    Relation,
    Scene,
    Thing,
    relation,
)

# Tries. The rarest detail comes once in about a hundred draws, a given relation and place once in
# about ten.
_RETELLINGS, _REDRAWS = 600, 100


def redraw(scene: Scene, parsed: ParsedCaption, random_: random.Random) -> Scene | None:
    """Scene with the same things and relations in other places and shades, or None if not found.

    Places are drawn from the whole image at first, then ever nearer to the old ones.
    """
    pairs = list(combinations(range(len(scene.things)), 2))
    for left in range(_REDRAWS, 0, -1):
        reach = max(6, max(scene.width, scene.height) * left // _REDRAWS)
        things = _move_things(scene, reach, random_)
        if any(
            relation(things[i], things[j]) != (before := relation(scene.things[i], scene.things[j]))
            or (before not in NESTED and things[i].overlaps(things[j], GAP))
            for i, j in pairs
        ):
            continue
        after = replace(scene, things=things, shade=random_.randint(-8, 8))
        if parsed.holds(after):
            return after
    return None


def _move_things(scene: Scene, reach: int, random_: random.Random) -> tuple[Thing, ...]:
    """Things moved randomly, by up to `reach` pixels.

    A thing inside another moves with it.
    """
    fresh = []
    for thing in scene.things:
        shade = (random_.randint(-12, 12), random_.randint(-12, 12), random_.randint(-12, 12))
        x = _draw_near(thing.x, reach, thing, scene.width, random_)
        y = _draw_near(thing.y, reach, thing, scene.height, random_)
        fresh.append(replace(thing, shade=shade, x=x, y=y))
    if len(fresh) == 2 and relation(*scene.things) in NESTED:
        outer, inner = (0, 1) if fresh[0].size_px > fresh[1].size_px else (1, 0)
        dx, dy = (getattr(fresh[outer], axis) - getattr(scene.things[outer], axis) for axis in "xy")
        old = scene.things[inner]
        fresh[inner] = replace(fresh[inner], x=old.x + dx, y=old.y + dy)
    return tuple(fresh)


def _draw_near(at: int, reach: int, thing: Thing, side: int, random_: random.Random) -> int:
    """Draw a coordinate within `reach` of `at` that keeps the thing inside the image.

    Moving it inwards afterwards would crowd things at the border, which reveals a redrawn scene.
    """
    margin = thing.size_px // 2 + 2
    return random_.randint(max(at - reach, margin), min(at + reach, side - margin))


def retell(scene: Scene, caption: str, parsed: ParsedCaption, random_: random.Random) -> str | None:
    """Another sentence with the same claims as a caption of the scene, or None if not found.

    It is composed of the claims, or drawn until it fits.
    """
    composed = (
        (len(parsed.kinds) > 1 or len(parsed.kinds) == len(scene.things))
        and not parsed.of_field("place")
        and all(word.value != "solid" for word in parsed.words)
    )
    for _ in range(_RETELLINGS):
        text = _compose_claims(parsed, random_) if composed else detail(scene, random_)
        if text == caption:
            continue
        new = read(text)
        if new is not None and new.claims == parsed.claims:
            return text
    return None


def _compose_claims(parsed: ParsedCaption, random_: random.Random) -> str:
    """New sentence with the claims of a parsed one, in the form of a caption's first sentence."""
    order = list(parsed.kinds)
    between: Relation | None = None
    for claim in parsed.of_field("relation"):
        between = INVERSE[claim.value]
        if random_.random() < 0.5:
            between = INVERSE[between]
        else:
            order[:2] = order[1::-1]
    if between is None:
        random_.shuffle(order)
    phrases = []
    for kind in order:
        said = {word.field: word.value for word in parsed.words if word.kinds == (kind,)}
        phrases.append(Phrase(**said).indefinite(random_))
    text = compose(phrases, between, random_)
    for claim in parsed.of_field("background"):
        text += random_.choice(BACKDROP).format(claim.value)
    return sentence(text)
