"""Captions: true in all they say, of the promised length, varied, the same for the same seed."""

import itertools
import re
from collections import Counter
from collections.abc import Callable

import pytest
from tests.scenes.conftest import PAIR

from compo_pipeline.core.seeding import rng
from compo_scenes.captions import (
    alt_text,
    sentences,
)
from compo_scenes.world import Scene, World

WORLD = World()
SCENES = list(itertools.islice(WORLD.scenes(0, "train"), 1200))
TOLD = [sentences(scene, rng(0, "caption", scene.scene_id)) for scene in SCENES]


@pytest.mark.parametrize(
    ("sentence", "holds"),
    [
        ("A red disc is left of a huge striped blue star.", True),
        ("A red disc is right of a huge striped blue star.", False),
        ("A blue star is on the right of a ball against a beige background.", True),
        ("A blue star is on the right of a ball against a gray background.", False),
        ("There are a blue ball and a star.", False),
        ("A red ball and a blue star, and there is also a key.", False),
        ("A star contains a red ball.", False),
        ("The color of the star is blue.", True),
        ("The red one is the star.", False),
        ("The ball looks plain.", True),
        ("The ball looks spotted.", False),
        ("It shows a tiny star.", False),
        ("The ball is at the left side.", True),
        ("A star is placed in the middle.", False),
        ("The wall behind is black.", False),
    ],
)
def test_the_reader_of_these_tests_can_tell(
    is_true: Callable[[str, Scene], bool], sentence: str, holds: bool
) -> None:
    assert is_true(sentence, PAIR) is holds


def test_every_claim_of_every_sentence_is_true(is_true: Callable[[str, Scene], bool]) -> None:
    false = [
        (scene.scene_id, text)
        for scene, told in zip(SCENES, TOLD, strict=True)
        for text in told
        if not is_true(text, scene)
    ]
    assert not false


def test_the_first_sentence_names_every_thing_once(named: Callable[[str], list[str]]) -> None:
    for scene, told in zip(SCENES, TOLD, strict=True):
        assert sorted(named(told[0])) == sorted(t.kind for t in scene.things)


def test_three_to_five_different_sentences_of_four_to_34_words() -> None:
    assert {len(told) for told in TOLD} == {3, 4, 5}
    for told in TOLD:
        assert len(set(told)) == len(told)
        for text in told:
            assert 4 <= len(re.findall(r"\w+", text)) <= 34, text
            assert re.fullmatch(r"[A-Z][a-z, ]+\.", text), text


def test_articles_fit() -> None:
    for text in itertools.chain(*TOLD):
        assert not re.search(r"\b[Aa] [aeiou]|\b[Aa]n [^aeiou]", text), text


def test_wording_varies() -> None:
    """Relations in both directions, synonyms, the passive, and many sentences in all."""
    words = Counter(re.findall(r"\w+", " ".join(itertools.chain(*TOLD)).lower()))
    for synonym in ("disc", "crescent", "turquoise", "huge", "spotted", "beneath", "surrounded"):
        assert words[synonym] > 3, synonym
    assert len(set(itertools.chain(*TOLD))) > 0.5 * sum(map(len, TOLD))


@pytest.mark.parametrize("form", range(5))
def test_alt_texts_speak_of_what_is_there(form: int) -> None:
    """Whatever the kind of alt text: no thing, colour or background that the scene lacks."""
    mix = [float(kind == form) for kind in range(5)]
    absent = re.compile("moon|crescent|tree|key|green|yellow|pink|brown|black|white|dotted")
    there = re.compile("ball|disc|star|background|wall")
    for n in range(60):
        text = alt_text(PAIR, rng(n), mix)
        assert not absent.search(text), text
        assert there.search(text.lower()) or form == 1, text


def test_full_sentences_and_details_among_alt_texts_are_true(
    is_true: Callable[[str, Scene], bool],
) -> None:
    for scene in SCENES[:200]:
        for mix in ((0, 0, 1, 0, 0), (0, 0, 0, 1, 0)):
            assert is_true(alt_text(scene, rng(scene.scene_id), mix), scene)
