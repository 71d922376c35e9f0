"""Foils of scenes' captions, against what the renderer drew."""

import hashlib
import re
import sys
from collections.abc import Callable
from functools import partial
from itertools import islice

import pytest
from scipy.stats import beta

from compo_pipeline.core.records import Caption
from compo_pipeline.core.seeding import rng
from compo_pipeline.generation.foils.build import Image, Texts, build
from compo_pipeline.generation.foils.settings import FoilSettings, Kind
from compo_pipeline.language.parsing import parses_of
from compo_scenes.captions import sentences
from compo_scenes.reading import read
from compo_scenes.world import BACKGROUNDS, COLOURS, THINGS, Scene, World

PARSER = partial(parses_of, "compo_en")
# Half-truths join two phrases of a caption in other ways than its grammar does.
_JOINED = re.compile(r" (?:and|with) (?=an? |the )| (?:on|against) (?=(?:a|the) \w+ background$)")
_SILENT = re.compile(r" (?:alone|too|as well)$")


def captions(scene: Scene) -> tuple[str, ...]:
    return tuple(dict.fromkeys(sentences(scene, rng(0, "caption", scene.scene_id))))


def holds(text: str, scene: Scene) -> bool | None:
    """Whether a text is true of a scene; None for one outside the grammar of its captions."""
    claims = read(f"{text[0].upper()}{text[1:].rstrip('.')}.")
    if claims is not None:
        return claims.holds(scene)
    found = [shows(_SILENT.sub("", phrase), scene) for phrase in _JOINED.split(text)]
    return None if None in found else all(found)


def shows(phrase: str, scene: Scene) -> bool | None:
    """Whether a scene has what a phrase names; None for one that is not understood."""
    if phrase == "the things":
        return bool(scene.things)
    if background := re.fullmatch(r"(?:a|the) (\w+) background", phrase):
        return background[1] == scene.background if background[1] in BACKGROUNDS else None
    if one := re.fullmatch(r"the (\w+) one", phrase):
        found = [shows(f"the {one[1]} {thing.kind}", scene) for thing in scene.things]
        return None if None in found else any(found)
    noun = re.sub(r"^(?:an?|the) ", "", phrase)
    named = f"{'an' if noun[0] in 'aeiou' else 'a'} {noun}."
    claims = read(f"There is {named}") or read(named.capitalize())
    return None if claims is None else claims.holds(scene)


def upper_limit(wrong: int, count: int) -> float:
    """Clopper and Pearson's, one-sided, at 95%."""
    return float(beta.ppf(0.95, wrong + 1, count - wrong))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kinds", "scenes"),
    [
        (("swapped_objects", "replaced_relation", "swapped_attributes"), 3900),
        (("replaced_attribute",), 1500),
        (("replaced_object",), 1700),
        (("added_attribute",), 2400),
        (("half_truth",), 1800),
    ],
)
def test_foils_are_false_of_what_was_drawn(
    kinds: tuple[Kind, ...], scenes: int, record_property: Callable[[str, object], None]
) -> None:
    settings = FoilSettings(splits={"test": "test"}, kinds=kinds)
    world = World()
    texts = Texts(
        [captions(scene) for scene in islice(world.scenes(0, "train"), 500)], settings, PARSER
    )
    drawn = {scene.scene_id: scene for scene in islice(world.scenes(0, "test"), scenes)}
    images = [
        Image(
            Caption(name, name, name, 9, 9, captions(scene), "scenes", "test"),
            hashlib.sha256(name.encode()).hexdigest(),
            captions(scene),
        )
        for name, scene in drawn.items()
    ]
    built, _ = build(images, "test", texts, settings, PARSER)
    for kind in kinds:
        items = [item for item in built if item.kind == kind]
        judged = [
            (holds(item.caption, drawn[item.sample_id]), holds(item.foil, drawn[item.sample_id]))
            for item in items
        ]
        wrong = sum(pair != (True, False) for pair in judged)
        limit = upper_limit(wrong, len(judged))
        sys.stdout.write(
            f"{kind}: {wrong} of {len(judged)} items are wrong, at most {100 * limit:.2f}%\n"
        )
        record_property(kind, limit)
        assert len(judged) >= 1000 and limit <= 0.02
        # Who cannot read an item does not know whether it is wrong.
        assert not any(None in pair for pair in judged)


def test_what_a_scene_shows_is_read() -> None:
    """The reader of phrases itself, against scenes whose truth is in their data."""
    for scene in islice(World().scenes(0, "test"), 50):
        shown = scene.things[0]
        other = next(kind for kind in THINGS if kind not in {one.kind for one in scene.things})
        absent = next(name for name in COLOURS if name not in {one.colour for one in scene.things})
        ground = next(name for name in BACKGROUNDS if name != scene.background)
        for text in ("the things", f"the {shown.colour} one", f"the {shown.kind}"):
            assert holds(f"{text} and the {scene.background} background", scene) is True
            assert holds(f"{text} and the {ground} background", scene) is False
            assert holds(f"{text} and the {other}", scene) is False
        assert holds(f"the {absent} one and the {shown.kind}", scene) is False
        assert holds(f"the friendly one and the {shown.kind}", scene) is None
