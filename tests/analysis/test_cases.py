"""Cases of the attention analysis: phrases, images and regions."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from compo_pipeline.benchmarks.items import Item, Subtask
from compo_pipeline.configuration.settings import SettingsError, parse
from compo_pipeline.datasets.quality.settings import IngestSettings
from compo_pipeline.datasets.settings import DataSettings
from compo_pipeline.evaluation.analysis.cases import (
    Case,
    Region,
    find_cases,
    image_limits,
    item_cases,
    read_regions,
)
from compo_pipeline.evaluation.analysis.settings import AttentionSettings
from compo_pipeline.images.decoding import Limits
from compo_pipeline.language.parsing import parses_of
from compo_scenes.dataset import SceneSettings, write


def instances(names: list[str]) -> str:
    images = [{"id": n, "file_name": name, "width": 2, "height": 1} for n, name in enumerate(names)]
    region = {"size": [1, 2], "counts": [1, 1]}
    told = [
        {"image_id": n, "phrase": f"thing {n}", "segmentation": region} for n in range(len(names))
    ]
    return json.dumps({"images": images, "annotations": told, "categories": []})


@pytest.fixture
def data(tmp_path: Path) -> DataSettings:
    """A data set whose test split is called val2017."""
    (tmp_path / "annotations").mkdir()
    names = [f"{n}.jpg" for n in range(8)]
    (tmp_path / "annotations" / "instances_val2017.json").write_text(instances(names))
    return DataSettings(tmp_path, "coco_captions", {"train": "train2017", "test": "val2017"})


@pytest.fixture
def own(tmp_path: Path) -> Path:
    """A folder of files of one's own."""
    folder = tmp_path / "my photos"
    (folder / "deeper").mkdir(parents=True)
    for name in ("b.jpg", "a.png", "notes.txt", ".hidden"):
        (folder / name).write_text("x")
    return folder


def test_regions_outside_the_root_need_permission(data: DataSettings, tmp_path: Path) -> None:
    regions = data.root / "annotations" / "instances_val2017.json"
    other = DataSettings(tmp_path / "root", "coco_captions", {"test": "val2017"})
    (other.root / "annotations").mkdir(parents=True)
    (other.root / "annotations" / regions.name).symlink_to(regions)
    with pytest.raises(SettingsError, match=r"data\.splits\.test: .*data\.follow_symlinks"):
        find_cases(AttentionSettings(), other)
    assert find_cases(AttentionSettings(), replace(other, follow_symlinks=True))[0]
    with pytest.raises(SettingsError, match="no plain path"):
        find_cases(AttentionSettings(), replace(other, splits={"test": "../val2017"}))


def test_regions_nested_too_deeply_are_an_error_of_the_file(data: DataSettings) -> None:
    file = data.root / "annotations" / "instances_val2017.json"
    file.write_text("[" * 100_000)
    with pytest.raises(SettingsError, match=r"instances_val2017\.json.*nested levels"):
        find_cases(AttentionSettings(), data)


def test_the_regions_of_the_split_are_asked_for(data: DataSettings) -> None:
    cases, skipped = find_cases(AttentionSettings(), data)
    assert len(cases) == 8 and not skipped
    assert (cases[3].root, cases[3].image) == (data.root / "val2017", "3.jpg")
    assert cases[3].phrase == "thing 3" and cases[3].region is not None


def test_a_file_of_regions_of_ones_own(data: DataSettings, own: Path, tmp_path: Path) -> None:
    (tmp_path / "mine.json").write_text(instances(["b.jpg"]))
    settings = AttentionSettings(images=str(own), regions=str(tmp_path / "mine.json"))
    (case,), _ = find_cases(settings, data)
    assert (case.root, case.image, case.phrase) == (own, "b.jpg", "thing 0")
    (of_split,), _ = find_cases(AttentionSettings(regions=str(tmp_path / "mine.json")), data)
    assert of_split.root == data.root / "val2017"


def test_every_phrase_is_asked_of_every_image_of_a_folder(data: DataSettings, own: Path) -> None:
    settings = AttentionSettings(images=str(own), phrases=" a red shirt; a grey horse;;a red shirt")
    cases, skipped = find_cases(settings, data)
    assert [(case.image, case.phrase) for case in cases] == [
        (name, phrase)
        for name in ("a.png", "b.jpg", "notes.txt")
        for phrase in ("a red shirt", "a grey horse")
    ]
    assert all(case.root == own and case.region is None for case in cases) and not skipped


def test_one_image_of_ones_own(data: DataSettings, own: Path) -> None:
    cases, _ = find_cases(AttentionSettings(images=str(own / "b.jpg"), phrases="a dog"), data)
    assert cases == [Case(own, "b.jpg", "a dog")]


def test_images_of_a_split_are_accepted_as_by_ingest_and_own_ones_may_be_links() -> None:
    strict, lax = IngestSettings(max_pixels=9), IngestSettings(follow_symlinks=True)
    for settings in (AttentionSettings(images="p", regions="r.json"), AttentionSettings()):
        assert image_limits(settings, strict) == Limits(9)
        assert image_limits(settings, lax).follow_symlinks
    own = AttentionSettings(images="p", phrases="a dog")
    assert image_limits(own, strict) == Limits(9, follow_symlinks=True)


def test_a_limit_takes_images_at_random(data: DataSettings) -> None:
    taken = [find_cases(AttentionSettings(limit=3, seed=seed), data)[0] for seed in (0, 0, 1, 2)]
    names = [[case.image for case in cases] for cases in taken]
    assert all(len(own) == 3 and own == sorted(own) for own in names)
    assert names[0] == names[1] and len({tuple(own) for own in names}) > 1
    assert len(find_cases(AttentionSettings(limit=None), data)[0]) == 8


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"phrases": "a dog"}, "set images too"),
        ({"images": "photo.jpg"}, "set phrases"),
        ({"images": "p", "phrases": "a dog", "regions": "r.json"}, "set phrases .*or regions"),
        ({"count": -1}, r"attention\.count: .*greater than or equal to 0 \(got -1\)"),
        ({"limit": 0}, r"attention\.limit: .*greater than 0 \(got 0\)"),
        ({"image": "photo.jpg"}, "did you mean 'images'"),
    ],
)
def test_settings_that_ask_nothing(values: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        parse(AttentionSettings, values, "attention")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"split": "val"}, "attention.split: 'val' is not one of train, test"),
        ({"split": "train"}, "attention.regions: .*instances_train2017.json cannot be read"),
        ({"images": "/nowhere.jpg", "phrases": "a dog"}, "attention.images: there is no file"),
        ({"images": ".", "phrases": " ; "}, "attention.phrases: no phrase in ' ; '"),
    ],
)
def test_what_is_not_there_is_told(
    data: DataSettings, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(SettingsError, match=message):
        find_cases(AttentionSettings(**changes), data)


def test_empty_places_are_told(data: DataSettings, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(SettingsError, match="attention.images: no files in the folder"):
        find_cases(AttentionSettings(images=str(tmp_path / "empty"), phrases="a dog"), data)
    (tmp_path / "none.json").write_text(instances([]))
    with pytest.raises(SettingsError, match="no region of the file can be used .it is empty"):
        find_cases(AttentionSettings(regions=str(tmp_path / "none.json")), data)


DOG, EGG = 18, 5
SQUARE = [1.0, 1.0, 3.0, 1.0, 3.0, 2.0, 1.0, 2.0]
# Of an image 4 wide and 3 high: two pixels of the second column, one of the last.
RUNS = {"size": [3, 4], "counts": [3, 2, 6, 1]}


@pytest.fixture
def file(tmp_path: Path) -> Any:
    """Writes an instances file about one image of 4 x 3 pixels."""

    def make(*annotations: dict[str, Any], **changes: Any) -> Path:
        content = {
            "images": [{"id": 1, "file_name": "a.jpg", "width": 4, "height": 3}],
            "categories": [{"id": DOG, "name": "dog"}, {"id": EGG, "name": "egg"}],
            "annotations": [{"image_id": 1, "category_id": DOG, **a} for a in annotations],
            **changes,
        }
        path = tmp_path / "instances.json"
        path.write_text(json.dumps(content))
        return path

    return make


def only(path: Path) -> Case:
    (case,), skipped = read_regions(path, Path("photos"))
    assert not skipped
    return case


def pixels(case: Case) -> list[list[int]]:
    assert case.region is not None
    return case.region.mask().astype(int).tolist()


def test_run_lengths_go_down_the_columns(file: Any) -> None:
    case = only(file({"segmentation": RUNS, "iscrowd": 1}))
    assert (case.root, case.image, case.phrase) == (Path("photos"), "a.jpg", "a dog")
    assert pixels(case) == [[0, 1, 0, 0], [0, 1, 0, 0], [0, 0, 0, 1]]


def test_polygons_are_drawn(file: Any) -> None:
    case = only(file({"segmentation": [SQUARE]}))
    assert pixels(case) == [[0, 0, 0, 0], [0, 1, 1, 1], [0, 1, 1, 1]]
    two = only(file({"segmentation": [[1, 1, 1, 2, 1, 2], [3, 0, 3, 0, 3, 0]]}))
    assert pixels(two) == [[0, 0, 0, 1], [0, 1, 0, 0], [0, 1, 0, 0]]


def test_things_of_one_name_in_one_image_are_one_region(file: Any) -> None:
    case = only(file({"segmentation": [SQUARE]}, {"segmentation": RUNS}))
    assert pixels(case) == [[0, 1, 0, 0], [0, 1, 1, 1], [0, 1, 1, 1]]


def test_a_phrase_of_its_own_goes_before_the_category(file: Any) -> None:
    annotations = (
        {"segmentation": RUNS, "phrase": "a spotted dog"},
        {"segmentation": RUNS},
        {"segmentation": RUNS, "category_id": EGG},
    )
    cases, _ = read_regions(file(*annotations), Path())
    assert [case.phrase for case in cases] == ["a spotted dog", "a dog", "an egg"]


@pytest.mark.parametrize(
    ("segmentation", "reason"),
    [
        ({"size": [3, 4], "counts": "0o3"}, "compressed run lengths"),
        ({"size": [4, 3], "counts": [3, 2, 6, 1]}, "run lengths of another size"),
        ({"size": [3, 4], "counts": [3, 2, 6]}, "run lengths of another size"),
        ({"size": [3, 4], "counts": [13, -2, 1]}, "run lengths below zero"),
        ([], "no segmentation"),
        (None, "no segmentation"),
        ([[1, 1, 2, 2]], "less than three points"),
        ([[1, 1, 2, 2, 3, 3, 4]], "less than three points"),
    ],
)
def test_what_cannot_be_drawn_is_counted(file: Any, segmentation: Any, reason: str) -> None:
    good = {"segmentation": RUNS, "category_id": EGG}
    cases, skipped = read_regions(file({"segmentation": segmentation}, good), Path())
    assert [case.phrase for case in cases] == ["an egg"]
    assert list(skipped.values()) == [1] and reason in next(iter(skipped))


@pytest.mark.parametrize("first", [True, False])
def test_a_region_of_which_a_piece_is_missing_is_none(file: Any, first: bool) -> None:
    pieces = [{"segmentation": RUNS}, {"segmentation": {"size": [3, 4], "counts": "0o3"}}]
    cases, skipped = read_regions(file(*(pieces if first else pieces[::-1])), Path())
    assert cases == [] and skipped == Counter({"compressed run lengths": 1})


@pytest.mark.parametrize(
    "content",
    ["[]", "not json", '{"images": []}', '{"images": [{}], "categories": [], "annotations": []}'],
)
def test_a_file_of_something_else_is_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / "other.json").write_text(content)
    with pytest.raises(SettingsError, match="attention.regions: .* not a file of COCO instances"):
        read_regions(tmp_path / "other.json", tmp_path)


def test_an_annotation_of_no_image_is_refused(file: Any) -> None:
    with pytest.raises(SettingsError, match="not a file of COCO instances"):
        read_regions(file({"segmentation": RUNS, "image_id": 2}), Path())


def test_a_missing_file_is_told(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"attention\.regions: .*none\.json cannot be read"):
        read_regions(tmp_path / "none.json", tmp_path)


def test_what_scenes_write_is_read(tmp_path: Path) -> None:
    few = {"train": 1, "val": 1, "test": 5, "items": 1, "images": 4, "classified": 1}
    write(SceneSettings(**few), tmp_path)
    path = tmp_path / "annotations" / "instances_test.json"
    cases, skipped = read_regions(path, tmp_path / "test")
    annotations = json.loads(path.read_text())["annotations"]
    assert len(cases) == len(annotations) >= 5 and not skipped
    for case, entry in zip(cases, annotations, strict=True):
        assert (case.root / case.image).is_file() and case.phrase == entry["phrase"]
        assert isinstance(case.region, Region)
        mask = case.region.mask()
        assert mask.sum() == entry["area"]
        left, top, width, height = entry["bbox"]
        assert np.argwhere(mask).min(axis=0).tolist() == [top, left]
        assert np.argwhere(mask).max(axis=0).tolist() == [top + height - 1, left + width - 1]


@pytest.mark.parametrize(
    ("right", "wrong", "phrases"),
    [
        ("A red cube near a ball.", "A blue cube near a ball.", ["a red cube", "a blue cube"]),
        ("A cube left of a ball.", "A cube right of a ball.", ["a cube", "a ball"]),
        ("A cube near a ball.", None, ["a cube", "a ball"]),
        ("red", None, ["red"]),
    ],
)
def test_the_phrases_of_an_item_are_those_in_which_its_texts_differ(
    right: str, wrong: str | None, phrases: list[str], tmp_path: Path
) -> None:
    texts = [text for text in (right, wrong) if text]
    parses = parses_of("compo_en", texts)
    item = Item("0", "a.png", (right,), (wrong,) if wrong else ())
    task = Subtask("b", "s", ("image_to_text",), tmp_path, (item,))
    found = item_cases(task, item, [parses[text] for text in texts])
    assert found == [Case(tmp_path, "a.png", phrase) for phrase in phrases]
