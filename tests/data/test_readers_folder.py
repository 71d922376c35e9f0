"""Images without captions: a folder of them, and tables that lack a column of captions."""

from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from compo_pipeline.core.records import Rejected
from compo_pipeline.data import readers
from compo_pipeline.data.readers.record import RawCaption, SourceError
from compo_pipeline.data.settings import Columns, DataSettings

SPLITS = {"train": ".", "val": ".", "test": "."}
SHARES = {"train": 0.7, "val": 0.1, "test": 0.2}
NAMES = ["a.jpg", "b/C.JPEG", "b/d.png", "e.webp", *(f"f/{number}.png" for number in range(40))]


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    folder = tmp_path / "photos"
    for name in NAMES:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (8, 6)).save(folder / name)
    (folder / "._a.jpg").write_bytes(b"junk of another system")
    (folder / "notes.txt").write_text("no image")
    return folder


def data(root: Path, kind: str = "auto", **settings: Any) -> DataSettings:
    given = {"splits": SPLITS, "shares": SHARES, "captioned": False, **settings}
    return DataSettings(root, kind, **given)


def images(found: DataSettings) -> list[str]:
    records = list(readers.read(found))
    assert all(isinstance(each, RawCaption) and each.own == ("",) for each in records)
    return [each.image for each in records]


def test_a_folder_of_images_is_divided_by_the_paths(photos: Path) -> None:
    found = data(photos)
    assert sorted(images(found)) == sorted(NAMES)
    of_split = {
        split: {each.image for each in readers.read(found) if each.split == split}
        for split in SPLITS
    }
    assert sum(map(len, of_split.values())) == len(NAMES) and all(of_split.values())
    (photos / "0.png").write_bytes((photos / "e.webp").read_bytes())
    records = list(readers.read(found))
    assert len(records) == len(NAMES) + 1
    for each in records:
        assert each.image == "0.png" or each.image in of_split[each.split]


def test_images_of_endings_that_are_not_read_are_rejected_records(photos: Path) -> None:
    """But not the camera's file beside the picture that was made of it."""
    for name in ("g.TIF", "f/h.tiff", "a.dng"):
        (photos / name).write_bytes(b"II*")
    records = list(readers.read(data(photos)))
    assert len(records) == len(NAMES) + 2
    found = [each for each in records if isinstance(each, Rejected)]
    assert sorted(each.image for each in found) == ["f/h.tiff", "g.TIF"]
    assert all(".tif" in each.detail and ".jpg" in each.detail for each in found)


def test_a_part_of_the_folder(photos: Path) -> None:
    assert sorted(images(data(photos, images="b", splits={"train": "."}, shares={}))) == [
        "b/C.JPEG",
        "b/d.png",
    ]
    folders = {"train": "f", "test": "b"}
    found = data(photos, "folder", splits=folders, shares={})
    assert {each.split for each in readers.read(found) if each.image == "b/d.png"} == {"test"}
    assert len(images(found)) == 42


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"kind": "folder", "captioned": True}, r"a\.txt for a\.jpg .* set recaption\.captioner"),
        ({"kind": "folder", "images": "b"}, r"data\.images says nothing"),
        ({"kind": "folder", "splits": {"train": "g"}}, r"no image .*g: set data\.root"),
        ({"captioned": True}, r"expected a table .*recaption\.captioner writes them"),
    ],
)
def test_what_cannot_be_read(photos: Path, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(SourceError, match=message):
        list(readers.read(data(photos, **settings)))


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("captions.csv", "image\na.jpg\ne.webp\n"),
        ("captions.csv", "image,caption\na.jpg,\ne.webp,\n"),
        ("captions.jsonl", '{"image": "a.jpg"}\n{"image": "e.webp", "caption": null}\n'),
    ],
)
def test_a_table_without_captions(photos: Path, name: str, content: str) -> None:
    (photos / name).write_text(content)
    found = data(photos, splits={"train": "captions.*"}, shares={})
    assert images(found) == ["a.jpg", "e.webp"]


def test_captions_that_are_there_are_read(photos: Path) -> None:
    (photos / "captions.csv").write_text("image,Caption\na.jpg,A dog.\ne.webp,\n")
    found = data(photos, splits={"train": "captions.*"}, shares={})
    assert [each.own for each in readers.read(found)] == [("A dog.",), ("",)]
    (photos / "captions.csv").write_text('image,texts\na.jpg,"[""A dog."", ""A cat.""]"\n')
    listed = data(
        photos, splits={"train": "captions.*"}, shares={}, columns=Columns(sentences="texts")
    )
    assert [each.own for each in readers.read(listed)] == [("A dog.", "A cat.")]
