"""Benchmark items: two true captions in different words, and a negative that is false."""

import itertools
import re
from collections.abc import Callable

import pytest
from tests.scenes.conftest import PAIR

from compo_pipeline.core.seeding import rng
from compo_scenes.benchmark import SUGAR_CREPE, SceneItem, items, make_item
from compo_scenes.world import Scene, Thing, World

WORLD = World()
SCENES = list(itertools.islice(WORLD.scenes(0, "test", "benchmark", 2), 400))


def drawn(subtask: str) -> list[SceneItem]:
    return list(items(subtask, SCENES, WORLD, rng(0, subtask)))


@pytest.mark.parametrize("subtask", SUGAR_CREPE)
def test_captions_are_true_and_negatives_false(
    subtask: str, is_true: Callable[[str, Scene], bool]
) -> None:
    """In other words or another order, one item an image, the same under a seed."""
    made = drawn(subtask)
    assert len(made) > 250
    for item in made:
        assert is_true(item.caption, item.scene), item
        assert is_true(item.caption2, item.scene), item
        assert not is_true(item.negative, item.scene), item
        assert item.caption2.lower() not in (item.caption.lower(), item.negative.lower())
    assert len({item.scene.scene_id for item in made}) == len(made)
    assert drawn(subtask) == made


def words(text: str) -> list[str]:
    return re.findall(r"\w+", re.sub(r"\b[Aa]n\b", "a", text).lower())


@pytest.mark.parametrize(
    ("subtask", "pattern"),
    [
        ("replace_obj", r"ball -> \w+"),
        ("replace_att", r"(red|small) -> \w+"),
        ("replace_rel", "left -> right"),
        ("swap_att", "red blue -> blue red"),
        ("add_att", r"-> (large|striped)"),
        ("add_obj", r"-> and a( \w+)? \w+"),
    ],
)
def test_a_negative_differs_by_its_one_change(subtask: str, pattern: str) -> None:
    """Seen on one scene: what left the caption and what came in, position by position."""
    seen = set()
    for seed in range(40):
        item = make_item(subtask, PAIR, WORLD, rng(seed))
        assert item is not None
        true, false = words(item.caption), words(item.negative)
        if len(true) == len(false):
            pairs = [(a, b) for a, b in zip(true, false, strict=True) if a != b]
            gone, come = [a for a, _ in pairs], [b for _, b in pairs]
        else:
            start = next(
                (i for i, (a, b) in enumerate(zip(true, false, strict=False)) if a != b), len(true)
            )
            extra = len(false) - len(true)
            assert true[start:] == false[start + extra :]
            gone, come = [], false[start : start + extra]
        change = f"{' '.join(gone)} -> {' '.join(come)}".strip()
        assert re.fullmatch(pattern, change), item
        seen.add(change)
    assert seen


def test_swapped_objects_change_places() -> None:
    item = make_item("swap_obj", PAIR, WORLD, rng(0))
    assert item is not None
    a, b = (re.findall(r"(?:red |blue )?(?:ball|star)", t) for t in (item.caption, item.negative))
    assert len(a) == 2
    assert b == a[::-1]
    assert words(item.caption) != words(item.negative)
    assert sorted(words(item.caption)) == sorted(words(item.negative))


@pytest.mark.parametrize("subtask", SUGAR_CREPE)
def test_scenes_without_a_question(subtask: str) -> None:
    ball = PAIR.things[0]
    alone = Scene("alone", 192, 144, "beige", (ball,))
    assert make_item(subtask, alone, WORLD, rng(0)) is None
    alike = Thing("star", "red", "large", "striped", 140, 72, 70)
    same = Scene("alike", 192, 144, "beige", (ball, alike))
    assert make_item(subtask, same, WORLD, rng(0)) is None
    slanted = Thing("star", "blue", "large", "striped", 120, 130, 40)
    unclear = Scene("unclear", 192, 144, "beige", (ball, slanted))
    about_relation = subtask in ("replace_rel", "swap_obj")
    item = make_item(subtask, unclear, WORLD, rng(0))
    assert (item is None) == about_relation
