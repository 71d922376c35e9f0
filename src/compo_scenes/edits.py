"""Edits that change one claim of a caption together with its scene.

Every edit yields candidates in random order, a sentence and its scene; the caller checks that they
agree and stay in their split. No edit adds a thing or an attribute: the old sentence would still be
true of the new scene.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Literal, TypeVar

from compo_scenes.captions import (
    COLOUR_WORDS,
    PATTERN_WORDS,
    RELATION_WORDS,
    SIZE_WORDS,
    THING_WORDS,
    word,
)
from compo_scenes.reading import ParsedCaption, WordClaim
from compo_scenes.world import (
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
    exchanged_colours,
    exchanged_places,
    fit,
    place_randomly,
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
Edit = Callable[[ParsedCaption, Scene, World, random.Random], Candidates]
Look = Literal["kind", "colour", "pattern", "size"]
# The thing at an index of a scene with other looks, in random order.
Changed = Callable[[Scene, int, World, random.Random], Iterator[Thing]]

_SPOTS = 10  # places tried for a thing that moves; `place_randomly` looks for a free one each time
_MIRROR = {"left": "right", "right": "left", "top": "bottom", "bottom": "top"}
_Item = TypeVar("_Item")


def _shuffled(values: Sequence[_Item], random_: random.Random) -> list[_Item]:
    """All values of a sequence, in random order."""
    return random_.sample(values, len(values))


def _thing_index(scene: Scene, claim: WordClaim) -> int:
    """Index in the scene of the first thing that a claim is about."""
    return next(i for i, thing in enumerate(scene.things) if thing.kind == claim.kinds[0])


def _replace_thing(scene: Scene, index: int, thing: Thing) -> Scene:
    """Copy of a scene with the thing at an index replaced."""
    return replace(scene, things=(*scene.things[:index], thing, *scene.things[index + 1 :]))


def _other_things(scene: Scene, index: int) -> list[Thing]:
    """All things of a scene but the one at an index."""
    return [thing for other, thing in enumerate(scene.things) if other != index]


def _nesting(scene: Scene, index: int) -> str | None:
    """Relation "inside" or "around" of a thing to another thing of the scene, else None."""
    others = (relation(scene.things[index], other) for other in _other_things(scene, index))
    return next((between for between in others if between in NESTED), None)


def _alike_inside(one: str, other: str) -> bool:
    """Whether two kinds of container hold their content at the same height."""
    return DROPS.get(one) == DROPS.get(other)


def _property_edit(field: Look, words: Mapping[str, tuple[str, ...]], changed: Changed) -> Edit:
    """Edit that changes one property of a thing, in the scene and in the caption."""

    def edit(
        caption: ParsedCaption, scene: Scene, world: World, random_: random.Random
    ) -> Candidates:
        for claim in _shuffled(caption.of_field(field), random_):
            index = _thing_index(scene, claim)
            for thing in changed(scene, index, world, random_):
                said = word(words, getattr(thing, field), random_)
                yield caption.reworded(claim, said), _replace_thing(scene, index, thing)

    return edit


def _other_kinds(scene: Scene, index: int, world: World, random_: random.Random) -> Iterator[Thing]:
    """Copies of a thing with other kinds, in random order.

    A container stays a container.

    The kinds are not in the scene.
    """
    thing, shown = scene.things[index], {each.kind for each in scene.things}
    kinds = [kind for kind in world.things if kind not in shown]
    if _nesting(scene, index) == "around":
        kinds = [kind for kind in kinds if kind in CONTAINERS and _alike_inside(kind, thing.kind)]
    for kind in _shuffled(kinds, random_):
        yield replace(thing, kind=kind)


def _other_colours(
    scene: Scene, index: int, world: World, random_: random.Random
) -> Iterator[Thing]:
    """Copies of a thing with colours that are not in the scene, in random order."""
    shown = {thing.colour for thing in scene.things}
    for colour in _shuffled([c for c in world.colours if c not in shown], random_):
        yield replace(scene.things[index], colour=colour)


def _other_patterns(
    scene: Scene, index: int, world: World, random_: random.Random
) -> Iterator[Thing]:
    """Copies of a thing with other patterns, in random order, or none for a container."""
    thing = scene.things[index]
    if _nesting(scene, index) != "around":
        for pattern in _shuffled([p for p in PATTERN_WORDS if p != thing.pattern], random_):
            yield replace(thing, pattern=pattern)


def _other_sizes(scene: Scene, index: int, world: World, random_: random.Random) -> Iterator[Thing]:
    """Copies of a thing with other sizes in the same place, in random order, if they fit.

    Of three things none is large.
    """
    thing, others = scene.things[index], _other_things(scene, index)
    if not _nesting(scene, index):
        known = [size for size in SIZE_WORDS if size != "large" or len(scene.things) < 3]
        for size in _shuffled([size for size in known if size != thing.size], random_):
            grown = replace(thing, size=size, size_px=random_.randint(*SIZES[size]))
            if _is_free(grown, others, scene):
                yield grown


def _is_free(thing: Thing, others: Sequence[Thing], scene: Scene) -> bool:
    """Whether a thing is wholly inside the image and apart from the other things.

    Moving things inwards instead would crowd them at the border, which reveals an edited scene.
    """
    whole = fit(thing, thing, scene) == thing
    return whole and not any(thing.overlaps(other, GAP) for other in others)


def _replace_relation(
    caption: ParsedCaption, scene: Scene, world: World, random_: random.Random
) -> Candidates:
    """Candidate edits that invert a relation, in the sentence and in the scene."""
    for claim in caption.of_field("relation"):
        after = _exchange_things(exchanged_places, claim.kinds, scene)
        if after and claim.start < claim.end:
            yield caption.reworded(claim, _inverse_words(claim, caption, random_)), after


def _inverse_words(claim: WordClaim, caption: ParsedCaption, random_: random.Random) -> str:
    """Words for a claim's inverse relation: the counterpart in the word list, or random ones."""
    new = RELATION_WORDS[inverse := INVERSE[claim.value]]
    old = RELATION_WORDS[INVERSE[inverse]]
    place = old.index(caption.text[claim.start : claim.end])
    return new[place] if len(new) == len(old) else random_.choice(new)


def _replace_place(
    caption: ParsedCaption, scene: Scene, world: World, random_: random.Random
) -> Candidates:
    """Candidate edits that move a thing to another side, in the sentence and in the scene."""
    for claim in caption.of_field("place"):
        index = _thing_index(scene, claim)
        if _nesting(scene, index):
            return
        for spot in _free_positions(scene, index, claim.value, random_):
            for where in _shuffled(_crossed_sides(scene.things[index], spot, scene), random_):
                after = _replace_thing(scene, index, spot)
                if claim.value not in _MIRROR:
                    new = f"{random_.choice(('on', 'at'))} the {where}"
                    yield caption.reworded(claim, new), after
                elif where == _MIRROR[claim.value]:
                    yield caption.reworded(claim, where), after


def _free_positions(
    scene: Scene, index: int, where: str, random_: random.Random
) -> Iterator[Thing]:
    """Copies of a thing at other free positions: mirrored if it is at a side, then anywhere."""
    thing, others = scene.things[index], _other_things(scene, index)
    if where in ("left", "right"):
        mirrored = replace(thing, x=scene.width - thing.x)
    else:
        mirrored = replace(thing, y=scene.height - thing.y)
    if where in _MIRROR and _is_free(mirrored, others, scene):
        yield mirrored
    for _ in range(_SPOTS):
        if spot := place_randomly(random_, thing, others, scene.width, scene.height):
            yield spot


def _crossed_sides(thing: Thing, spot: Thing, scene: Scene) -> list[str]:
    """Sides of the image at which a thing clearly is after a move, but was not before."""
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
    caption: ParsedCaption, scene: Scene, world: World, random_: random.Random
) -> Candidates:
    """Candidate edits that change the background, in the sentence and in the scene."""
    for claim in caption.of_field("background"):
        for name in _shuffled([name for name in BACKGROUNDS if name != scene.background], random_):
            yield caption.reworded(claim, name), replace(scene, background=name)


def _swap_colours(
    caption: ParsedCaption, scene: Scene, world: World, random_: random.Random
) -> Candidates:
    """Candidate edits that exchange two things' colours, in the sentence and in the scene."""
    claims = caption.of_field("colour")
    pairs = [(a, b) for i, a in enumerate(claims) for b in claims[:i]]
    for a, b in _shuffled(pairs, random_):
        after = _exchange_things(exchanged_colours, (*a.kinds, *b.kinds), scene)
        if after:
            first, second = (caption.text[claim.start : claim.end] for claim in (a, b))
            changes = [(a.start, a.end, second), (b.start, b.end, first)]
            yield caption.with_changes(changes), after


def _swap_things(
    caption: ParsedCaption, scene: Scene, world: World, random_: random.Random
) -> Candidates:
    """Candidate edits that exchange two related things, in the sentence and in the scene."""
    for claim in caption.of_field("relation"):
        (a, b), text = caption.mentions[:2], caption.text
        swapped = caption.with_changes([(*a, text[slice(*b)]), (*b, text[slice(*a)])])
        if claim.value in NESTED:
            kinds = [thing.kind for thing in scene.things]
            if all(kind in CONTAINERS for kind in kinds) and _alike_inside(*kinds):
                yield swapped, _turn_inside_out(scene)
        elif after := _exchange_things(exchanged_places, claim.kinds, scene):
            yield swapped, after


def _turn_inside_out(scene: Scene) -> Scene:
    """Scene with kind, colour and shade of the inner and the outer thing exchanged."""
    a, b = scene.things
    inner = replace(a, kind=b.kind, colour=b.colour, shade=b.shade)
    outer = replace(b, kind=a.kind, colour=a.colour, shade=a.shade)
    return replace(scene, things=(inner, outer))


def _exchange_things(
    exchange: Callable[[Scene], Scene | None], kinds: Sequence[str], scene: Scene
) -> Scene | None:
    """Scene after an exchange between two things of given kinds, or None if it is not possible."""
    order = sorted(range(len(scene.things)), key=lambda i: scene.things[i].kind not in kinds)
    first = replace(scene, things=tuple(scene.things[i] for i in order))
    after = exchange(first)
    if after is None:
        return None
    back = sorted(zip(order, after.things, strict=True), key=lambda pair: pair[0])
    edited = replace(scene, things=tuple(thing for _, thing in back))
    if exchange is exchanged_colours:
        return edited
    before, now = ({(one.x, one.y) for one in of.things[:2]} for of in (first, after))
    free = all(_is_free(edited.things[i], _other_things(edited, i), scene) for i in order[:2])
    return edited if before == now and free else None


EDITS: dict[EditKind, Edit] = {
    "replace_kind": _property_edit("kind", THING_WORDS, _other_kinds),
    "replace_colour": _property_edit("colour", COLOUR_WORDS, _other_colours),
    "replace_pattern": _property_edit("pattern", PATTERN_WORDS, _other_patterns),
    "replace_size": _property_edit("size", SIZE_WORDS, _other_sizes),
    "replace_relation": _replace_relation,
    "replace_place": _replace_place,
    "replace_background": _replace_background,
    "swap_colours": _swap_colours,
    "swap_things": _swap_things,
}
