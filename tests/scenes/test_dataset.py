"""Scenes on disk: COCO's layout, the official benchmark files, the records behind them."""

import json
import logging
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from compo_pipeline.benchmarks import sugar_crepe, zero_shot
from compo_pipeline.benchmarks.items import titles
from compo_pipeline.benchmarks.loading import from_files, official_benchmarks
from compo_pipeline.benchmarks.settings import BenchmarkSet, BenchmarksSettings
from compo_pipeline.core.settings import SettingsError, parse
from compo_pipeline.data.readers.coco_captions import read
from compo_pipeline.data.readers.record import RawCaption
from compo_pipeline.data.settings import DataSettings
from compo_scenes import dataset
from compo_scenes.benchmark import SUGAR_CREPE, SUGAR_CREPE_PP
from compo_scenes.dataset import SceneSettings, WorldSettings, clear, write
from compo_scenes.world import Scene

TINY = SceneSettings(train=6, val=3, test=4, items=3, images=9, classified=5)


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    root = tmp_path_factory.mktemp("scenes")
    return root, write(TINY, root)


def records(root: Path, split: str) -> list[Scene]:
    lines = (root / "annotations" / f"scenes_{split}.jsonl").read_text().splitlines()
    return [Scene.from_dict(json.loads(line)) for line in lines]


def test_counts_are_returned(written: tuple[Path, dict[str, Any]]) -> None:
    subtasks = {**dict.fromkeys(SUGAR_CREPE, 3), "zero_shot": 5}
    assert written[1] == {
        "train": 6,
        "val": 3,
        "test": 4,
        "benchmarks/val": subtasks,
        "benchmarks/test": subtasks,
    }


@pytest.mark.parametrize(("split", "count"), [("train", 6), ("val", 3), ("test", 4)])
def test_the_coco_reader_reads_every_caption(
    written: tuple[Path, dict[str, Any]],
    is_true: Callable[[str, Scene], bool],
    split: str,
    count: int,
) -> None:
    root, _ = written
    rows = list(read(DataSettings(root, "coco_captions", {split: split}), split, split))
    scenes = records(root, split)
    assert len(rows) == len(scenes) == count
    assert len(list((root / split).iterdir())) == count
    for row, scene in zip(rows, scenes, strict=True):
        assert isinstance(row, RawCaption)
        assert scene.split == split
        with Image.open(root / row.image) as image:
            assert image.size == (scene.width, scene.height)
        (text,) = row.own
        told = [f"{part}." for part in text.removesuffix(".").split(". ")]
        assert 3 <= len(told) <= 5
        assert all(is_true(part, scene) for part in told)


@pytest.mark.parametrize("split", ["val", "test"])
def test_files_of_benchmarks_are_read_as_official_ones(
    written: tuple[Path, dict[str, Any]], split: str
) -> None:
    folder = written[0] / "benchmarks" / split
    plain = {s.name: s for s in sugar_crepe.load(folder / "sugar_crepe", folder / "images")}
    pairs = {s.name: s for s in sugar_crepe.load_pp(folder / "sugar_crepe_pp", folder / "images")}
    classes = {s.name: s for s in zero_shot.load(folder / "zero_shot", folder / "images")}
    assert plain.keys() == set(SUGAR_CREPE) and pairs.keys() == set(SUGAR_CREPE_PP)
    assert {name: len(s.classes) for name, s in classes.items()} == {"things": 16, "colours": 8}
    for subtask in (*plain.values(), *pairs.values(), *classes.values()):
        assert len(subtask.items) == (5 if subtask.name in classes else 3)
        for item in subtask.items:
            assert item.image.startswith(f"{split}-benchmark-") or subtask.name in classes
            assert subtask.path(item).is_file()
    for name, subtask in pairs.items():
        for item, other in zip(subtask.items, plain[name].items, strict=True):
            assert item.image == other.image
            assert (item.positives[0], item.negatives) == (other.positives[0], other.negatives)
    sets = {name: BenchmarkSet() for name in ("sugar_crepe", "sugar_crepe_pp", "zero_shot")}
    wanted = BenchmarksSettings(str(folder), sets=sets)
    assert official_benchmarks(wanted) == []
    assert titles(from_files(wanted)) == {
        "sugar_crepe": "SugarCrepe-style",
        "sugar_crepe_pp": "SugarCrepe++-style",
    }


def test_nothing_but_what_was_asked_for_is_written(written: tuple[Path, dict[str, Any]]) -> None:
    root = written[0]
    for split in ("val", "test"):
        names = {path.name for path in (root / "benchmarks" / split / "images").iterdir()}
        assert len(names) == 9 + 5
    assert {path.name for path in root.iterdir()} == {
        *("train", "val", "test", "annotations", "benchmarks"),
    }


def test_captions_are_long_where_the_settings_say_so(tmp_path: Path) -> None:
    """Of the same scenes and with the same first sentences; benchmarks keep their texts."""
    short, long = (tmp_path / name for name in ("short", "long"))
    write(TINY, short)
    write(replace(TINY, long_captions=True), long)
    for split in ("train", "val", "test"):
        assert records(short, split) == records(long, split)
        texts = [
            [one["caption"] for one in json.loads(file.read_text())["annotations"]]
            for file in (root / "annotations" / f"captions_{split}.json" for root in (short, long))
        ]
        for brief, whole in zip(*texts, strict=True):
            assert whole.split(".")[0] == brief.split(".")[0] and whole.count(".") >= 5
    files = [sorted((root / "benchmarks").rglob("*.json")) for root in (short, long)]
    assert [file.read_bytes() for file in files[0]] == [file.read_bytes() for file in files[1]]


def test_relations_are_named_in_training_captions_as_often_as_asked(tmp_path: Path) -> None:
    """Held-out captions are the same whatever trains."""
    few = {"train": 60, "val": 20, "test": 1, "items": 1, "images": 4, "classified": 1}
    texts: dict[str, list[list[str]]] = {"train": [], "val": []}
    for share in (0.0, 1.0):
        write(SceneSettings(**few, counts=(0.0, 1.0, 0.0), relations=share), tmp_path)
        for split, found in texts.items():
            values = json.loads((tmp_path / f"annotations/captions_{split}.json").read_text())
            found.append([each["caption"] for each in values["annotations"]])
    named = [sum(" of a" in text.split(".")[0] for text in some) for some in texts["train"]]
    assert named[0] == 0 and named[1] > 15
    assert texts["val"][0] == texts["val"][1]


def test_too_few_images_for_the_items_are_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    settings = SceneSettings(train=1, val=1, test=1, items=5, images=3, classified=1)
    with caplog.at_level(logging.WARNING):
        counts = write(settings, tmp_path)
    assert counts["benchmarks/test"]["swap_att"] <= 3
    assert "raise scenes.images (3)" in caplog.text


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"world": {"things": ["ball", "box", "star", "dragon"]}}, "scenes.world.things.*dragon"),
        ({"world": {"colours": ["red", "blue", "mauve", "pink"]}}, "scenes.world.colours.*mauve"),
        ({"world": {"things": ["ball", "box", "star"]}}, "scenes.world.things.*at least four"),
        ({"world": {"things": ["ball", "box", "star", "ball"]}}, "scenes.world.things.*once"),
        ({"counts": [0, 0, 0]}, "counts must be weights, not all zero"),
    ],
)
def test_settings_that_make_no_world(values: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        parse(SceneSettings, values, "scenes").world.world()


SMALLEST = SceneSettings(train=3, val=1, test=1, items=2, images=4, classified=2)
FOREIGN = (
    "train/000000000009.jpg",
    "train/val-captions-000001.jpg",
    "train/deeper/train-captions-000001.jpg",
    "annotations/captions_train2017.json",
    "benchmarks/val/images/test-benchmark-000001.jpg",
    "benchmarks/test/sugar_crepe/mine.json",
    "notes.txt",
)


def files(root: Path) -> dict[str, bytes]:
    return {str(p.relative_to(root)): p.read_bytes() for p in root.rglob("*") if p.is_file()}


def test_nothing_of_an_earlier_and_larger_world_stays(tmp_path: Path) -> None:
    larger = WorldSettings(("bottle", "diamond", "mushroom", "ring"))
    write(replace(SMALLEST, train=6, images=7, classified=5, world=larger), tmp_path / "twice")
    write(SMALLEST, tmp_path / "twice")
    write(SMALLEST, tmp_path / "once")
    assert files(tmp_path / "twice") == files(tmp_path / "once")


def test_scenes_that_are_there_are_not_rendered_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "scenes"
    counts = write(SMALLEST, root)
    monkeypatch.setattr(dataset, "image", lambda scene: pytest.fail("rendered"))
    assert write(SMALLEST, root) == counts
    monkeypatch.undo()
    whole = files(root)
    damaged = next(root.glob("train/*.jpg"))
    damaged.write_bytes(damaged.read_bytes()[:-1] + b"x")
    assert write(SMALLEST, root) == counts and files(root) == whole


def test_a_rendering_cut_short_is_cleared(tmp_path: Path) -> None:
    write(SMALLEST, tmp_path)
    for path in (tmp_path / "annotations").iterdir():
        path.unlink()
    clear(tmp_path)
    assert files(tmp_path) == {}
    clear(tmp_path)
    clear(tmp_path / "not yet there")


@pytest.mark.parametrize("name", FOREIGN)
def test_what_rendering_did_not_write_is_refused_and_nothing_is_removed(
    tmp_path: Path, name: str
) -> None:
    write(SMALLEST, tmp_path)
    (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / name).write_bytes(b"mine")
    before = files(tmp_path)
    with pytest.raises(SettingsError, match=rf"data\.root: .*\(1 in all: {name}\)"):
        write(SMALLEST, tmp_path)
    assert files(tmp_path) == before


def test_hidden_files_stay(tmp_path: Path) -> None:
    root = tmp_path / "scenes"
    for name in (".gitignore", "train/.DS_Store", ".git/train/train-captions-000000.jpg"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(b"kept")
    before = files(root)
    clear(root)
    assert files(root) == before


def test_a_link_to_a_folder_is_refused(tmp_path: Path) -> None:
    outside, root = tmp_path / "outside", tmp_path / "root"
    write(SMALLEST, outside)
    root.mkdir()
    (root / "train").symlink_to(outside / "train")
    before = files(outside)
    with pytest.raises(SettingsError, match=r"1 in all: train\)"):
        write(SMALLEST, root)
    assert files(outside) == before


def test_a_link_to_a_file_goes_and_its_target_stays(tmp_path: Path) -> None:
    """As in a workspace where DVC links to its cache: what it holds must not be written over."""
    cached, root = tmp_path / "cached", tmp_path / "root"
    write(SMALLEST, root)
    image = next((root / "train").iterdir())
    image.rename(cached)
    image.symlink_to(cached)
    before = cached.read_bytes()
    write(replace(SMALLEST, seed=1), root)
    assert image.is_file() and not image.is_symlink()
    assert image.read_bytes() != before == cached.read_bytes()
