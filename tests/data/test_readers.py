"""Finding a source: what is missing, and which key mends it."""

import json
from pathlib import Path

import pytest

from compo_pipeline.data.readers import locate, read
from compo_pipeline.data.readers.record import SourceError
from compo_pipeline.data.settings import DataSettings


@pytest.fixture
def coco(tmp_path: Path) -> DataSettings:
    """Two images, three captions."""
    (tmp_path / "annotations").mkdir()
    (tmp_path / "train2017").mkdir()
    for name in ("1.jpg", "2.jpg"):
        (tmp_path / "train2017" / name).touch()
    content = {
        "images": [{"id": 1, "file_name": "1.jpg"}, {"id": 2, "file_name": "2.jpg"}],
        "annotations": [{"id": n, "image_id": 1, "caption": "A dog."} for n in range(3)],
    }
    (tmp_path / "annotations" / "captions_train2017.json").write_text(json.dumps(content))
    return DataSettings(tmp_path, "coco_captions", {"train": "train2017"})


def test_a_missing_root_names_its_key(coco: DataSettings) -> None:
    data = DataSettings(coco.root / "nowhere", "coco_captions", {"train": "train2017"})
    with pytest.raises(SourceError, match=r"data\.root: there is no folder '.*nowhere'"):
        locate(data)


def test_a_missing_split_names_those_that_are_there(coco: DataSettings) -> None:
    data = DataSettings(coco.root, "coco_captions", {"train": "train"})
    with pytest.raises(
        SourceError,
        match=r"data\.splits\.train: .*captions_train\.json.* is captions_train2017\.json\)",
    ):
        locate(data)


def test_a_split_without_a_record(tmp_path: Path) -> None:
    data = DataSettings(tmp_path, "table", {"train": "t.csv"})
    (tmp_path / "t.csv").write_text("image,caption\n")
    with pytest.raises(SourceError, match=r"splits\.train: .*t\.csv holds no record$"):
        list(read(data))
