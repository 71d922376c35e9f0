"""COCO's instance files: polygons, run lengths, names, and what cannot be used."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from compo_pipeline.analysis.regions import Case, Region, read
from compo_pipeline.configuration import SettingsError
from compo_pipeline.scenes.dataset import SceneSettings, write

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
    (case,), skipped = read(path, Path("photos"))
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
    cases, _ = read(file(*annotations), Path())
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
    cases, skipped = read(file({"segmentation": segmentation}, good), Path())
    assert [case.phrase for case in cases] == ["an egg"]
    assert list(skipped.values()) == [1] and reason in next(iter(skipped))


@pytest.mark.parametrize("first", [True, False])
def test_a_region_of_which_a_piece_is_missing_is_none(file: Any, first: bool) -> None:
    pieces = [{"segmentation": RUNS}, {"segmentation": {"size": [3, 4], "counts": "0o3"}}]
    cases, skipped = read(file(*(pieces if first else pieces[::-1])), Path())
    assert cases == [] and skipped == Counter({"compressed run lengths": 1})


@pytest.mark.parametrize(
    "content",
    ["[]", "not json", '{"images": []}', '{"images": [{}], "categories": [], "annotations": []}'],
)
def test_a_file_of_something_else_is_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / "other.json").write_text(content)
    with pytest.raises(SettingsError, match="attention.regions: .* no file of COCO instances"):
        read(tmp_path / "other.json", tmp_path)


def test_an_annotation_of_no_image_is_refused(file: Any) -> None:
    with pytest.raises(SettingsError, match="no file of COCO instances"):
        read(file({"segmentation": RUNS, "image_id": 2}), Path())


def test_a_missing_file_is_told(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"attention\.regions: .*none\.json cannot be read"):
        read(tmp_path / "none.json", tmp_path)


def test_what_scenes_write_is_read(tmp_path: Path) -> None:
    few = {"train": 1, "val": 1, "test": 5, "items": 1, "images": 4, "classified": 1}
    write(SceneSettings(**few), tmp_path)
    path = tmp_path / "annotations" / "instances_test.json"
    cases, skipped = read(path, tmp_path / "test")
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
