"""Rendering starts afresh: earlier scenes go, whatever else lies there is left alone or refused."""

from dataclasses import replace
from pathlib import Path

import pytest

from compo_pipeline.configuration import SettingsError
from compo_pipeline.scenes.clearing import clear
from compo_pipeline.scenes.dataset import SceneSettings, WorldSettings, write

TINY = SceneSettings(train=3, val=1, test=1, items=2, images=4, classified=2)
FOREIGN = (
    "train2017/000000000009.jpg",
    "train/000000000009.jpg",
    "train/val-captions-000001.jpg",
    "train/deeper/train-captions-000001.jpg",
    "annotations/captions_train2017.json",
    "annotations/instances_train2017.json",
    "benchmarks/train/images/train-benchmark-000001.jpg",
    "benchmarks/val/images/test-benchmark-000001.jpg",
    "benchmarks/test/sugar_crepe/mine.json",
    "notes.txt",
)


def files(root: Path) -> dict[str, bytes]:
    return {str(p.relative_to(root)): p.read_bytes() for p in root.rglob("*") if p.is_file()}


def test_nothing_of_an_earlier_and_larger_world_stays(tmp_path: Path) -> None:
    larger = WorldSettings(("bottle", "diamond", "mushroom", "ring"))
    write(replace(TINY, train=6, images=7, classified=5, world=larger), tmp_path / "twice")
    write(TINY, tmp_path / "twice")
    write(TINY, tmp_path / "once")
    assert files(tmp_path / "twice") == files(tmp_path / "once")


def test_a_rendering_cut_short_is_cleared(tmp_path: Path) -> None:
    write(TINY, tmp_path)
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
    write(TINY, tmp_path)
    (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / name).write_bytes(b"mine")
    before = files(tmp_path)
    with pytest.raises(SettingsError, match=rf"data\.root: .*\(1 in all: {name}\)"):
        write(TINY, tmp_path)
    assert files(tmp_path) == before


def test_a_long_list_of_foreign_files_is_cut(tmp_path: Path) -> None:
    for number in range(5):
        (tmp_path / f"{number}.txt").touch()
    with pytest.raises(SettingsError, match=r"5 in all: 0\.txt, 1\.txt, 2\.txt, \.\.\.\)"):
        clear(tmp_path)


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
    write(TINY, outside)
    root.mkdir()
    (root / "train").symlink_to(outside / "train")
    before = files(outside)
    with pytest.raises(SettingsError, match=r"1 in all: train\)"):
        write(TINY, root)
    assert files(outside) == before


def test_a_link_to_a_file_goes_and_its_target_stays(tmp_path: Path) -> None:
    """As in a workspace where DVC links to its cache: what it holds must not be written over."""
    cached, root = tmp_path / "cached", tmp_path / "root"
    write(TINY, root)
    image = next((root / "train").iterdir())
    image.rename(cached)
    image.symlink_to(cached)
    before = cached.read_bytes()
    write(replace(TINY, seed=1), root)
    assert image.is_file() and not image.is_symlink()
    assert image.read_bytes() != before == cached.read_bytes()


def test_the_root_itself_may_be_a_link(tmp_path: Path) -> None:
    disk, root = tmp_path / "disk", tmp_path / "root"
    disk.mkdir()
    root.symlink_to(disk)
    write(replace(TINY, train=5), root)
    write(TINY, root)
    assert root.is_symlink() and len(list((disk / "train").iterdir())) == 3
