"""A scene drawn from a sentence alone, as a text-to-image model draws that sees no real image."""

from __future__ import annotations

import random
from dataclasses import replace

from compo_pipeline.scenes.reading import Reading
from compo_pipeline.scenes.world import BACKGROUNDS, NESTED, SIZES, Scene, Thing, World, dress, put

_TRIES = 500  # a told relation and place come true once in about ten


def imagine(
    told: Reading,
    scene: Scene,
    world: World,
    random_: random.Random,
    untrue: Reading | None = None,
) -> Scene | None:
    """A scene that a sentence is true of; what the sentence leaves untold is drawn anew.

    Of the given scene remain the image's size, the number of things and the split. One thing
    lies inside another only where that is told.

    Args:
        told: the sentence.
        scene: another one that it is true of.
        world: names the kinds and colours that may come in.
        random_: draws what is untold, and places.
        untrue: a sentence that must be false of the new scene.

    Returns:
        None where no such scene was found within the split.
    """
    count = max(len(scene.things), len(told.kinds))
    for _ in range(_TRIES):
        things = _placed(_dressed(told, count, world, random_), scene, random_)
        backgrounds = [word.value for word in told.told("background")] or list(BACKGROUNDS)
        after = replace(
            scene,
            background=random_.choice(backgrounds),
            things=things,
            shade=random_.randint(-8, 8),
        )
        if (
            len(things) == count
            and after.split == scene.split
            and told.holds(after)
            and not (untrue and untrue.holds(after))
        ):
            return after
    return None


def _dressed(
    told: Reading, count: int, world: World, random_: random.Random
) -> list[tuple[Thing, bool]]:
    """Things, not yet placed, and of each whether it lies inside the first."""
    said = {(word.kinds, word.field): word.value for word in told.words}
    kinds = list(told.kinds)
    nested = [word.value for word in told.told("relation") if word.value in NESTED]
    if nested == ["inside"]:
        kinds.reverse()  # what holds the other comes first
    kinds += random_.sample([k for k in world.things if k not in kinds], count - len(kinds))
    taken = {word.value for word in told.told("colour")}
    free = [colour for colour in world.colours if colour not in taken]
    if len(free) < count or random_.random() >= world.distinct_colours:
        colours = random_.choices(world.colours, k=count)
    else:
        colours = random_.sample(free, count)
    found: list[tuple[Thing, bool]] = []
    for kind, colour in zip(kinds, colours, strict=True):
        colour = said.get(((kind,), "colour"), colour)
        thing = dress(random_, kind, colour, count, bool(nested), first=not found)
        size = said.get(((kind,), "size"), thing.size)
        if size != thing.size:
            thing = replace(thing, size=size, size_px=random_.randint(*SIZES[size]))
        thing = replace(thing, pattern=said.get(((kind,), "pattern"), thing.pattern))
        found.append((thing, bool(nested and found)))
    return found


def _placed(
    things: list[tuple[Thing, bool]], scene: Scene, random_: random.Random
) -> tuple[Thing, ...]:
    """The things where they fit; fewer where one finds no place or cannot be told from another."""
    placed: list[Thing] = []
    for thing, inside in things:
        spot = put(random_, thing, placed, scene.width, scene.height, nested=inside)
        if spot is None or (inside and spot.colour == placed[0].colour):
            break
        placed.append(spot)
    return tuple(placed)
