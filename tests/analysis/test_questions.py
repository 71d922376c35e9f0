"""Which phrases are asked of which images, and which are drawn."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from compo_pipeline.analysis.localisation import Located
from compo_pipeline.analysis.questions import AttentionSettings, ask, drawn, limits
from compo_pipeline.analysis.regions import Case
from compo_pipeline.configuration import SettingsError, parse
from compo_pipeline.datasets.settings import DataSettings


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


def test_the_defaults_are_those_of_the_configuration(project: Path) -> None:
    text = (project / "conf" / "base" / "parameters_attention.yml").read_text()
    values = yaml.safe_load(text)["attention"]
    assert parse(AttentionSettings, values, "attention") == AttentionSettings()


def test_the_regions_of_the_split_are_asked_for(data: DataSettings) -> None:
    cases, skipped = ask(AttentionSettings(), data)
    assert len(cases) == 8 and not skipped
    assert (cases[3].root, cases[3].image) == (data.root / "val2017", "3.jpg")
    assert cases[3].phrase == "thing 3" and cases[3].region is not None


def test_a_file_of_regions_of_ones_own(data: DataSettings, own: Path, tmp_path: Path) -> None:
    (tmp_path / "mine.json").write_text(instances(["b.jpg"]))
    settings = AttentionSettings(images=str(own), regions=str(tmp_path / "mine.json"))
    (case,), _ = ask(settings, data)
    assert (case.root, case.image, case.phrase) == (own, "b.jpg", "thing 0")
    (of_split,), _ = ask(AttentionSettings(regions=str(tmp_path / "mine.json")), data)
    assert of_split.root == data.root / "val2017"


def test_every_phrase_is_asked_of_every_image_of_a_folder(data: DataSettings, own: Path) -> None:
    settings = AttentionSettings(images=str(own), phrases=" a red shirt; a grey horse;;a red shirt")
    cases, skipped = ask(settings, data)
    assert [(case.image, case.phrase) for case in cases] == [
        (name, phrase)
        for name in ("a.png", "b.jpg", "notes.txt")
        for phrase in ("a red shirt", "a grey horse")
    ]
    assert all(case.root == own and case.region is None for case in cases) and not skipped


def test_one_image_of_ones_own(data: DataSettings, own: Path) -> None:
    cases, _ = ask(AttentionSettings(images=str(own / "b.jpg"), phrases="a dog"), data)
    assert cases == [Case(own, "b.jpg", "a dog")]


def test_links_are_followed_where_the_user_named_the_images() -> None:
    assert limits(AttentionSettings(images="p", phrases="a dog")).follow_symlinks
    assert not limits(AttentionSettings(images="p", regions="r.json")).follow_symlinks
    assert not limits(AttentionSettings()).follow_symlinks


def test_a_limit_takes_images_at_random(data: DataSettings) -> None:
    taken = [ask(AttentionSettings(limit=3, seed=seed), data)[0] for seed in (0, 0, 1, 2)]
    names = [[case.image for case in cases] for cases in taken]
    assert all(len(own) == 3 and own == sorted(own) for own in names)
    assert names[0] == names[1] and len({tuple(own) for own in names}) > 1
    assert len(ask(AttentionSettings(limit=None), data)[0]) == 8


def test_what_is_drawn_is_drawn_by_lot_among_what_can_be() -> None:
    cases = [Case(Path(), f"{n}.jpg", "a dog") for n in range(9)]
    rows = [
        Located(case.image, case.phrase, problem="missing" if n < 3 else None)
        for n, case in enumerate(cases)
    ]
    found = drawn(cases, rows, AttentionSettings(count=4))
    assert len(found) == 4 and found == [case for case in cases[3:] if case in found]
    assert found == drawn(cases, rows, AttentionSettings(count=4))
    assert any(drawn(cases, rows, AttentionSettings(count=4, seed=s)) != found for s in (1, 2, 3))
    assert drawn(cases, rows, AttentionSettings(count=99)) == cases[3:]
    assert drawn(cases, rows, AttentionSettings(count=0)) == []


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"phrases": "a dog"}, "set images too"),
        ({"images": "photo.jpg"}, "set phrases"),
        ({"images": "p", "phrases": "a dog", "regions": "r.json"}, "set phrases .*or regions"),
        ({"count": -1}, "count >= 0"),
        ({"limit": 0}, "limit >= 1"),
        ({"image": "photo.jpg"}, "did you mean 'images'"),
    ],
)
def test_settings_that_ask_nothing(values: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        parse(AttentionSettings, values, "attention")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"split": "val"}, "attention.split: 'val' is none of train, test"),
        ({"split": "train"}, "attention.regions: .*instances_train2017.json cannot be read"),
        ({"images": "/nowhere.jpg", "phrases": "a dog"}, "attention.images: there is no file"),
        ({"images": ".", "phrases": " ; "}, "attention.phrases: no phrase in ' ; '"),
    ],
)
def test_what_is_not_there_is_told(
    data: DataSettings, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(SettingsError, match=message):
        ask(AttentionSettings(**changes), data)


def test_empty_places_are_told(data: DataSettings, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(SettingsError, match="attention.images: no files in the folder"):
        ask(AttentionSettings(images=str(tmp_path / "empty"), phrases="a dog"), data)
    (tmp_path / "none.json").write_text(instances([]))
    with pytest.raises(SettingsError, match="no region of the file can be used .it is empty"):
        ask(AttentionSettings(regions=str(tmp_path / "none.json")), data)
