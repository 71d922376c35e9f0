"""Choices among captions of an image: ARO, VALSE, What'sUp, CREPE, VL-CheckList."""

import csv
import json
import random
import re
from collections.abc import Callable
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import pytest
from PIL import Image

from compo_pipeline.benchmarks.items import Subtask
from compo_pipeline.benchmarks.loading import from_files
from compo_pipeline.benchmarks.settings import BENCHMARKS, BenchmarkSet, BenchmarksSettings
from compo_pipeline.core.settings import SettingsError
from compo_pipeline.data.images.decoding import ImageError, load
from compo_pipeline.evaluation import scoring
from compo_pipeline.evaluation.embed import Embedded
from compo_pipeline.evaluation.evaluate import audit
from compo_pipeline.evaluation.metrics import metric_values, reported_metrics

BOX = {"bbox_x": 10, "bbox_y": 20, "bbox_w": 30, "bbox_h": 40}
CAPTIONS = {"true_caption": "a dog on a car", "false_caption": "a car on a dog"}
SHUFFLES = {f"hard_text_{k}": f"dog a {k}" for k in range(1, 5)}


@pytest.fixture
def loaded(tmp_path: Path) -> Callable[..., dict[str, Subtask]]:
    """Writes files of a benchmark and loads its subtasks, by name."""

    def read(
        name: str, files: dict[str, Any], ties: Any = "strict", items: int | None = None
    ) -> dict[str, Subtask]:
        for path, content in files.items():
            file = tmp_path / name / path
            file.parent.mkdir(parents=True, exist_ok=True)
            if file.suffix == ".csv":
                with file.open("w", newline="") as lines:
                    csv.writer(lines).writerows([content[0], *(row.values() for row in content)])
            else:
                file.write_text(content if isinstance(content, str) else json.dumps(content))
        sets = {name: BenchmarkSet(items=items)}
        found = from_files(BenchmarksSettings(str(tmp_path), sets=sets, ties=ties))
        return {task.name: task for task in found}

    return read


def averages(name: str, values: dict[str, float], items: int = 1) -> dict[str, float]:
    """The reported metrics of subtasks with these accuracies."""
    found = reported_metrics({(name, "accuracy", task): items for task in values})
    return {
        metric.name: sum(values[task] * weight for task, weight in metric.weights.items())
        for metric in found
    }


def verdicts(task: Subtask, embedded: Callable[..., Embedded], angles: list[float]) -> list[Any]:
    """Whether each item is right, where a text at angle 0 is like its image and others less.

    Args:
        task: with items of the same number of texts.
        embedded: the fixture.
        angles: of the distinct texts, in the order of the items.
    """
    images = {str(path): [1.0, 0.0] for item in task.items for path in task.paths(item)}
    texts = dict.fromkeys(task.texts())
    vectors = {
        text: [np.cos(angle), np.sin(angle)] for text, angle in zip(texts, angles, strict=True)
    }
    scored = next(iter(scoring.score("m", task, embedded(images, vectors))))
    return [row.correct for row in scored.rows]


def _relation(name: str, **changes: Any) -> dict[str, Any]:
    return {"image_path": "7.jpg", "relation_name": name, **BOX, **CAPTIONS, **changes}


def _pair(first: str, second: str) -> dict[str, Any]:
    return {"image_path": "7.jpg", "attributes": [first, second], **BOX, **CAPTIONS}


def test_aro_crops_and_takes_means_over_relations_and_pairs(
    loaded: Callable[..., dict[str, Subtask]], tmp_path: Path, embedded: Callable[..., Embedded]
) -> None:
    files = {
        "visual_genome_relation.json": [
            _relation("left of"),
            _relation("left of", true_caption="x", false_caption="y", bbox_x=0),
            _relation("left of", true_caption="same", false_caption="equal"),
            _relation("on", true_caption="u", false_caption="v"),
            _relation("next to"),
            _relation("with"),
        ],
        "visual_genome_attribution.json": [_pair("red", "old")] * 25 + [_pair("red", "new")] * 24,
    }
    tasks = loaded("aro", files, "official")
    assert {name: len(task.items) for name, task in tasks.items()} == {
        "vg_relation/left of": 3,
        "vg_relation/on": 1,
        "vg_attribution/red_old": 25,
    }
    left = tasks["vg_relation/left of"]
    assert [item.image for item in left.items][:2] == [
        "7.jpg#xywh=10,20,30,40",
        "7.jpg#xywh=0,20,30,40",
    ]
    # right, wrong, a tie, which is wrong in the official code too
    assert verdicts(left, embedded, [0, 1, 1, 0, 1, 1]) == [True, False, False]
    (tmp_path / "images").mkdir()
    Image.new("RGB", (100, 100)).save(tmp_path / "images" / "7.jpg")
    assert load(*left.image_locations(left.items[0])[0]).size == (30, 40)
    dropped = [count for task in tasks.values() for count in task.dropped.values()]
    assert dropped == [24, 2]
    empty = embedded({str(left.path(left.items[0])): [1.0]}, {text: [1.0] for text in left.texts()})
    assert audit([left], empty)[0].dropped == dict(left.dropped)


BOXES = {
    "inside": (10, 20, 30, 40),
    "beyond the right and lower edge": (80, 70, 50, 60),
    "larger than the image": (-10, -10, 200, 200),
    "outside": (150, 160, 20, 30),
    "between pixels": (10.5, 20.5, 30.0, 41.5),
    "as text": ("3.0", "4", "5", "6.5"),
}


@pytest.mark.parametrize("box", BOXES.values(), ids=BOXES)
def test_boxes_of_aro_are_cropped_as_by_pillow(
    loaded: Callable[..., dict[str, Subtask]], tmp_path: Path, box: tuple[Any, ...]
) -> None:
    """The official code calls `crop` of the edges, and pixels outside of the image are black."""
    (tmp_path / "images").mkdir()
    noise = np.random.default_rng(0).integers(1, 256, (90, 100, 3), dtype=np.uint8)
    image = Image.fromarray(noise)
    image.save(tmp_path / "images" / "7.png")
    record = _relation("on", image_path="7.png", **dict(zip(BOX, box, strict=True)))
    (task,) = loaded("aro", {"visual_genome_relation.json": [record]}).values()
    x, y, width, height = map(float, box)
    expected = image.crop((x, y, x + width, y + height))  # type: ignore[arg-type]
    assert np.array_equal(load(*task.image_locations(task.items[0])[0]), expected)


@pytest.mark.parametrize(("edge", "reason"), [(-3, "no_crop"), (10_000_000, "over")])
def test_a_box_without_pixels_or_with_too_many_is_skipped_with_a_reason(
    loaded: Callable[..., dict[str, Subtask]], tmp_path: Path, edge: int, reason: str
) -> None:
    (tmp_path / "images").mkdir()
    Image.new("RGB", (9, 9)).save(tmp_path / "images" / "7.png")
    record = _relation("on", image_path="7.png", bbox_w=edge)
    (task,) = loaded("aro", {"visual_genome_relation.json": [record]}).values()
    with pytest.raises(ImageError, match=rf"^{reason}"):
        load(*task.image_locations(task.items[0])[0])


def test_aro_orders_count_a_tie_as_the_official_code_does(
    loaded: Callable[..., dict[str, Subtask]], embedded: Callable[..., Embedded]
) -> None:
    rows = [
        {"image": "val2014/1.jpg", "correct_caption": "a dog", **SHUFFLES},
        {"image": "val2014/2.jpg", "caption_options": ["a dog", *"abcd"]},
        {"image": "val2014/2.jpg", "caption_options": ["a cat", "a cat", *"efg"]},
    ]
    angles = [1, *[2] * 4, *[0] * 4, 0, *[1] * 3]
    for ties in ("strict", "official"):
        (order,) = loaded("aro", {"coco_order.json": rows}, ties).values()
        assert order.name == "coco_order" and order.items[0].negatives == tuple(SHUFFLES.values())
        assert verdicts(order, embedded, angles) == [True, False, True]
        assert not order.deviations


@pytest.mark.parametrize("perfect", [True, False])
def test_orders_of_which_some_change_nothing_have_the_official_value(
    loaded: Callable[..., dict[str, Subtask]], embedded: Callable[..., Embedded], perfect: bool
) -> None:
    """aro_datasets.py: the share of rows whose argmax is the first column."""
    rows = [
        {"image": f"{number}.jpg", "caption_options": [f"a {number}", *others]}
        for number, others in enumerate([["b"], ["a 1"], ["c"], ["a 3"], ["d"]])
    ]
    (order,) = loaded("aro", {"coco_order.json": rows}).values()
    images = {str(order.path(item)): [1.0, 0.0] for item in order.items}
    right = {item.positives[0] for item in order.items}
    texts = {
        text: [1.0, 0.0] if text in right or not perfect else [0.0, 1.0] for text in order.texts()
    }
    scores = np.array(
        [[texts[text][0] for text in row["caption_options"]] for row in rows]  # type: ignore[index]
    )
    official = 100 * float((scores.argmax(axis=1) == 0).mean())
    scored = scoring.score_model([order], embedded(images, texts), "m")
    values = metric_values(scored.rows)
    assert values["aro/accuracy/coco_order"] == official == 100
    assert values["aro/strict_accuracy/coco_order"] == (60 if perfect else 0)


def test_averages_of_aro() -> None:
    values = {"vg_relation/a": 0.2, "vg_relation/b": 0.6, "vg_attribution/c": 0.8}
    assert averages("aro", values) == pytest.approx(
        {"vg_relation": 0.4, "vg_attribution": 0.8, "aro2": 0.6}
    )
    orders = {"coco_order": 0.1, "flickr30k_order": 0.3}
    assert averages("aro", {**values, **orders})["aro4"] == pytest.approx(0.4)


def _foil(votes: Any = 3, **changes: Any) -> dict[str, Any]:
    start = {"image_file": "1.jpg", "caption": "a dog", "foil": "a cat"}
    return {**start, "mturk": {"foil": 0, "caption": votes, "other": 0}, **changes}


def test_valse_leaves_out_what_annotators_did_not_confirm(
    loaded: Callable[..., dict[str, Subtask]], embedded: Callable[..., Embedded]
) -> None:
    records = {
        "a": _foil(),
        "b": _foil(2, caption="x", foil="y"),
        "c": _foil(1),
        "d": _foil(caption="u", foil="v"),
    }
    files = {"existence.json": records, "foil-it.json": {"e": _foil()}}
    tasks = loaded("valse", files, "official")
    existence = tasks["existence"]
    assert [item.item for item in existence.items] == ["a", "b", "d"]
    assert existence.items[0].image == "visual7w/images/1.jpg"
    assert tasks["foil-it"].items[0].image == "COCO/val2014/1.jpg"
    assert list(existence.dropped.values()) == [1] and not tasks["foil-it"].dropped
    assert verdicts(existence, embedded, [0, 1, 1, 0, 1, 1]) == [True, False, False]


def test_averages_of_valse() -> None:
    values = {
        "existence": 0.1,
        "plurals": 0.2,
        "relations": 0.3,
        "foil-it": 0.4,
        "counting-hard": 0.3,
        "counting-small-quant": 0.5,
        "counting-adversarial": 0.7,
        "action-replacement": 0.2,
        "actant-swap": 0.4,
        "coreference-standard": 0.5,
        "coreference-hard": 0.9,
    }
    found = averages("valse", values)
    assert found["counting"] == pytest.approx(0.5)
    assert found["average"] == pytest.approx((0.1 + 0.2 + 0.3 + 0.4 + 0.5 + 0.3 + 0.7) / 7)


def test_official_valse_files(shared: Path) -> None:
    root = shared / "benchmarks" / "valse"
    tasks = BENCHMARKS["valse"].load(root, root)  # type: ignore[misc]
    assert len(tasks) == 11
    assert {len(task.items) + sum(task.dropped.values()) for task in tasks} == {40}


def test_whatsup_resolves_paths_by_their_tail(
    loaded: Callable[..., dict[str, Subtask]], embedded: Callable[..., Embedded]
) -> None:
    path = "data/controlled_images/beer-bottle_on_armchair.jpeg"
    files = {
        "controlled_images_dataset.json": [
            {"image_path": path, "caption_options": ["a on b", "c", "d", "e"]},
            {"image_path": f"/home/x/{path}", "caption_options": ["f", "g", "h", "i"]},
            {"image_path": path, "caption_options": ["j", "k", "l", "m"]},
        ],
        "coco_qa_one_obj.json": [[139, "a dog on the left", "a dog on the right"]],
        "vg_qa_two_obj.json": [["2354786", "a dog", "a cat"]],
    }
    tasks = loaded("whatsup", files, "official")
    first = "controlled_images/beer-bottle_on_armchair.jpeg"
    assert {item.image for item in tasks["a"].items} == {first}
    assert tasks["coco_one"].items[0].image == "val2017/000000000139.jpg"
    assert tasks["gqa_two"].items[0].image == "vg_images/2354786.jpg"
    # right, wrong, a tie
    angles = [0, 1, 1, 1, 1, 0, 2, 2, 1, 1, 2, 2]
    assert verdicts(tasks["a"], embedded, angles) == [True, False, True]
    strict = loaded("whatsup", {})["a"]
    assert verdicts(strict, embedded, angles) == [True, False, False]
    assert "ties=official" in " ".join(strict.deviations) and not tasks["a"].deviations


def test_pairs_and_sets_of_whatsup_are_right_where_all_their_images_are(
    loaded: Callable[..., dict[str, Subtask]], embedded: Callable[..., Embedded]
) -> None:
    def image(objects: str, place: str, number: int) -> dict[str, Any]:
        first, last = objects.split()
        name = f"data/controlled_clevr/{first}_{place}_{last}.jpeg"
        return {"image_path": name, "caption_options": [f"{k}{number}" for k in "rwxy"]}

    places = ("left_of", "right_of", "in-front_of", "behind")
    names = [("cup mug", place) for place in places] + [("cup box", place) for place in places[:3]]
    records = [image(*name, number) for number, name in enumerate(names)]
    files = {"controlled_clevr_dataset.json": records}
    tasks = loaded("whatsup", files)
    assert {name: len(task.items) for name, task in tasks.items()} == {
        "b": 7,
        "b_pairs": 3,
        "b_sets": 1,
    }

    def right(task: Subtask) -> list[Any]:
        """With right texts at the top, but one of another caption's height."""
        texts = dict.fromkeys(task.texts())
        return verdicts(task, embedded, [float(text[0] != "r" or text == "r3") for text in texts])

    assert right(tasks["b_pairs"]) == [True, False, True]
    assert right(tasks["b_sets"]) == [False]
    assert right(loaded("whatsup", {}, "official")["b_sets"]) == [True]
    assert tasks["b_sets"].items[0].other_images[2] == "controlled_clevr/cup_behind_mug.jpeg"
    for task, chance in ((tasks["b_pairs"], 1 / 16), (tasks["b_sets"], 1 / 256)):
        images = {str(path): [1.0, 0.0] for item in task.items for path in task.paths(item)}
        texts = {text: [1.0, 0.0] for text in task.texts()}
        scored = scoring.score_model([task], embedded(images, texts), "m")
        assert list(scored.chance.values()) == [chance]


def test_the_average_of_whatsup_is_over_six_sets() -> None:
    values = {
        name: k / 10
        for k, name in enumerate(("a", "b", "coco_one", "coco_two", "gqa_one", "gqa_two"))
    }
    assert averages("whatsup", values)["average"] == pytest.approx(0.25)


def _hard(number: int, caption: str, negatives: list[str], **box: Any) -> dict[str, Any]:
    edges = {"x": 1, "y": 2, "width": 30, "height": 40, **box}
    return {"image_id": number, **edges, "caption": caption, "hard_negs": repr(negatives)}


def test_crepe_crops_and_reads_its_list_literals(
    loaded: Callable[..., dict[str, Subtask]], tmp_path: Path, embedded: Callable[..., Embedded]
) -> None:
    (tmp_path / "images" / "VG_100K_2").mkdir(parents=True)
    Image.new("RGB", (50, 50)).save(tmp_path / "images" / "VG_100K_2" / "8.jpg")
    rows = [
        _hard(7, "a dog", ["x", 'the "dog", it\'s']),
        _hard(8, "a cat", ["u", "v"], x="3.0"),
        _hard(8, "a bird", ["r", "s"]),
    ]
    file = "swap/prod_vg_hard_negs_swap_complexity_12.csv"
    (task,) = loaded("crepe", {file: rows}).values()
    assert task.name == "swap_12"
    assert [item.image for item in task.items][:2] == [
        "VG_100K/7.jpg#xywh=1,2,30,40",
        "VG_100K_2/8.jpg#xywh=3,2,30,40",
    ]
    assert task.items[0].negatives == ("x", 'the "dog", it\'s')
    assert verdicts(task, embedded, [0, 1, 1, 1, 0, 1, 1, 1, 2]) == [True, False, False]


def test_averages_of_crepe_need_all_complexities() -> None:
    values = {
        f"{kind}_{number}": place / 10
        for place, kind in enumerate(("atom", "negate", "swap"))
        for number in range(4, 13)
    }
    assert averages("crepe", values)["average"] == pytest.approx(0.1)
    del values["swap_4"]
    assert averages("crepe", values).keys() & {"atom", "swap", "average"} == {"atom"}


def test_vl_checklist_follows_its_index(
    loaded: Callable[..., dict[str, Subtask]], embedded: Callable[..., Embedded]
) -> None:
    index = 'ANNO_PATH: "data/{}.json"\nIMG_ROOT: "hake/"\nTYPE: "TUPLE_JSON"'
    records = [
        ["pic/1.jpg", {"POS": ["a dog", "a pup"], "NEG": ["a cat", "a cub"]}],
        ["pic/2.jpg", {"POS": ["x"], "NEG": ["y"]}],
        ["pic/2.jpg", {"POS": ["u"], "NEG": ["v"]}],
    ]
    tasks = loaded(
        "vl_checklist",
        {
            "corpus/v1/Object/Size/small/hake.yaml": index.format("a"),
            "corpus/v1/Relation/action/swig.yaml": index.format("b"),
            "data/a.json": records,
            "data/b.json": records,
        },
        "official",
    )
    assert tasks.keys() == {"small/hake/hake", "action_r/swig/swig"}
    task = tasks["action_r/swig/swig"]
    assert task.items[0].image == "hake/pic/1.jpg"
    assert (task.items[0].positives, task.items[0].negatives) == (("a dog",), ("a cat",))
    assert verdicts(task, embedded, [0, 1, 1, 0, 1, 1]) == [True, False, False]


def _official_files(shared: Path) -> dict[str, dict[str, list[str]]]:
    """The official grouping: categories to data sets to files, by the names of their results."""
    corpus = shared / "benchmarks" / "vl_checklist" / "corpus.json"
    grouping: dict[str, dict[str, list[str]]] = json.loads(corpus.read_text(encoding="utf-8"))
    return grouping


def test_averages_of_vl_checklist_follow_the_official_grouping(
    shared: Path, loaded: Callable[..., dict[str, Subtask]]
) -> None:
    """Any accuracies of the files, averaged as corpus.json says and as reports do."""
    grouping, random_ = _official_files(shared), random.Random(0)
    names = [name for sets in grouping.values() for files in sets.values() for name in files]
    files: dict[str, Any] = {"data/a.json": [["1.jpg", {"POS": ["a dog"], "NEG": ["a cat"]}]]}
    for name in names:
        # A result is named `<type>_<file>`, the type with / as _; files have _ in their names too.
        place = re.sub("_(hake|swig|vg|vaw)", r"/\1", name, count=1)
        folder, file = place.rsplit("/", 1)
        path = f"corpus/v1/{folder.replace('_', '/')}/{file}.yaml"
        files[path] = "ANNO_PATH: data/a.json\nIMG_ROOT: vg"
    tasks = loaded("vl_checklist", files)
    assert len(tasks) == len(names)
    accuracy = {name: random_.random() for name in names}
    by_category: dict[str, float] = {}
    by_aspect: dict[str, list[float]] = {}
    for category, sets in grouping.items():
        of_sets = [fmean(accuracy[name] for name in files) for files in sets.values()]
        by_category[category] = fmean(of_sets)
        aspect = next(iter(sets.values()))[0].split("_")[0].lower()
        by_aspect.setdefault(aspect, []).append(by_category[category])
    aspects = {aspect: fmean(values) for aspect, values in by_aspect.items()}
    expected = {**by_category, **aspects, "average": fmean(aspects.values())}
    mine = {}
    for task in tasks:
        category, _, file = task.split("/")
        every = [name for files in grouping[category].values() for name in files]
        (name,) = (one for one in every if one.endswith(f"_{file}"))
        mine[task] = accuracy[name]
    assert len(expected) == 13 + 3 + 1
    assert averages("vl_checklist", mine) == pytest.approx(expected)


def test_a_number_of_items_of_vl_checklist_counts_those_with_an_image(
    loaded: Callable[..., dict[str, Subtask]], tmp_path: Path
) -> None:
    """data_loader.py drops rows without image, then evaluate.py takes the first."""
    records = [[f"{n}.jpg", {"POS": [f"right {n}"], "NEG": ["wrong"]}] for n in range(8)]
    (tmp_path / "images" / "vg").mkdir(parents=True)
    for number in (1, 3, 4, 6):
        Image.new("RGB", (8, 8)).save(tmp_path / "images" / "vg" / f"{number}.jpg")
    files = {
        "corpus/v1/Relation/spatial/vg.yaml": "ANNO_PATH: data/a.json\nIMG_ROOT: vg",
        "data/a.json": records,
    }
    (task,) = loaded("vl_checklist", files, items=3).values()
    assert [item.positives for item in task.items] == [("right 1",), ("right 3",), ("right 4",)]
    assert task.dropped == {"no image is there": 2}
    (whole,) = loaded("vl_checklist", files).values()
    assert len(whole.items) == 8 and not whole.dropped


def test_official_vl_checklist_files(shared: Path, tmp_path: Path) -> None:
    data = shared / "benchmarks" / "vl_checklist"
    index = tmp_path / "corpus" / "v1" / "Relation" / "spatial"
    index.mkdir(parents=True)
    # One file, which the official index does not name, is empty; corpus.json names no items.
    files = [file for file in data.glob("*/**/*.json") if json.loads(file.read_bytes())]
    for number, file in enumerate(files):
        (tmp_path / f"{number}.json").write_bytes(file.read_bytes())
        (index / f"vg_{number}.yaml").write_text(f"ANNO_PATH: {number}.json\nIMG_ROOT: vg")
    tasks = BENCHMARKS["vl_checklist"].load(tmp_path, tmp_path)  # type: ignore[misc]
    assert len(tasks) == len(files) > 40
    assert all(0 < len(task.items) <= 20 for task in tasks)


INDEX = "corpus/v1/Object/Size/small/hake.yaml"


@pytest.mark.parametrize(
    ("name", "files", "message"),
    [
        ("aro", {"visual_genome_relation.json": [_relation("of")]}, r"relation\.json: .*left out"),
        ("aro", {"order.json": [{}]}, r"no visual_genome_relation\.json or .*coco_order"),
        ("valse", {"existence.json": {"a": _foil(0)}}, "valse/existence: .*no items"),
        (
            "vl_checklist",
            {INDEX: "!!python/object/apply:os.getcwd []"},
            r"hake\.yaml cannot be read",
        ),
    ],
)
def test_what_cannot_be_scored_is_named(
    loaded: Callable[..., dict[str, Subtask]], name: str, files: dict[str, Any], message: str
) -> None:
    with pytest.raises(SettingsError, match=message) as raised:
        loaded(name, files)
    assert "\n" not in str(raised.value)
