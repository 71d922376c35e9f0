"""Scenes drawn from a sentence alone, checked by the slow reader."""

import itertools
from collections.abc import Callable

import pytest

from compo_pipeline.run.seeding import rng
from compo_scenes.captions import sentences
from compo_scenes.reading import ParsedCaption, read
from compo_scenes.redrawing import imagine
from compo_scenes.world import BACKGROUNDS, NESTED, Scene, Thing, World, relation

IsTrue = Callable[[str, Scene], bool]
Drawn = tuple[Scene, ParsedCaption, str, Scene]


def reading_of(text: str) -> ParsedCaption:
    reading = read(text)
    assert reading is not None
    return reading


@pytest.fixture(scope="module", params=["train", "test"])
def drawn(request: pytest.FixtureRequest) -> list[Drawn]:
    """Scenes, their sentences, and what is drawn from these; some pairs nested."""
    found = []
    for scene in itertools.islice(World(nested=0.3).scenes(0, request.param), 80):
        for text in sentences(scene, rng(scene.scene_id)):
            told = reading_of(text)
            after = imagine(told, scene, World(), rng("imagined", scene.scene_id, text))
            if after is not None:
                found.append((scene, told, text, after))
    return found


def test_nearly_every_sentence_can_be_drawn_within_its_split(drawn: list[Drawn]) -> None:
    assert len(drawn) > 0.98 * 3.9 * 80
    assert all(after.split == scene.split for scene, _, _, after in drawn)


def test_the_sentence_is_true_of_what_is_drawn(drawn: list[Drawn], is_true: IsTrue) -> None:
    for _, _, text, after in drawn:
        assert is_true(text, after), (text, after)


def test_size_and_number_of_things_stay(drawn: list[Drawn]) -> None:
    for scene, _, _, after in drawn:
        assert (after.width, after.height) == (scene.width, scene.height)
        assert len(after.things) == len(scene.things)
        assert len({thing.kind for thing in after.things}) == len(after.things)


def test_things_are_apart_or_told_to_be_nested(drawn: list[Drawn]) -> None:
    nested = 0
    for _, told, _, after in drawn:
        for a, b in itertools.combinations(after.things, 2):
            if a.overlaps(b, gap=0):
                assert relation(a, b) in NESTED
                assert {word.value for word in told.of_field("relation")} & set(NESTED)
                assert a.colour != b.colour
                nested += 1
    assert nested


@pytest.mark.parametrize(
    ("field", "least", "most"), [("colour", 0.02, 0.3), ("size", 0.2, 0.6), ("pattern", 0.3, 0.65)]
)
def test_untold_looks_are_drawn_anew(
    drawn: list[Drawn], field: str, least: float, most: float
) -> None:
    """They equal the old ones as often as draws of the world do."""
    same = []
    for scene, told, _, after in drawn:
        said = {word.kinds for word in told.words if word.field == field}
        nested = any(relation(*pair) in NESTED for pair in itertools.permutations(scene.things, 2))
        old = {thing.kind: thing for thing in scene.things}
        same += [
            getattr(thing, field) == getattr(old[thing.kind], field)
            for thing in after.things
            if thing.kind in told.kinds and (thing.kind,) not in said and not nested
        ]
    assert len(same) > 50
    assert least < sum(same) / len(same) < most


def test_untold_things_places_and_backgrounds_are_drawn_anew(drawn: list[Drawn]) -> None:
    backgrounds, others = [], []
    for scene, told, _, after in drawn:
        if not told.of_field("background"):
            backgrounds.append(after.background == scene.background)
        untold = {thing.kind for thing in scene.things} - set(told.kinds)
        others += [thing.kind in untold for thing in after.things if thing.kind not in told.kinds]
        assert [(t.x, t.y) for t in after.things] != [(t.x, t.y) for t in scene.things]
    assert 0.1 < sum(backgrounds) / len(backgrounds) < 2 / len(BACKGROUNDS)
    assert sum(others) / len(others) < 0.3


THREE = Scene(
    "three",
    192,
    144,
    "beige",
    (
        Thing("ball", "red", "small", "solid", 30, 36, 36),
        Thing("star", "blue", "small", "solid", 140, 96, 36),
        Thing("tree", "green", "small", "solid", 40, 100, 36),
    ),
)
FEW = World(things=("ball", "star", "tree", "key"))


@pytest.fixture
def one_split(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Scene, "split", "train")


@pytest.mark.usefixtures("one_split")
def test_a_sentence_that_must_be_false_is() -> None:
    told, untrue = reading_of("The ball is red."), reading_of("The key is red.")
    with_key = [imagine(told, THREE, FEW, rng(seed)) for seed in range(80)]
    assert any(scene and untrue.holds(scene) for scene in with_key)
    for seed in range(80):
        scene = imagine(told, THREE, FEW, rng(seed), untrue)
        assert scene is not None and not untrue.holds(scene)


@pytest.mark.usefixtures("one_split")
def test_what_cannot_be_is_not_found() -> None:
    told = reading_of("The ball is red.")
    assert imagine(told, THREE, FEW, rng(0), untrue=told) is None


def test_none_where_no_draw_stays_in_the_split(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Scene, "split", property(lambda scene: str(scene == THREE)))
    assert imagine(reading_of("The ball is red."), THREE, FEW, rng(0)) is None
