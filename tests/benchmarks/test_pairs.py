"""Two images with a caption each: official files, and the official scores of hand-made vectors."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from compo_pipeline.benchmarks.items import Subtask
from compo_pipeline.benchmarks.settings import BENCHMARKS
from compo_pipeline.core.settings import SettingsError
from compo_pipeline.evaluation.comparison import compare
from compo_pipeline.evaluation.embed import Embedded
from compo_pipeline.evaluation.metrics import metric_values
from compo_pipeline.evaluation.scoring import score_model

Build = Callable[..., Embedded]

# Vectors of images and captions, so that every pair of one letter has one outcome: both scores
# right; only the text score; only the image score; all four similarities equal.
IMAGES = {
    "r0": [1, 0, 0],
    "r1": [0, 1, 0],
    "t0": [1, 0.9, 0],
    "t1": [0.1, 0.2, 1],
    "i0": [1, 0, 0],
    "i1": [0, 1, 0],
    "e0": [1, 0, 0],
    "e1": [1, 0, 0],
}
TEXTS = {
    "R0": [1, 0, 0],
    "R1": [0, 1, 0],
    "T0": [1, 0, 0],
    "T1": [0, 1, 0],
    "I0": [1, 0.9, 0],
    "I1": [0.1, 0.2, 1],
    "E0": [1, 0, 0],
    "E1": [1, 0, 0],
}


def load(root: Path, name: str, file: str, content: str) -> list[Subtask]:
    (root / file).write_text(content)
    benchmark = BENCHMARKS[name]
    assert benchmark.load is not None
    return benchmark.load(root, Path("i"))


def lines(records: list[Any]) -> str:
    return "\n".join(map(json.dumps, records))


def pair(letter: str, image: str = "{}", **more: Any) -> dict[str, Any]:
    names = {f"image_{k}": image.format(f"{letter.lower()}{k}") for k in (0, 1)}
    return {"id": letter, **names, "caption_0": f"{letter}0", "caption_1": f"{letter}1", **more}


def values(subtasks: list[Subtask], embedded: Build, texts: str = "{}") -> dict[str, float]:
    paths = {str(path) for task in subtasks for item in task.items for path in task.paths(item)}
    images = {path: IMAGES[Path(path).stem] for path in paths}
    model = embedded(images, {texts.format(name): vector for name, vector in TEXTS.items()})
    return metric_values(score_model(subtasks, model, "m").rows)


def test_winoground_and_its_tags(tmp_path: Path, embedded: Build) -> None:
    records = [
        pair("R", collapsed_tag="Object"),
        pair("T", collapsed_tag="Object"),
        pair("I", collapsed_tag="Object"),
        pair("E", collapsed_tag="Relation"),
    ]
    subtasks = load(tmp_path, "winoground", "examples.jsonl", lines(records))
    assert [(task.name, len(task.items)) for task in subtasks] == [("Object", 3), ("Relation", 1)]
    (first, *_) = subtasks[0].items
    assert (first.item, first.image, first.other_images) == ("R", "r0.png", ("r1.png",))
    assert (first.positives, first.negatives) == (("R0",), ("R1",))
    found = values(subtasks, embedded)
    assert {name: found[f"winoground/{name}/all"] for name in ("text", "image", "group")} == {
        "text": 50,
        "image": 50,
        "group": 25,
    }
    assert found["winoground/group/Object"] == pytest.approx(100 / 3)
    assert found["winoground/group/Relation"] == 0


def test_color_swap_and_coco_counterfactuals(tmp_path: Path, embedded: Build) -> None:
    record = {"id": 0, "image_1": "images/r0.png", "image_2": "images/r1.png"}
    content = json.dumps([{**record, "caption_1": "R0", "caption_2": "R1"}])
    (task,) = load(tmp_path, "color_swap", "test.json", content)
    assert (task.items[0].image, task.items[0].other_images) == ("r0.png", ("r1.png",))
    assert values([task], embedded)["color_swap/group/all"] == 100
    content = lines([pair("R"), pair("T")])
    task, retrieved = load(tmp_path, "coco_counterfactuals", "examples.jsonl", content)
    assert retrieved.protocols == ("retrieval",) and len(retrieved.items) == 2
    assert task.items[0].image == "r0.jpg"
    assert values([task], embedded)["coco_counterfactuals/group/all"] == 50


def test_bivlc_by_type(tmp_path: Path, embedded: Build) -> None:
    fields = "image,negative_image,caption,negative_caption,type,subtype"
    rows = ["r0.jpg,r1.jpg,R0,R1,swap,obj", "t0.jpg,t1.jpg,T0,T1,add,att"]
    subtasks = load(tmp_path, "bivlc", "test.csv", "\n".join([fields, *rows]))
    found = values(subtasks, embedded)
    assert [found[f"bivlc/group/{name}"] for name in ("swap", "add", "all")] == [100, 0, 50]


def test_mmvp_pairs_rows(tmp_path: Path, embedded: Build) -> None:
    kinds = {"r": "A", "i": "A", "t": "B"}
    rows = [f"{n}{k},{kind},{n.upper()}{k}" for n, kind in kinds.items() for k in (0, 1)]
    content = "\n".join(["Question ID,Type,Statement", *rows])
    subtasks = load(tmp_path, "mmvp_vlm", "Questions.csv", content)
    item = subtasks[0].items[0]
    assert (item.item, item.image, item.other_images) == ("r0-r1", "A/r0.jpg", ("A/r1.jpg",))
    assert item.positives == ("a photo of R0",)
    found = values(subtasks, embedded, "a photo of {}")
    # The official score, a softmax over the two images above 1/2, is the image score.
    assert found["mmvp_vlm/image/all"] == pytest.approx(200 / 3)
    assert found["mmvp_vlm/group/all"] == pytest.approx(100 / 3)


def test_cola_counts_the_image_direction(tmp_path: Path, embedded: Build) -> None:
    rows = [
        [f"https://a.org/x/{n}0.jpg", f"{n.upper()}0", f"https://a.org/x/{n}1.jpg", f"{n.upper()}1"]
        for n in "rite"
    ]
    name = "COLA_multiobjects_matching_benchmark.json"
    (task,) = load(tmp_path, "cola", name, json.dumps(rows))
    assert (task.items[0].image, task.items[0].other_images) == ("r0.jpg", ("r1.jpg",))
    assert values([task], embedded)["cola/image/all"] == 50
    assert BENCHMARKS["cola"].headline("image", "all")
    assert not BENCHMARKS["cola"].headline("group", "all")


def test_cola_ranks_the_hard_images_of_each_object(tmp_path: Path, embedded: Build) -> None:
    # For each label: whether it is of the image, and whether the image is a hard one.
    table = [
        ["a/1.jpg", {}, [1, 0, 1, 0], [1, 1, 0, 0]],
        ["a/2.jpg", {}, [0, 0, 0, 0], [1, 1, 1, 0]],
        ["a/3.jpg", {}, [1, 0, 0, 0], [1, 1, 1, 0]],
        ["a/4.jpg", {}, [0, 1, 0, 1], [0, 1, 0, 0]],
    ]
    labels = ["red cup", "old mug", "new box", "big dog"]
    name = "COLA_singleobjects_benchmark_GQA.json"
    (task,) = load(tmp_path, "cola", name, json.dumps({"labels": labels, "data": table}))
    assert task.dropped == {"no right image among the hard ones": 2}
    paco = [[image, *flags] for image, _, *flags in table]
    assert load(tmp_path, "cola", name, json.dumps([labels, paco])) == [task]
    assert [(item.image, *item.other_images) for item in task.items] == [
        ("1.jpg", "3.jpg", "2.jpg"),
        ("4.jpg", "1.jpg", "2.jpg", "3.jpg"),
    ]
    images = {f"i/{k}.jpg": [1, 0.1 * k] for k in range(1, 5)}
    model = embedded(images, {"red cup": [1, 0], "old mug": [1, 0.2]})
    scored = score_model([task], model, "m")
    # Ranked 1, 2, 3 with 1 and 3 right; ranked 2, 1 and 3 before 4.
    assert [row.value for row in scored.rows] == [pytest.approx((1 + 2 / 3) / 2), 1 / 4]
    found = metric_values(scored.rows)["cola/average_precision/single_gqa"]
    assert found == pytest.approx(100 * (5 / 6 + 1 / 4) / 2)
    rows = [replace(row, model=role) for role in ("base", "m") for row in scored.rows]
    (row,) = compare([rows], {"base": "base", "m": "m"}, [("m", "base")], scored.chance)
    assert (row.label, row.items, row.values["base"].value) == (
        "Cola mAP single gqa",
        2,
        pytest.approx(found),
    )
    assert row.values["base"].low < found < row.values["base"].high
    assert row.difference.value == 0


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ([["red cup"], [["1.jpg", {}, [1, 0], [1]]]], "image 0: expected 0 or 1"),
        ([["red cup"], [["1.jpg", [1]]]], "image 0: expected a list of 3 or 4"),
        ({"labels": [1], "data": []}, "expected a text 'labels'"),
        ("a", "expected labels and data"),
    ],
)
def test_objects_of_cola_that_cannot_be_read(tmp_path: Path, content: Any, problem: str) -> None:
    with pytest.raises(SettingsError, match=problem):
        load(tmp_path, "cola", "COLA_singleobjects_benchmark_GQA.json", json.dumps(content))


def test_coco_counterfactuals_are_retrieved_among_30_per_cent(tmp_path: Path) -> None:
    records = [pair("R", f"{k}{{}}") | {"id": k, "caption_1": f"R{k}"} for k in range(1741)]
    groups, found = load(tmp_path, "coco_counterfactuals", "examples.jsonl", lines(records))
    assert (len(groups.items), len(found.items)) == (1741, 2 * 522)
    assert load(tmp_path, "coco_counterfactuals", "examples.jsonl", lines(records))[1] == found
    first, second, *_ = found.items
    number = first.item.partition("/")[0]
    assert (first.image, first.positives) == (f"{number}r0.jpg", ("R0",))
    assert (second.image, second.positives) == (f"{number}r1.jpg", (f"R{number}",))


def test_eqben_averages_its_sets(tmp_path: Path, embedded: Build) -> None:
    # One right item in youcook2, kubric_loc and sd; a wrong one in all sets but sd.
    right = {"youcook2", "kubric_loc", "sd"}
    sets = ["youcook2", "gebc", "ag", "kubric_loc", "kubric_attr", "kubric_cnt", "sd"]
    names = [(name, "R") for name in sets if name in right]
    names += [(name, "T") for name in sets if name != "sd"]
    records = [
        {f"image{k}": f"eqben{name}/x/{letter.lower()}{k}.png" for k in (0, 1)}
        | {"caption0": [f"{letter}0", "another"], "caption1": f"{letter}1"}
        for name, letter in names
    ]
    subtasks = load(tmp_path, "eqben", "private_info_global.json", json.dumps(records))
    assert sorted(task.name for task in subtasks) == sorted(sets)
    found = values(subtasks, embedded)
    assert found["eqben/group/youcook2"] == 50
    kubric = (50 + 0 + 0) / 3
    assert found["eqben/group/average"] == pytest.approx((50 + 0 + 0 + kubric + 100) / 5)
