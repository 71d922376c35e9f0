"""Where things are seen: masks against the drawn pixels, phrases against what they are true of."""

from __future__ import annotations

import itertools
import logging
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from compo_scenes.instances import instances, unambiguous, visible
from compo_scenes.render import render
from compo_scenes.world import Scene, Thing, World

BALL = Thing("ball", "red", "large", "solid", 40, 40, 60)
STRIPED = replace(BALL, pattern="striped")
BOX = Thing("box", "blue", "small", "solid", 60, 40, 30)
SCENE = Scene("s", 100, 80, "white", (BALL, BOX))


def of(*scenes: Scene) -> dict[str, Any]:
    entries = [{"id": 7 + n, "width": s.width, "height": s.height} for n, s in enumerate(scenes)]
    return instances(scenes, entries)


def decoded(annotation: dict[str, Any]) -> np.ndarray:
    """A mask pixel by pixel, down the columns."""
    height, width = annotation["segmentation"]["size"]
    pixels = [
        bool(place % 2)
        for place, length in enumerate(annotation["segmentation"]["counts"])
        for _ in range(length)
    ]
    return np.array([[pixels[x * height + y] for x in range(width)] for y in range(height)])


def test_masks_are_the_pixels_that_a_thing_changes() -> None:
    for scene in itertools.islice(World(nested=0.4).scenes(3, "test"), 12):
        # Later things are taken for part of the background, so that what is under them is unseen.
        for number, mask in enumerate(visible(scene)):
            things = scene.things
            without = replace(scene, things=things[:number] + things[number + 1 :])
            changed = (render(scene) != render(without)).any(axis=2)
            # The rim is a mixture: it belongs to the thing where the thing is half of it or more.
            assert not (mask & ~changed).any()
            assert mask.sum() > 0.75 * changed.sum()


def test_a_later_thing_hides_what_lies_under_it() -> None:
    ball, box = visible(SCENE)
    alone = visible(replace(SCENE, things=(BALL,)))[0]
    assert not (ball & box).any()
    np.testing.assert_array_equal(ball, alone & ~box)
    assert alone[40, 60] and not ball[40, 60]


def test_annotations_are_cocos() -> None:
    written = of(SCENE)
    categories = {entry["id"]: entry["name"] for entry in written["categories"]}
    assert written["info"]["left_out"] == 0
    assert [image["id"] for image in written["images"]] == [7]
    assert [entry["id"] for entry in written["annotations"]] == [1, 2]
    for entry, mask, name in zip(
        written["annotations"], visible(SCENE), ("ball", "box"), strict=True
    ):
        assert (entry["image_id"], categories[entry["category_id"]]) == (7, name)
        assert entry["iscrowd"] == 0 and entry["segmentation"]["size"] == [80, 100]
        np.testing.assert_array_equal(decoded(entry), mask)
        rows, columns = np.nonzero(mask)
        left, top, width, height = entry["bbox"]
        assert (left, left + width - 1) == (columns.min(), columns.max())
        assert (top, top + height - 1) == (rows.min(), rows.max())
        assert entry["area"] == mask.sum()
    assert [entry["phrase"] for entry in written["annotations"]] == ["a red ball", "a blue box"]


def test_a_mask_that_begins_in_the_first_pixel_begins_with_no_run_outside() -> None:
    corner = Scene("c", 40, 40, "white", (replace(BOX, x=10, y=10),))
    (entry,) = of(corner)["annotations"]
    assert entry["segmentation"]["counts"][0] == 0 and decoded(entry)[0, 0]


@pytest.mark.parametrize(
    ("thing", "other", "phrase"),
    [
        (BALL, replace(BOX, kind="ball"), "a red ball"),
        (BALL, replace(BALL, kind="box"), "a red ball"),
        (BALL, replace(BALL, pattern="dotted"), None),
        (BALL, replace(BALL, size="small"), "a large red ball"),
        (BALL, BALL, None),
        (STRIPED, BALL, "a striped red ball"),  # what the words can add
    ],
)
def test_a_phrase_is_true_of_one_thing_alone(
    thing: Thing, other: Thing, phrase: str | None
) -> None:
    assert unambiguous(thing, replace(SCENE, things=(thing, other))) == phrase


def test_hidden_and_nameless_things_are_left_out_and_counted(
    caplog: pytest.LogCaptureFixture,
) -> None:
    hidden = Scene("h", 100, 80, "white", (replace(BOX, size_px=20), replace(BALL, x=60)))
    twins = Scene("t", 100, 80, "white", (BALL, replace(BALL, x=70)))
    with caplog.at_level(logging.WARNING):
        written = of(hidden, twins)
    assert [entry["phrase"] for entry in written["annotations"]] == ["a red ball"]
    assert written["info"]["left_out"] == 3 and "3 things" in caplog.text
