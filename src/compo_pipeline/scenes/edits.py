"""Edits of a scene and of a sentence about it, in one: each changes one thing that is told.

Every edit yields candidates in random order, a sentence and the scene it is meant for; whether the
two belong together, and stay in their split, is checked by whoever takes one. None adds a thing or
an attribute: what the old sentence says would still be true of such a scene.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Literal, TypeVar

from compo_pipeline.scenes.reading import Reading, Word
from compo_pipeline.scenes.words import (
    COLOUR_WORDS,
    PATTERN_WORDS,
    RELATION_WORDS,
    SIZE_WORDS,
    THING_WORDS,
    word,
)
from compo_pipeline.scenes.world import (
    BACKGROUNDS,
    CONTAINERS,
    DROPS,
    GAP,
    INVERSE,
    NESTED,
    SIZES,
    Scene,
    Thing,
    World,
    counterfactual,
    fit,
    put,
    relation,
)

EditKind = Literal[
    "replace_kind",
    "replace_colour",
    "replace_pattern",
    "replace_size",
    "replace_relation",
    "replace_place",
    "replace_background",
    "swap_colours",
    "swap_things",
]
Candidates = Iterator[tuple[str, Scene]]
Edit = Callable[[Reading, Scene, World, random.Random], Candidates]

_SPOTS = 10  # places tried for a thing that moves; `put` looks for a free one each time
_MIRROR = {"left": "right", "right": "left", "top": "bottom", "bottom": "top"}
_Item = TypeVar("_Item")


def _drawn(values: Sequence[_Item], random_: random.Random) -> list[_Item]:
    """All values in random order."""
    return random_.sample(values, len(values))


def _index(scene: Scene, told: Word) -> int:
    """Which thing of the scene a claim is about first."""
    return next(i for i, thing in enumerate(scene.things) if thing.kind == told.kinds[0])


def _with(scene: Scene, index: int, thing: Thing) -> Scene:
    return replace(scene, things=(*scene.things[:index], thing, *scene.things[index + 1 :]))


def _without(scene: Scene, index: int) -> list[Thing]:
    return [thing for other, thing in enumerate(scene.things) if other != index]


def _nested(scene: Scene, index: int) -> str | None:
    """Whether a thing lies "inside" another one or "around" it."""
    others = (relation(scene.things[index], other) for other in _without(scene, index))
    return next((between for between in others if between in NESTED), None)


def _alike_inside(one: str, other: str) -> bool:
    """Whether two containers hold things at the same height."""
    return DROPS.get(one) == DROPS.get(other)


def _replace_kind(
    reading: Reading, scene: Scene, world: World, random_: random.Random
) -> Candidates:
    shown = {thing.kind for thing in scene.things}
    for told in _drawn(reading.told("kind"), random_):
        index = _index(scene, told)
        fits: Sequence[str] = world.things
        if _nested(scene, index) == "around":
            fits = [kind for kind in CONTAINERS if _alike_inside(kind, scene.things[index].kind)]
        for kind in _drawn([k for k in world.things if k in fits and k not in shown], random_):
            after = _with(scene, index, replace(scene.things[index], kind=kind))
            yield reading.put([(told.start, told.end, word(THING_WORDS, kind, random_))]), after


def _replace_colour(
    reading: Reading, scene: Scene, world: World, random_: random.Random
) -> Candidates:
    shown = {thing.colour for thing in scene.things}
    for told in _drawn(reading.told("colour"), random_):
        index = _index(scene, told)
        for colour in _drawn([c for c in world.colours if c not in shown], random_):
            after = _with(scene, index, replace(scene.things[index], colour=colour))
            yield reading.put([(told.start, told.end, word(COLOUR_WORDS, colour, random_))]), after


def _replace_pattern(
    reading: Reading, scene: Scene, world: World, random_: random.Random
) -> Candidates:
    for told in _drawn(reading.told("pattern"), random_):
        for pattern, after in _patterned(scene, _index(scene, told), random_):
            new = word(PATTERN_WORDS, pattern, random_)
            yield reading.put([(told.start, told.end, new)]), after


def _replace_size(
    reading: Reading, scene: Scene, world: World, random_: random.Random
) -> Candidates:
    for told in _drawn(reading.told("size"), random_):
        for size, after in _sized(scene, _index(scene, told), random_):
            yield reading.put([(told.start, told.end, word(SIZE_WORDS, size, random_))]), after


def _patterned(scene: Scene, index: int, random_: random.Random) -> Iterator[tuple[str, Scene]]:
    """The scene with another pattern on a thing; what holds another thing must stay plain."""
    if _nested(scene, index) == "around":
        return
    thing = scene.things[index]
    for pattern in _drawn([p for p in PATTERN_WORDS if p != thing.pattern], random_):
        yield pattern, _with(scene, index, replace(thing, pattern=pattern))


def _sized(scene: Scene, index: int, random_: random.Random) -> Iterator[tuple[str, Scene]]:
    """The scene with a thing of another size in the same place; of three things none is large."""
    if _nested(scene, index):
        return
    thing, others = scene.things[index], _without(scene, index)
    known = [size for size in SIZE_WORDS if size != "large" or len(scene.things) < 3]
    for size in _drawn([size for size in known if size != thing.size], random_):
        grown = replace(thing, size=size, size_px=random_.randint(*SIZES[size]))
        if _stands(grown, others, scene):
            yield size, _with(scene, index, grown)


def _stands(thing: Thing, others: Sequence[Thing], scene: Scene) -> bool:
    """Whether a thing stands as things of a drawn scene do: whole, and apart from the others.

    Pushed into the image instead, things would crowd at its border and tell an edited scene.
    """
    whole = fit(thing, thing, scene) == thing
    return whole and not any(thing.overlaps(other, GAP) for other in others)


def _replace_relation(
    reading: Reading, scene: Scene, world: World, random_: random.Random
) -> Candidates:
    for told in reading.told("relation"):
        after = _of_pair("exchange_places", told.kinds, scene, world, random_)
        if after and told.start < told.end:
            yield (
                reading.put([(told.start, told.end, _opposite(told, reading, random_))]),
                after,
            )


def _opposite(told: Word, reading: Reading, random_: random.Random) -> str:
    """The words of the other relation: in the same place of its list, or else drawn."""
    new = RELATION_WORDS[inverse := INVERSE[told.value]]
    old = RELATION_WORDS[INVERSE[inverse]]
    place = old.index(reading.text[told.start : told.end])
    return new[place] if len(new) == len(old) else random_.choice(new)


def _replace_place(
    reading: Reading, scene: Scene, world: World, random_: random.Random
) -> Candidates:
    for told in reading.told("place"):
        index = _index(scene, told)
        if _nested(scene, index):
            return
        for spot in _spots(scene, index, told.value, random_):
            for where in _drawn(_crossed(scene.things[index], spot, scene), random_):
                after = _with(scene, index, spot)
                if told.value not in _MIRROR:
                    new = f"{random_.choice(('on', 'at'))} the {where}"
                    yield reading.put([(told.start, told.end, new)]), after
                elif where == _MIRROR[told.value]:
                    yield reading.put([(told.start, told.end, where)]), after


def _spots(scene: Scene, index: int, where: str, random_: random.Random) -> Iterator[Thing]:
    """The thing elsewhere, clear of the others: mirrored, if it is at a side, then anywhere."""
    thing, others = scene.things[index], _without(scene, index)
    if where in ("left", "right"):
        mirrored = replace(thing, x=scene.width - thing.x)
    else:
        mirrored = replace(thing, y=scene.height - thing.y)
    if where in _MIRROR and _stands(mirrored, others, scene):
        yield mirrored
    for _ in range(_SPOTS):
        if spot := put(random_, thing, others, scene.width, scene.height):
            yield spot


def _crossed(thing: Thing, spot: Thing, scene: Scene) -> list[str]:
    """The sides that a thing is clearly at after a move, and was clearly not before."""
    x, y = thing.x / scene.width, thing.y / scene.height
    new_x, new_y = spot.x / scene.width, spot.y / scene.height
    crossed = {
        "left": new_x < 0.3 and x >= 0.5,
        "right": new_x > 0.7 and x <= 0.5,
        "top": new_y < 0.3 and y >= 0.5,
        "bottom": new_y > 0.7 and y <= 0.5,
    }
    return [side for side, is_new in crossed.items() if is_new]


def _replace_background(
    reading: Reading, scene: Scene, world: World, random_: random.Random
) -> Candidates:
    for told in reading.told("background"):
        for name in _drawn([name for name in BACKGROUNDS if name != scene.background], random_):
            yield reading.put([(told.start, told.end, name)]), replace(scene, background=name)


def _swap_colours(
    reading: Reading, scene: Scene, world: World, random_: random.Random
) -> Candidates:
    told = reading.told("colour")
    pairs = [(a, b) for i, a in enumerate(told) for b in told[:i]]
    for a, b in _drawn(pairs, random_):
        after = _of_pair("exchange_colours", (*a.kinds, *b.kinds), scene, world, random_)
        if after:
            said = [reading.text[word.start : word.end] for word in (a, b)]
            yield reading.put([(a.start, a.end, said[1]), (b.start, b.end, said[0])]), after


def _swap_things(
    reading: Reading, scene: Scene, world: World, random_: random.Random
) -> Candidates:
    """The two related things change places, in the image and in the sentence."""
    for told in reading.told("relation"):
        (a, b), text = reading.mentions[:2], reading.text
        swapped = reading.put([(*a, text[slice(*b)]), (*b, text[slice(*a)])])
        if told.value in NESTED:
            kinds = [thing.kind for thing in scene.things]
            if all(kind in CONTAINERS for kind in kinds) and _alike_inside(*kinds):
                yield swapped, _turned_inside_out(scene)
        elif after := _of_pair("exchange_places", told.kinds, scene, world, random_):
            yield swapped, after


def _turned_inside_out(scene: Scene) -> Scene:
    """The thing inside becomes the one around; places, sizes and patterns stay where they are."""
    a, b = scene.things
    return replace(
        scene,
        things=(
            replace(a, kind=b.kind, colour=b.colour, shade=b.shade),
            replace(b, kind=a.kind, colour=a.colour, shade=a.shade),
        ),
    )


def _of_pair(
    edit: Literal["exchange_places", "exchange_colours"],
    kinds: Sequence[str],
    scene: Scene,
    world: World,
    random_: random.Random,
) -> Scene | None:
    """An exchange between two things, whichever of the scene's they are."""
    order = sorted(range(len(scene.things)), key=lambda i: scene.things[i].kind not in kinds)
    first = replace(scene, things=tuple(scene.things[i] for i in order))
    after = counterfactual(first, edit, world, random_)
    if after is None:
        return None
    back = sorted(zip(order, after.things, strict=True), key=lambda pair: pair[0])
    edited = replace(scene, things=tuple(thing for _, thing in back))
    if edit == "exchange_colours":
        return edited
    before, now = ({(one.x, one.y) for one in of.things[:2]} for of in (first, after))
    stand = all(_stands(edited.things[i], _without(edited, i), scene) for i in order[:2])
    return edited if before == now and stand else None


EDITS: dict[EditKind, Edit] = {
    "replace_kind": _replace_kind,
    "replace_colour": _replace_colour,
    "replace_pattern": _replace_pattern,
    "replace_size": _replace_size,
    "replace_relation": _replace_relation,
    "replace_place": _replace_place,
    "replace_background": _replace_background,
    "swap_colours": _swap_colours,
    "swap_things": _swap_things,
}
