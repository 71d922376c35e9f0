import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from compo_pipeline.benchmarks.items import Item, Subtask
from compo_pipeline.evaluation import scoring
from compo_pipeline.evaluation.embed import Embedded
from compo_pipeline.evaluation.metrics import metric_values
from compo_pipeline.evaluation.scoring import MetricScores, score, score_model

Build = Callable[..., Embedded]


def _by_metric(subtask: Subtask, embedded: Embedded) -> dict[str, MetricScores]:
    return {found.key[1]: found for found in score("m", subtask, embedded)}


def test_image_to_text_and_text_only(embedded: Build) -> None:
    items = (
        Item("right", "a.jpg", ("p1", "p2"), ("n",)),
        Item("wrong", "b.jpg", ("p1", "p2"), ("n",)),
        Item("gone", "c.jpg", ("p1", "p2"), ("n",)),
    )
    subtask = Subtask(
        "sugar_crepe_pp", "swap_att", ("image_to_text", "text_only"), Path("i"), items
    )
    model = embedded(
        {"i/a.jpg": [1, 0.1], "i/b.jpg": [0.2, 1]},
        {"p1": [1, 0], "p2": [0.9, 0.3], "n": [0, 1]},
        {"i/c.jpg": "missing: no file"},
    )
    found = _by_metric(subtask, model)
    assert set(found) == {"itt", "tot"}
    itt = {row.item: row for row in found["itt"].rows}
    assert (itt["right"].correct, itt["wrong"].correct, itt["gone"].correct) == (True, False, None)
    assert itt["gone"].skipped == "missing: no file" and itt["gone"].similarities == ()
    # Positives first, then negatives: cos of (1, .1) with (1, 0) and with (0, 1).
    norm = math.hypot(1, 0.1)
    assert itt["right"].similarities[0] == pytest.approx(1 / norm)
    assert itt["right"].similarities[2] == pytest.approx(0.1 / norm)
    # Text alone is scored for every item, image or not.
    assert [row.correct for row in found["tot"].rows] == [True, True, True]
    assert found["itt"].chance == found["tot"].chance == pytest.approx(1 / 3)


def test_groups_and_a_choice_among_images(embedded: Build) -> None:
    items = (
        Item("right", "a.jpg", ("x",), ("y",), ("b.jpg",)),
        Item("wrong", "b.jpg", ("x",), ("y",), ("a.jpg",)),
        Item("gone", "a.jpg", ("x",), ("y",), ("c.jpg",)),
    )
    subtask = Subtask("winoground", "all", ("group", "text_to_image"), Path("i"), items)
    model = embedded(
        {"i/a.jpg": [1, 0.2], "i/b.jpg": [0.1, 1]},
        {"x": [1, 0], "y": [0, 1]},
        {"i/c.jpg": "missing: no file"},
    )
    found = _by_metric(subtask, model)
    assert set(found) == {"text", "image", "group", "group_match", "t2i"}
    for scored in found.values():
        correct = {row.item: row.correct for row in scored.rows}
        assert correct == {"right": True, "wrong": False, "gone": None}
    assert len(found["group"].rows[0].similarities) == 4
    assert found["t2i"].chance == 1 / 2


def test_equal_texts_are_a_tie_hence_wrong(embedded: Build) -> None:
    items = tuple(Item(str(k), f"{k}.jpg", ("same",), ("same",)) for k in range(50))
    subtask = Subtask("sugar_crepe", "swap_obj", ("image_to_text",), Path("i"), items)
    images = {f"i/{k}.jpg": [math.sin(k), math.cos(k), 0.3 * k, 1.0] for k in range(50)}
    found = _by_metric(subtask, embedded(images, {"same": [0.1, 0.7, 0.3, 0.2]}))
    assert not any(row.correct for row in found["accuracy"].rows)
    official = _by_metric(
        replace(subtask, ties_right=True),
        embedded(images, {"same": [0.1, 0.7, 0.3, 0.2]}),
    )
    assert all(row.correct for row in official["accuracy"].rows)


def test_retrieval_with_several_captions_an_image(embedded: Build) -> None:
    items = (
        Item("a", "a.jpg", ("a one", "a two")),
        Item("b", "b.jpg", ("b one",)),
        Item("gone", "c.jpg", ("c one",)),
    )
    subtask = Subtask("retrieval", "raw", ("retrieval",), Path("i"), items)
    model = embedded(
        {"i/a.jpg": [1, 0], "i/b.jpg": [0, 1]},
        # "a two" lies nearer to image b; "c one" would beat all, but its image is missing.
        {"a one": [1, 0.1], "a two": [0.4, 1], "b one": [0.5, 1], "c one": [1, 0]},
        {"i/c.jpg": "missing: no file"},
    )
    found = _by_metric(subtask, model)
    i2t = {row.item: row.correct for row in found["i2t_r1"].rows}
    assert i2t == {"a": True, "b": False, "gone": None}
    t2i = {row.item: row.correct for row in found["t2i_r1"].rows}
    assert t2i == {"a#0": True, "a#1": False, "b#0": True, "gone#0": None}
    assert all(row.correct for row in found["t2i_r5"].rows if row.skipped is None)
    # Image a matches two of the three captions, b one.
    assert found["i2t_r1"].chance == pytest.approx((2 / 3 + 1 / 3) / 2)
    assert found["t2i_r1"].chance == pytest.approx(1 / 2)
    assert {row.group for row in found["t2i_r1"].rows} == {"a.jpg", "b.jpg", "c.jpg"}


def test_zero_shot(embedded: Build) -> None:
    items = (
        Item("0", "a.jpg", ("cup",)),
        Item("1", "b.jpg", ("cup",)),
        Item("2", "c.jpg", ("key",)),
    )
    subtask = Subtask(
        "zero_shot", "things", ("zero_shot",), Path("i"), items, ("cup", "key"), ("a {}", "{}!")
    )
    model = embedded(
        {"i/a.jpg": [1, 0], "i/b.jpg": [0, 1], "i/c.jpg": [0.1, 1]},
        # The two prompts of cup average to (1, 0), though the second alone would lose.
        {"a cup": [1, 1], "cup!": [1, -1], "a key": [0, 1], "key!": [0, 1]},
    )
    scored = list(score("m", subtask, model))
    top1 = next(found for found in scored if found.key[1] == "top1")
    assert [row.correct for row in top1.rows] == [True, False, True]
    assert top1.chance == pytest.approx(1 / 2)
    # Top-5 of two classes would say nothing.
    assert {found.key[1] for found in scored} == {"top1", "per_class"}
    per_class = {f.key[2]: [row.correct for row in f.rows] for f in scored if f != top1}
    assert per_class == {"things/cup": [True, False], "things/key": [True]}


def test_a_subtask_without_any_image_is_skipped_whole(embedded: Build) -> None:
    gone = {"i/a.jpg": "missing: no file"}
    model = embedded({"other": [1, 0]}, {"p": [1, 0], "n": [0, 1]}, gone)
    item = Item("0", "a.jpg", ("p",), ("n",))
    for protocol in ("image_to_text", "retrieval"):
        found = list(score("m", Subtask("x", "y", (protocol,), Path("i"), (item,)), model))
        rows = [row for scored in found for row in scored.rows]
        assert rows and all(row.correct is None and row.skipped for row in rows)


def test_the_names_of_figures_are_told_without_a_model(embedded: Build) -> None:
    """They are those that scores of all items have, under any embeddings."""
    one = tuple(Item(str(n), f"{n}.jpg", ("a",), ("b", "c"), ("0.jpg",)) for n in range(3))
    two = Item("two", "0.jpg", ("a", "b"), ("c", "a"), ("1.jpg",))
    pair = Item("pair", "0.jpg", ("a",), ("b",), ("1.jpg",))
    three = (Item("three", "0.jpg", ("a",), ("b", "c")),)
    classified = tuple(Item(str(n), f"{n}.jpg", ("ab"[n % 2],)) for n in range(3))
    tasks = [
        Subtask("sugar_crepe", "swap_obj", ("image_to_text", "strict_image_to_text"), Path(), one),
        Subtask("sugar_crepe_pp", "swap_obj", ("image_to_text",), Path(), (*one, two)),
        Subtask("sugar_crepe_pp", "swap_att", ("image_to_text", "text_only"), Path(), (two,)),
        Subtask("other", "pairs", ("text_to_image", "average_precision"), Path(), one),
        Subtask("other", "group", ("group",), Path(), (pair,)),
        Subtask("other", "joint", ("joint",), Path(), (two,)),
        Subtask("half", "truth", ("half_truth",), Path(), three),
        Subtask("retrieval", "raw", ("retrieval",), Path(), (*one, two)),
        Subtask("zero_shot", "few", ("zero_shot",), Path(), classified, ("a", "b"), ("a {}",)),
        Subtask("none", "none", ("image_to_text",), Path(), ()),
    ]
    images = {f"./{n}.jpg": [n + 1.0, 1.0] for n in range(3)}
    texts = {name: [1.0, n] for n, name in enumerate(("a", "b", "c", "a a", "a b"))}
    model = embedded(images, texts)
    expected = metric_values(score_model(tasks, model, "m").rows)
    assert set(scoring.figures_of(tasks)) == set(expected)
    assert {"sugar_crepe_pp/itt/swap_obj", "zero_shot/per_class/few"} <= set(expected)
