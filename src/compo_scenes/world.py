"""Scenes and the world they are drawn from: things, colours, sizes, patterns, relations.

A scene is a seeded, serialisable record; its image, captions, counterfactual scenes and benchmark
items follow from it. A hash of its content determines its split: no scene is in two splits.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any, Literal

from compo_pipeline.core.seeding import digest, rng

SCENES = 1
"""Version of scenes: raised where equal settings give other images or texts than before."""

Relation = Literal["left", "right", "above", "below", "inside", "around"]
INVERSE: dict[str, Relation] = {
    "left": "right",
    "right": "left",
    "above": "below",
    "below": "above",
    "inside": "around",
    "around": "inside",
}

THINGS = (
    "ball", "box", "star", "heart", "ring", "moon", "house", "tree",
    "fish", "mug", "key", "flower", "cloud", "boat", "arrow", "cross",
)  # fmt: skip
COLOURS = {
    "red": (214, 40, 40),
    "yellow": (244, 208, 36),
    "green": (52, 150, 66),
    "cyan": (46, 196, 206),
    "blue": (44, 82, 206),
    "purple": (128, 56, 168),
    "pink": (246, 132, 186),
    "brown": (138, 86, 44),
}
BACKGROUNDS = {
    "white": (250, 250, 248),
    "gray": (158, 160, 164),
    "black": (26, 27, 32),
    "beige": (228, 214, 184),
}
PATTERNS = ("solid", "striped", "dotted")
SIZES = {"small": (34, 40), "medium": (48, 56), "large": (68, 78)}
CANVASES = {"wide": (192, 144), "tall": (144, 192), "square": (168, 168)}
NESTED: tuple[Relation, Relation] = ("inside", "around")
# Things with enough body to hold another one, the side of such a container and of what it holds.
CONTAINERS = ("ball", "box", "heart", "ring", "cloud")
CONTAINER_SIZE, CONTENT_SIZE = (92, 100), (28, 32)
# How far below the middle, in shares of its size, a thing holds another; 0 where not named.
DROPS = {"cloud": 0.16, "heart": -0.05}
GAP = 3  # pixels between things, at least


@dataclass(frozen=True, slots=True)
class Thing:
    """A drawn thing of a scene: kind, look, position and size in pixels.

    `shade` shifts its colour a little, so that no two reds are the same.
    """

    kind: str
    colour: str
    size: str
    pattern: str
    x: int
    y: int
    size_px: int
    shade: tuple[int, int, int] = (0, 0, 0)

    def overlaps(self, other: Thing, gap: int) -> bool:
        """Whether the squares of two things come closer than `gap` pixels."""
        reach = (self.size_px + other.size_px) / 2 + gap
        return abs(self.x - other.x) < reach and abs(self.y - other.y) < reach


@dataclass(frozen=True, slots=True)
class Scene:
    """Ground truth of one rendered image: its size, background and things.

    Things are drawn in order, later ones on top.
    """

    scene_id: str
    width: int
    height: int
    background: str
    things: tuple[Thing, ...]
    shade: int = 0

    @property
    def content(self) -> tuple[Any, ...]:
        """Kinds and looks of the scene's things and its background, whose hash gives the split.

        Places and shades are not part of it.
        """
        return (
            self.background,
            *sorted((t.kind, t.colour, t.size, t.pattern) for t in self.things),
        )

    @property
    def split(self) -> str:
        """Split of the scene by a hash of its content: `train` (4/6), `val`, `test` (1/6 each)."""
        return ("train", "train", "train", "train", "val", "test")[
            digest("split", repr(self.content)) % 6
        ]

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Scene:
        """Scene from a dictionary that `asdict` made, as read back from JSON."""
        things = tuple(
            Thing(**{**thing, "shade": tuple(thing["shade"])}) for thing in values["things"]
        )
        return cls(**{**values, "things": things})


@dataclass(frozen=True)
class World:
    """Set of things and colours, and probabilities with which scenes are drawn.

    Attributes:
        things: names of drawn things, of `shapes.SHAPES`.
        colours: names of colours, of `COLOURS`.
        counts: weights of scenes with one, two and three things.
        nested: share of two-thing scenes in which one thing is inside the other.
        distinct_colours: share of scenes whose things all differ in colour.
    """

    things: tuple[str, ...] = THINGS
    colours: tuple[str, ...] = tuple(COLOURS)
    counts: tuple[float, float, float] = (0.25, 0.5, 0.25)
    nested: float = 0.1
    distinct_colours: float = 0.8

    def draw(self, random_: random.Random, scene_id: str, things: int | None = None) -> Scene:
        """Draw a random scene, with a given or a drawn number of things.

        `counts` are the weights of the numbers.
        """
        while True:
            count = things or random_.choices((1, 2, 3), self.counts)[0]
            scene = self._try_draw(random_, scene_id, count)
            if scene is not None:
                return scene

    def _try_draw(self, random_: random.Random, scene_id: str, count: int) -> Scene | None:
        """Draw a random scene with `count` things, or None if a thing does not fit."""
        width, height = random_.choices(tuple(CANVASES.values()), (0.45, 0.45, 0.1))[0]
        kinds = random_.sample(self.things, count)
        if random_.random() < self.distinct_colours:
            colours = random_.sample(self.colours, count)
        else:
            colours = random_.choices(self.colours, k=count)
        nested = count == 2 and kinds[0] in CONTAINERS and random_.random() < self._nested_rate()
        placed: list[Thing] = []
        for kind, colour in zip(kinds, colours, strict=True):
            thing = draw_look(random_, kind, colour, count, nested, first=not placed)
            spot = place_randomly(random_, thing, placed, width, height, nested=nested)
            if spot is None:
                return None
            placed.append(spot)
        background = random_.choice(tuple(BACKGROUNDS))
        if nested and placed[0].colour == placed[1].colour:
            return None
        return Scene(scene_id, width, height, background, tuple(placed), random_.randint(-8, 8))

    def _nested_rate(self) -> float:
        """Probability of a nested scene, given that the first thing can contain another thing."""
        holders = sum(kind in CONTAINERS for kind in self.things)
        return min(1.0, self.nested * len(self.things) / holders) if holders else 0.0

    def scenes(
        self, seed: int, split: str, stream: str = "captions", things: int | None = None
    ) -> Iterator[Scene]:
        """Endless iterator of random scenes of one split.

        Each stream name gives other scenes.
        """
        number = 0
        while True:
            scene_id = f"{split}-{stream}-{number:06d}"
            scene = self.draw(rng(seed, "scene", stream, split, number), scene_id, things)
            if scene.split == split:
                yield scene
            number += 1


def draw_look(
    random_: random.Random, kind: str, colour: str, count: int, nested: bool, *, first: bool
) -> Thing:
    """A thing of a given kind and colour, with drawn size, pattern and shade, without position."""
    if nested:
        size, (low, high) = ("large", CONTAINER_SIZE) if first else ("small", CONTENT_SIZE)
    else:
        size = random_.choice(tuple(SIZES) if count < 3 else ("small", "medium"))
        low, high = SIZES[size]
    pattern = random_.choices(PATTERNS, (0.6, 0.2, 0.2))[0]
    if nested and first:
        pattern = "solid"  # a small thing on stripes would be hard to see
    shade = (random_.randint(-12, 12), random_.randint(-12, 12), random_.randint(-12, 12))
    return Thing(kind, colour, size, pattern, 0, 0, random_.randint(low, high), shade)


def place_randomly(
    random_: random.Random,
    thing: Thing,
    others: Sequence[Thing],
    width: int,
    height: int,
    *,
    nested: bool = False,
) -> Thing | None:
    """Copy of a thing at a drawn position, clear of others or inside the first thing, or None."""
    if nested and others:
        drop = DROPS.get(others[0].kind, 0.0)
        return replace(thing, x=others[0].x, y=others[0].y + int(drop * others[0].size_px))
    margin = thing.size_px // 2 + 2
    for _ in range(30):
        spot = replace(
            thing,
            x=random_.randint(margin, width - margin),
            y=random_.randint(margin, height - margin),
        )
        if not any(spot.overlaps(other, GAP) for other in others):
            return spot
    return None


def relation(a: Thing, b: Thing) -> Relation | None:
    """Spatial relation of thing `a` to thing `b`, such as `left`, or None if none is clear."""
    dx, dy = b.x - a.x, b.y - a.y
    if max(abs(dx), abs(dy)) < max(a.size_px, b.size_px) / 4:
        return "inside" if a.size_px < b.size_px else "around"
    if abs(dx) >= 1.6 * abs(dy):
        return "left" if dx > 0 else "right"
    if abs(dy) >= 1.6 * abs(dx):
        return "above" if dy > 0 else "below"
    return None


def place(thing: Thing, scene: Scene) -> tuple[str, ...]:
    """Sides of the image at which a thing is (left, right, top, bottom), empty for the middle."""
    across, down = thing.x / scene.width, thing.y / scene.height
    words = []
    if down < 0.36:
        words.append("top")
    elif down > 0.64:
        words.append("bottom")
    if across < 0.36:
        words.append("left")
    elif across > 0.64:
        words.append("right")
    return tuple(words)


def exchanged_places(scene: Scene) -> Scene | None:
    """Copy of a scene with its first two things' places exchanged, or None if they do not fit."""
    if len(scene.things) < 2 or relation(*scene.things[:2]) in NESTED:
        return None
    a, b, *others = scene.things
    things = (fit(a, b, scene), fit(b, a, scene), *others)
    if any(one.overlaps(other, 0) for one, other in combinations(things, 2)):
        return None
    return replace(scene, scene_id=f"{scene.scene_id}-exchange_places", things=things)


def exchanged_colours(scene: Scene) -> Scene | None:
    """Copy of a scene with its first two things' colours exchanged, or None if both are equal."""
    if len(scene.things) < 2 or scene.things[0].colour == scene.things[1].colour:
        return None
    a, b, *others = scene.things
    things = (replace(a, colour=b.colour), replace(b, colour=a.colour), *others)
    return replace(scene, scene_id=f"{scene.scene_id}-exchange_colours", things=things)


def fit(thing: Thing, spot: Thing, scene: Scene) -> Thing:
    """Copy of a thing at another thing's position, moved inwards to stay inside the image."""
    margin = thing.size_px // 2 + 2
    return replace(
        thing,
        x=min(max(spot.x, margin), scene.width - margin),
        y=min(max(spot.y, margin), scene.height - margin),
    )
