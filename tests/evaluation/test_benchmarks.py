import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from compo_pipeline.benchmarks import loading, retrieval, sugar_crepe, zero_shot
from compo_pipeline.benchmarks.items import Mean, titles
from compo_pipeline.benchmarks.retrieval import clic_text
from compo_pipeline.benchmarks.settings import (
    BenchmarkSet,
    BenchmarksSettings,
    RetrievalSettings,
)
from compo_pipeline.core.records import Caption
from compo_pipeline.core.settings import SettingsError
from compo_pipeline.evaluation.contamination import items_hash
from compo_pipeline.evaluation.metrics import reported_metrics

# Complete official files, as their authors published them.
OFFICIAL = {
    "add_att": 692,
    "add_obj": 2062,
    "replace_att": 788,
    "replace_obj": 1652,
    "replace_rel": 1406,
    "swap_att": 666,
    "swap_obj": 245,
}


@pytest.fixture
def write(tmp_path: Path) -> Callable[[str, object], Path]:
    def save(name: str, content: object) -> Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(content))
        return tmp_path

    return save


def test_official_sugar_crepe_files(shared: Path) -> None:
    subtasks = sugar_crepe.load(
        shared / "benchmarks" / "sugar_crepe", shared / "coco_mini" / "val2017"
    )
    assert {task.name: len(task.items) for task in subtasks} == OFFICIAL
    first = next(task for task in subtasks if task.name == "replace_att").items[0]
    assert first.positives == ("A tan toilet and sink combination in a small room.",)
    assert first.negatives == ("A white toilet and sink combination in a small room.",)


def test_official_sugar_crepe_pp_files(shared: Path) -> None:
    subtasks = sugar_crepe.load_pp(
        shared / "benchmarks" / "sugar_crepe_pp", shared / "coco_mini" / "val2017"
    )
    counts = {task.name: len(task.items) for task in subtasks}
    assert counts == {name: OFFICIAL[name] for name in counts} and len(counts) == 5
    item = next(task for task in subtasks if task.name == "swap_obj").items[0]
    assert item.positives == (
        "A cat sits on its hind legs, and swats at the plant.",
        "The cat swats at the plant while sitting on its hind legs.",
    )
    assert item.negatives == ("A cat sits on the plant, and swats at its hind legs.",)


def test_zero_shot_fills_templates(write: Callable[[str, object], Path]) -> None:
    content = {
        "templates": ["a {}", "one {} here"],
        "classes": ["cup", "key"],
        "items": [{"filename": "1.jpg", "class": "key"}],
    }
    root = write("zero_shot/things.json", content)
    (subtask,) = zero_shot.load(root / "zero_shot", root)
    assert list(subtask.texts()) == ["a cup", "one cup here", "a key", "one key here"]
    assert subtask.items[0].positives == ("key",)


def test_clic_text() -> None:
    # Punctuation of the list goes, other marks stay.
    assert clic_text('A "big" dog. (It #barks!) Well; isn\'t it: fine?') == (
        "a big dog it barks well isn't it fine?"
    )
    assert clic_text(" ".join(f"w{k}" for k in range(40))).split() == [f"w{k}" for k in range(30)]


def _caption(number: int, image: str, text: str, split: str = "test") -> Caption:
    sentences = (text, "It is sunny.")
    return Caption(f"s{number}", image, f"{split}/{image}.jpg", 1, 1, sentences, "x", split)


CAPTIONS = [
    _caption(0, "a", "A dog."),
    _caption(1, "b", "A cat!"),
    _caption(2, "a", "One dog."),
    _caption(3, "c", "A bird.", "train"),
]


def test_retrieval_gathers_the_captions_of_each_image_of_one_split() -> None:
    (subtask,) = retrieval.load(CAPTIONS, Path("root"), RetrievalSettings("test", "clic"))
    assert subtask.name == "clic"
    assert [(item.image, item.positives) for item in subtask.items] == [
        ("test/a.jpg", ("a dog", "one dog")),
        ("test/b.jpg", ("a cat",)),
    ]
    (raw,) = retrieval.load(CAPTIONS, Path("root"), RetrievalSettings("test", "raw"))
    assert raw.items[1].positives == ("A cat!",)


def test_retrieval_of_whole_captions_beside_the_first_sentences() -> None:
    raw, whole = retrieval.load(CAPTIONS, Path("root"), RetrievalSettings("test", ("raw", "whole")))
    assert (raw.name, whole.name) == ("raw", "whole")
    assert raw.items[0].positives == ("A dog.", "One dog.")
    assert whole.items[0].positives == ("A dog. It is sunny.", "One dog. It is sunny.")
    keys = {(retrieval.NAME, "i2t_r1", task.name): 2 for task in (raw, whole)}
    labels = [metric.label for metric in reported_metrics(keys)]
    assert labels == ["Retrieval image to text R@1", "Retrieval image to text R@1 whole"]


def test_retrieval_of_a_split_without_captions_names_the_others() -> None:
    with pytest.raises(SettingsError, match=r"'val' \(splits with captions: test, train\)"):
        retrieval.load(CAPTIONS, Path("root"), RetrievalSettings("val"))


def test_gather_reads_what_is_switched_on(write: Callable[[str, object], Path]) -> None:
    record = {"filename": "1.jpg", "caption": "a dog", "negative_caption": "a cat"}
    root = write("sugar_crepe/swap_obj.json", {"0": record})
    sets = {"sugar_crepe": BenchmarkSet(), "zero_shot": None}
    settings = BenchmarksSettings(str(root), str(root), sets)
    found = loading.gather(settings, CAPTIONS, root)
    assert [task.benchmark for task in found] == ["sugar_crepe", "retrieval"]
    assert all(task.limits.exif for task in found)
    found = loading.gather(replace(settings, exif=False), CAPTIONS, root)
    assert not any(task.limits.exif for task in found)


def test_files_that_are_not_the_official_ones_say_so(write: Callable[[str, object], Path]) -> None:
    record = {"filename": "1.jpg", "caption": "a dog", "negative_caption": "a cat"}
    root = write("sugar_crepe/swap_obj.json", {"0": record})
    settings = BenchmarksSettings(str(root), sets={"sugar_crepe": BenchmarkSet()})
    (official,) = loading.from_files(settings)
    assert titles([official]) == {}
    write("benchmarks.json", {"source": "mine", "titles": {"sugar_crepe": "SugarCrepe-style"}})
    (own,) = loading.from_files(settings)
    named = titles([own])
    keys = [("sugar_crepe", "accuracy", "swap_obj")]
    assert reported_metrics(dict.fromkeys(keys, 1), named)[0].label == "SugarCrepe-style swap obj"
    assert reported_metrics(dict.fromkeys(keys, 1))[0].label == "SugarCrepe swap obj"
    assert items_hash([own]) == items_hash([official]) and repr(own) == repr(official)
    write("benchmarks.json", ["SugarCrepe-style"])
    with pytest.raises(SettingsError, match=r"benchmarks\.json: expected"):
        loading.from_files(settings)


def test_without_a_folder_retrieval_alone_is_asked() -> None:
    (subtask,) = loading.gather(BenchmarksSettings(), CAPTIONS, Path("root"))
    assert subtask.benchmark == "retrieval"
    with pytest.raises(SettingsError, match="nothing is scored"):
        loading.gather(BenchmarksSettings(retrieval=RetrievalSettings(None)), CAPTIONS, Path())


def test_mean_per_class_is_over_the_classes_of_a_set() -> None:
    keys = [("zero_shot", "per_class", f"{part}") for part in ("a/x", "a/y", "b/x")]
    found = {m.name: dict(m.weights) for m in reported_metrics(dict.fromkeys(keys, 1))}
    assert found == {"a": {"a/x": 0.5, "a/y": 0.5}, "b": {"b/x": 1}}


def test_weights_of_nested_means() -> None:
    items = {"a": 1, "b": 3, "c": 4}
    assert Mean(("a", Mean(("b", "c")))).weights(items) == {"a": 0.5, "b": 0.25, "c": 0.25}
    assert Mean(("a", "b"), by_items=True).weights(items) == {"a": 0.25, "b": 0.75}
    # The same subtask may be in two parts.
    assert Mean((Mean(("a", "b"), by_items=True), "a")).weights(items) == {"a": 0.625, "b": 0.375}


def test_images_are_in_the_folder_of_a_benchmark_or_beside_it(tmp_path: Path) -> None:
    root = tmp_path / "benchmarks"
    for folder in ("sugar_crepe", "winoground/images", "images"):
        (root / folder).mkdir(parents=True)
    sets: dict[str, BenchmarkSet | None] = {
        "sugar_crepe": BenchmarkSet(),
        "winoground": BenchmarkSet(),
        "bivlc": BenchmarkSet(root=str(root / "sugar_crepe")),
        "cola": BenchmarkSet(images=str(tmp_path / "cola")),
    }
    settings = BenchmarksSettings(root=str(root), sets=sets)
    found = {place.benchmark.name: place.images for place in loading.enabled_folders(settings)}
    assert found == {
        "sugar_crepe": root / "images",
        "winoground": root / "winoground" / "images",
        "bivlc": root / "sugar_crepe" / "images",
        "cola": tmp_path / "cola",
    }
    named = replace(settings, images=str(tmp_path))
    assert {
        place.benchmark.name: place.images for place in loading.enabled_folders(named)
    } == dict.fromkeys(("sugar_crepe", "winoground", "bivlc"), tmp_path) | {
        "cola": tmp_path / "cola"
    }


def test_files_may_be_in_a_folder_data(write: Callable[[str, object], Path]) -> None:
    record = {"filename": "1.jpg", "caption": "a dog", "negative_caption": "a cat"}
    root = write("sugar_crepe/swap_obj.json", {"7": record}) / "sugar_crepe"
    expected = sugar_crepe.load(root, root / "images")
    write("sugar_crepe/data/swap_obj.json", {"7": record, "8": record})
    assert sugar_crepe.load(root, root / "images") == expected
    (root / "swap_obj.json").unlink()
    (found,) = sugar_crepe.load(root, root / "images")
    assert [item.item for item in found.items] == ["7", "8"]
