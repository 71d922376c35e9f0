"""Scenes drawn again: the same claims in other words and places, or from a sentence alone."""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import combinations

from compo_scenes.captions import BACKDROP, Phrase, compose, detail, sentence
from compo_scenes.reading import ParsedCaption, read
from compo_scenes.world import (
    BACKGROUNDS,
    GAP,
    INVERSE,
    NESTED,
    SIZES,
    Relation,
    Scene,
    Thing,
    World,
    draw_look,
    place_randomly,
    relation,
)

# Tries. The rarest detail comes once in about a hundred draws, a given relation and place once in
# about ten.
_RETELLINGS, _REDRAWS, _TRIES = 600, 100, 500


def redraw(scene: Scene, parsed: ParsedCaption, random_: random.Random) -> Scene | None:
    """Scene with the same things and relations in other places and shades; None if not found.

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
    """Things moved randomly, by up to `reach` pixels; a thing inside another moves with it."""
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
    """Another sentence with the same claims as a caption of the scene; None if not found.

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


def imagine(
    parsed: ParsedCaption,
    scene: Scene,
    world: World,
    random_: random.Random,
    untrue: ParsedCaption | None = None,
) -> Scene | None:
    """Draw a scene of which a sentence is true, as a text-to-image model does; None if not found.

    The new scene has the given one's image size, number of things and split. One thing is inside
    another only where the sentence says so.

    Args:
        parsed: the sentence.
        scene: another one that it is true of.
        world: names the kinds and colours that may come in.
        random_: draws places and what the sentence does not say.
        untrue: a sentence that must be false of the new scene.

    Returns:
        None where no such scene was found within the split.
    """
    count = max(len(scene.things), len(parsed.kinds))
    for _ in range(_TRIES):
        things = _place_things(_draw_things(parsed, count, world, random_), scene, random_)
        backgrounds = [word.value for word in parsed.of_field("background")] or list(BACKGROUNDS)
        background, shade = random_.choice(backgrounds), random_.randint(-8, 8)
        after = replace(scene, background=background, things=things, shade=shade)
        if (
            len(things) == count
            and after.split == scene.split
            and parsed.holds(after)
            and not (untrue and untrue.holds(after))
        ):
            return after
    return None


def _draw_things(
    parsed: ParsedCaption, count: int, world: World, random_: random.Random
) -> list[tuple[Thing, bool]]:
    """Draw things for a sentence, without positions, and whether each is inside the first thing."""
    said = {(word.kinds, word.field): word.value for word in parsed.words}
    kinds = list(parsed.kinds)
    nested = [word.value for word in parsed.of_field("relation") if word.value in NESTED]
    if nested == ["inside"]:
        kinds.reverse()  # what holds the other comes first
    kinds += random_.sample([k for k in world.things if k not in kinds], count - len(kinds))
    taken = {word.value for word in parsed.of_field("colour")}
    free = [colour for colour in world.colours if colour not in taken]
    if len(free) < count or random_.random() >= world.distinct_colours:
        colours = random_.choices(world.colours, k=count)
    else:
        colours = random_.sample(free, count)
    found: list[tuple[Thing, bool]] = []
    for kind, colour in zip(kinds, colours, strict=True):
        colour = said.get(((kind,), "colour"), colour)
        thing = draw_look(random_, kind, colour, count, bool(nested), first=not found)
        size = said.get(((kind,), "size"), thing.size)
        if size != thing.size:
            thing = replace(thing, size=size, size_px=random_.randint(*SIZES[size]))
        thing = replace(thing, pattern=said.get(((kind,), "pattern"), thing.pattern))
        found.append((thing, bool(nested and found)))
    return found


def _place_things(
    things: list[tuple[Thing, bool]], scene: Scene, random_: random.Random
) -> tuple[Thing, ...]:
    """Things with drawn positions; ends before one without room or in its container's colour."""
    placed: list[Thing] = []
    for thing, inside in things:
        spot = place_randomly(random_, thing, placed, scene.width, scene.height, nested=inside)
        if spot is None or (inside and spot.colour == placed[0].colour):
            break
        placed.append(spot)
    return tuple(placed)
