"""Benchmark items about scenes, in the formats of SugarCrepe and SugarCrepe++.

Each item has one image, two true captions in different words (P1, P2), and a false one that differs
from P1 by one replacement, swap or addition (N).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from random import Random

from compo_scenes.captions import (
    JOINED,
    PATTERN_WORDS,
    RELATED,
    RELATION_WORDS,
    SIZE_WORDS,
    Phrase,
    related,
    sentence,
)
from compo_scenes.world import INVERSE, NESTED, Relation, Scene, Thing, World, relation


@dataclass(frozen=True, slots=True)
class SceneItem:
    """A benchmark item: a scene, two captions that are true of it, and a false one."""

    scene: Scene
    caption: str
    caption2: str
    negative: str


@dataclass(frozen=True, slots=True)
class Claim:
    """Content of a caption: two things, optionally their relation and an added thing."""

    a: Phrase
    b: Phrase
    relation: Relation | None
    added: Phrase | None = None


Pair = tuple[Claim, Claim]
"""A true claim and a false one."""

Change = Callable[[Claim, Scene, World, Random], Pair | None]


def _replace_object(claim: Claim, scene: Scene, world: World, random_: Random) -> Pair:
    """The true claim, and a false one with another kind of thing in place of the first."""
    kind = random_.choice([k for k in world.things if k not in {t.kind for t in scene.things}])
    return claim, replace(claim, a=replace(claim.a, kind=kind))


def _replace_attribute(claim: Claim, scene: Scene, world: World, random_: Random) -> Pair:
    """A true claim, and a false one with another colour, pattern or size of the first thing."""
    thing = scene.things[0]
    named = random_.random()
    if named < 0.25 and thing.pattern in PATTERN_WORDS:
        other = "dotted" if thing.pattern == "striped" else "striped"
        true = replace(claim, a=replace(claim.a, pattern=thing.pattern))
        return true, replace(claim, a=replace(claim.a, pattern=other))
    if named < 0.4 and thing.size in SIZE_WORDS:
        other = "large" if thing.size == "small" else "small"
        true = replace(claim, a=replace(claim.a, size=thing.size))
        return true, replace(claim, a=replace(claim.a, size=other))
    shown = {t.colour for t in scene.things}
    colour = random_.choice([c for c in world.colours if c not in shown])
    return claim, replace(claim, a=replace(claim.a, colour=colour))


def _replace_relation(claim: Claim, scene: Scene, world: World, random_: Random) -> Pair | None:
    """The true claim, and a false one with the inverse relation, or None without a relation."""
    if claim.relation is None:
        return None
    return claim, replace(claim, relation=INVERSE[claim.relation])


def _swap_objects(claim: Claim, scene: Scene, world: World, random_: Random) -> Pair | None:
    """The true claim, and a false one with its things exchanged, or None without a relation."""
    if claim.relation is None:
        return None
    return claim, replace(claim, a=claim.b, b=claim.a)


def _swap_attributes(claim: Claim, scene: Scene, world: World, random_: Random) -> Pair:
    """The true claim, and a false one with the colours of its two things exchanged."""
    a, b = claim.a, claim.b
    return claim, replace(claim, a=replace(a, colour=b.colour), b=replace(b, colour=a.colour))


def _add_object(claim: Claim, scene: Scene, world: World, random_: Random) -> Pair:
    """The true claim, and a false one that adds a thing which is not in the scene."""
    kind = random_.choice([k for k in world.things if k not in {t.kind for t in scene.things}])
    colour = random_.choice(world.colours) if random_.random() < 0.5 else None
    return claim, replace(claim, added=Phrase(kind, colour))


def _add_attribute(claim: Claim, scene: Scene, world: World, random_: Random) -> Pair:
    """The true claim, and a false one that adds a wrong size or pattern to the first thing."""
    thing = scene.things[0]
    if thing.size in SIZE_WORDS and random_.random() < 0.5:
        false = "small" if thing.size == "large" else "large"
        return claim, replace(claim, a=replace(claim.a, size=false))
    false = "striped" if thing.pattern != "striped" else "dotted"
    return claim, replace(claim, a=replace(claim.a, pattern=false))


CHANGES: dict[str, Change] = {
    "replace_obj": _replace_object,
    "replace_att": _replace_attribute,
    "replace_rel": _replace_relation,
    "swap_obj": _swap_objects,
    "swap_att": _swap_attributes,
    "add_obj": _add_object,
    "add_att": _add_attribute,
}
SUGAR_CREPE = tuple(CHANGES)
SUGAR_CREPE_PP = SUGAR_CREPE[:5]


def _draw_claim(subtask: str, a: Thing, b: Thing, random_: Random) -> Claim:
    """Draw the content of an item's true captions: two things, their colours, their relation.

    It names the relation where the subtask is about it or one thing is inside the other, else half
    the time; and the colours, except in half of the items about relations alone.
    """
    about_relation = subtask in ("replace_rel", "swap_obj")
    between = relation(a, b)
    if not about_relation and random_.random() >= 0.5 and between not in NESTED:
        between = None
    plain = about_relation and random_.random() < 0.5
    return Claim(
        Phrase(a.kind, None if plain else a.colour),
        Phrase(b.kind, None if plain else b.colour),
        between,
    )


def _plain_sentence(claim: Claim, form: int) -> str:
    """Sentence for a claim, in a fixed form without synonyms.

    So P1 and N differ by the change alone.
    """
    a, b = claim.a.indefinite(None), claim.b.indefinite(None)
    if claim.relation:
        words = RELATION_WORDS[claim.relation][0]
        text = RELATED[form % len(RELATED)].format(a=a, r=words, b=b)
    else:
        text = JOINED[form % len(JOINED)].format(a=a, b=b)
    if claim.added:
        text += f" and {claim.added.indefinite(None)}"
    return sentence(text)


def _reworded_sentence(claim: Claim, form: int, random_: Random) -> str:
    """Sentence that states a claim in other words: second thing first, and synonyms at random."""
    a, b = claim.a.indefinite(random_), claim.b.indefinite(random_)
    if claim.relation:
        return sentence(related(b, a, INVERSE[claim.relation], random_))
    return sentence(JOINED[(form + random_.randint(1, 4)) % len(JOINED)].format(a=b, b=a))


def make_item(subtask: str, scene: Scene, world: World, random_: Random) -> SceneItem | None:
    """Benchmark item of a subtask about a scene's first two things, or None if impossible."""
    if len(scene.things) < 2 or scene.things[0].colour == scene.things[1].colour:
        return None
    claim = _draw_claim(subtask, scene.things[0], scene.things[1], random_)
    changed = CHANGES[subtask](claim, scene, world, random_)
    if changed is None:
        return None
    true, false = changed
    form = random_.randrange(60)
    return SceneItem(
        scene,
        _plain_sentence(true, form),
        _reworded_sentence(true, form, random_),
        _plain_sentence(false, form),
    )


def items(
    subtask: str, scenes: Iterable[Scene], world: World, random_: Random
) -> Iterator[SceneItem]:
    """Iterator of the benchmark items of a subtask, made from scenes."""
    return filter(None, (make_item(subtask, scene, world, random_) for scene in scenes))
