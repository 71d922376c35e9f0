"""Logged images become a folder that the readers of the data read."""

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from PIL import Image

from compo_pipeline.configuration.settings import parse
from compo_pipeline.datasets import readers
from compo_pipeline.datasets.settings import DataSettings
from compo_pipeline.monitoring.captioning import add_images, image_files, source_lines
from compo_pipeline.storage.untrusted import read_csv


def encoded(seed: int, kind: str = "JPEG") -> bytes:
    pixels = np.random.default_rng(seed).integers(0, 255, (20, 30, 3), dtype=np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, kind)
    return buffer.getvalue()


def rows(*names: str) -> dict[str, dict[str, str]]:
    return {
        name: {"request": f"r-{name}", "row": "0", "requested_text": 'a "red", dog\nor two'}
        for name in names
    }


def given(folder: Path, lines: str) -> DataSettings:
    """The settings of the printed lines, beside those of a data set that there is."""
    values = yaml.safe_load(lines)
    assert values["recaption"] == {"captioner": "endpoint", "keep_original": True}
    data: dict[str, Any] = {
        "format": "coco_captions",
        "splits": {"train": "train", "test": "test"},
        "captioned": False,
        **values["data"],
    }
    return parse(DataSettings, {**data, "root": str(folder / data["root"])}, "data")


def test_images_are_read_back_by_the_readers(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    folder = Path("data/01_raw/toy_requests")
    contents = {"aa": encoded(1), "bb": encoded(2, "PNG"), "cc": encoded(3, "WEBP")}
    add_images(rows(*contents), contents.items(), folder)
    assert image_files(folder) == {
        "aa": "images/aa.jpg",
        "bb": "images/bb.png",
        "cc": "images/cc.webp",
    }
    lines = source_lines(folder, Path("data/01_raw/coco"), "coco", {})
    data = given(tmp_path, lines)
    assert data.parts["coco"].root == tmp_path / "data/01_raw/coco"
    own = data.parts["requests"]
    reader = readers.READERS[own.format]
    read = list(reader.read(own, "train", own.splits["train"]))
    assert [row.image for row in read] == ["images/aa.jpg", "images/bb.png", "images/cc.webp"]
    for row, content in zip(read, contents.values(), strict=True):
        assert (own.root / row.image).read_bytes() == content
    plain = parse(
        DataSettings,
        {"root": str(folder), "format": "folder", "splits": {"train": "."}, "captioned": False},
        "data",
    )
    found = list(readers.READERS["folder"].read(plain, "train", "."))
    assert [row.image for row in found] == [row.image for row in read]


def test_lines_add_to_sources_that_there_are(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    lines = source_lines(
        Path("data/01_raw/requests"), Path("data/01_raw"), "mixed", {"coco", "own"}
    )
    assert yaml.safe_load(lines)["data"] == {
        "sources": {
            "requests": {
                "weight": 1,
                "root": "requests",
                "format": "table",
                "splits": {"train": "requests.csv"},
            }
        }
    }


def test_reports_add_to_the_folder(tmp_path: Path) -> None:
    add_images(rows("aa"), [("aa", encoded(1))], tmp_path)
    add_images(rows("aa", "bb"), [("aa", encoded(1)), ("bb", encoded(2))], tmp_path)
    table = read_csv(tmp_path / "requests.csv")
    assert [row["image"] for row in table] == ["images/aa.jpg", "images/bb.jpg"]
    assert table[1]["request"] == "r-bb" and table[1]["requested_text"] == 'a "red", dog\nor two'
    add_images({}, [], tmp_path)
    assert read_csv(tmp_path / "requests.csv") == table


@pytest.mark.parametrize(
    "content", [b"no image", encoded(1)[:300], b"GIF89a", b"", encoded(1, "TIFF")]
)
def test_what_cannot_be_decoded_is_refused_with_its_reason(tmp_path: Path, content: bytes) -> None:
    add_images(rows("aa", "bb"), [("aa", content), ("bb", encoded(2))], tmp_path)
    assert list(image_files(tmp_path)) == ["bb"]
    assert [file.name for file in (tmp_path / "images").iterdir()] == ["bb.jpg"]
    (refused,) = read_csv(tmp_path / "refused.csv")
    assert refused["hash"] == "aa" and refused["reason"]
