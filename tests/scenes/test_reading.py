"""Sentences read back: claims, where they stand, and what is none of the grammar."""

import itertools
from collections.abc import Callable
from itertools import combinations

import pytest

from compo_pipeline.core.seeding import rng
from compo_scenes.captions import sentences
from compo_scenes.reading import read
from compo_scenes.world import Scene, World, place, relation

SCENES = list(itertools.islice(World().scenes(5, "train"), 400))
TOLD = [(scene, text) for scene in SCENES for text in sentences(scene, rng("told", scene.scene_id))]


def test_every_sentence_of_the_captions_is_read_and_true() -> None:
    for scene, text in TOLD:
        reading = read(text)
        assert reading is not None, text
        assert reading.holds(scene), text
        assert reading.with_changes([]) == text


def test_long_captions_claim_every_detail() -> None:
    """As the scene's record has them; each sentence is true and said once."""
    for scene in SCENES[:200]:
        told = sentences(scene, rng("long", scene.scene_id), every=True)
        claims = set()
        for text in told:
            reading = read(text)
            assert reading is not None and reading.holds(scene), text
            claims |= reading.claims
        assert len(set(told)) == len(told)
        assert ("background", scene.background) in claims
        for thing in scene.things:
            for field in ("colour", "pattern"):
                assert (field, getattr(thing, field), thing.kind) in claims
            assert (("size", thing.size, thing.kind) in claims) == (thing.size != "medium")
            for side in place(thing, scene) or ("middle",):
                assert ("place", side, thing.kind) in claims
        pairs = [{a.kind, b.kind} for a, b in combinations(scene.things, 2) if relation(a, b)]
        related = [set(claim[2:]) for claim in claims if claim[0] == "relation"]
        assert all(pair in related for pair in pairs)


def test_reading_agrees_with_a_slow_reader_on_other_scenes(
    is_true: Callable[[str, Scene], bool],
) -> None:
    """On scenes of which nearly all is false; places and relations near their bounds aside."""
    agreed = []
    for (_, text), other in zip(TOLD, itertools.cycle(SCENES[7:]), strict=False):
        reading = read(text)
        assert reading is not None
        if not {"relation", "place"} & {word.field for word in reading.words}:
            assert reading.holds(other) == is_true(text, other), (text, other)
            agreed.append(reading.holds(other))
    assert True in agreed and False in agreed


@pytest.mark.parametrize(
    ("text", "claims"),
    [
        (
            "A tiny striped red disc is left of an arrow, with a tree too on a gray background.",
            {
                ("kind", "ball", "ball"),
                ("size", "small", "ball"),
                ("pattern", "striped", "ball"),
                ("colour", "red", "ball"),
                ("kind", "arrow", "arrow"),
                ("kind", "tree", "tree"),
                ("relation", "left", "ball", "arrow"),
                ("background", "gray"),
            },
        ),
        (
            "A ring contains a key.",
            {
                ("kind", "ring", "ring"),
                ("kind", "key", "key"),
                ("relation", "inside", "key", "ring"),
            },
        ),
        ("The color of the cup is violet.", {("kind", "mug", "mug"), ("colour", "purple", "mug")}),
        ("The pink one is the key.", {("kind", "key", "key"), ("colour", "pink", "key")}),
        ("It shows a plain key.", {("kind", "key", "key"), ("pattern", "solid", "key")}),
        ("The key looks big.", {("kind", "key", "key"), ("size", "large", "key")}),
        ("A key is placed in the middle.", {("kind", "key", "key"), ("place", "middle", "key")}),
        ("The key is on the right side.", {("kind", "key", "key"), ("place", "right", "key")}),
        ("Everything is on a beige background.", {("background", "beige")}),
    ],
)
def test_claims(text: str, claims: set[tuple[str, ...]]) -> None:
    reading = read(text)
    assert reading is not None
    assert reading.claims == claims


@pytest.mark.parametrize(
    ("word", "other"),
    [
        ("left of", "on the right of"),
        ("above", "beneath"),
        ("inside", "around"),
        ("surrounding", "within"),
    ],
)
def test_a_relation_from_the_other_end_is_the_same_claim(word: str, other: str) -> None:
    one, two = read(f"A ball {word} a key."), read(f"There is a key {other} a disc.")
    flipped = read(f"A key {word} a ball.")
    assert one and two and flipped and one.claims == two.claims != flipped.claims


@pytest.mark.parametrize(
    "text",
    [
        "",
        "a ball is here.",
        "A ball is here",
        "A dog is here.",
        "A ball is here and red.",
        "A ball and a ball.",
        "A ball next a key.",
        "The image shows a ball and a key.",
        "A ball is on the middle.",
    ],
)
def test_what_is_none_of_the_grammar(text: str) -> None:
    assert read(text) is None


def test_articles_fit_other_words() -> None:
    reading = read("A ball and an arrow.")
    assert reading is not None
    (ball, arrow) = reading.of_field("kind")
    put = [(ball.start, ball.end, "arrow"), (arrow.start, arrow.end, "ball")]
    assert reading.with_changes(put) == "An arrow and a ball."
