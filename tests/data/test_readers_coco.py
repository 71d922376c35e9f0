"""COCO captions: what becomes a record and what does not."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from compo_pipeline.core.records import Rejected
from compo_pipeline.data import readers
from compo_pipeline.data.readers.record import RawCaption, SourceError
from compo_pipeline.data.settings import DataSettings


def source(root: Path, images: Any, annotations: Any, name: str = "train2017") -> DataSettings:
    folder = root / "annotations"
    folder.mkdir(parents=True, exist_ok=True)
    content = {"images": images, "annotations": annotations}
    (folder / f"captions_{name}.json").write_text(json.dumps(content), "utf-8")
    return DataSettings(root, "coco_captions", {"train": name})


def caption(number: Any, image: Any, text: Any) -> dict[str, Any]:
    return {"id": number, "image_id": image, "caption": text}


def test_one_row_per_caption_the_others_are_further(tmp_path: Path) -> None:
    data = source(
        tmp_path,
        [{"id": 7, "file_name": "7.jpg"}, {"id": 8, "file_name": "8.jpg"}],
        [caption(1, 7, "A dog."), caption(2, 8, "A cat."), caption(3, 7, "One dog. It runs.")],
    )
    first, second, third = readers.read(data)
    assert first == RawCaption(
        "train-1", "train-7", "train2017/7.jpg", ("A dog.",), ("One dog. It runs.",), "train"
    )
    assert second.further == ()
    assert (third.own, third.further) == (("One dog. It runs.",), ("A dog.",))


@pytest.mark.parametrize(
    ("entry", "reason"),
    [
        (caption(2, 99, "A dog."), "no entry of images has the id 99"),
        (caption(2, 1, None), "None is not a text"),
        (caption(2, 1, ["A dog."]), "['A dog.'] is not a text"),
        (caption(None, 1, "A dog."), "id is None"),
        ({"id": 2, "caption": "A dog."}, "image_id is None"),
        ("A dog.", "id is None"),
        (caption(2, 1, "A \ud800 dog."), "not valid UTF-8"),
    ],
)
def test_records_that_are_none_are_kept_with_the_reason(
    tmp_path: Path, entry: Any, reason: str
) -> None:
    data = source(tmp_path, [{"id": 1, "file_name": "1.jpg"}], [entry, caption(3, 1, "A cat.")])
    rejected, good = readers.read(data)
    assert (rejected.row, rejected.rule) == (-1, "unparseable")
    assert reason in rejected.detail
    assert good.own == ("A cat.",)


def test_images_without_captions_and_broken_entries_are_kept(tmp_path: Path) -> None:
    images = [
        {"id": 1, "file_name": "1.jpg"},
        {"id": 1, "file_name": "other.jpg"},
        {"file_name": "no id.jpg"},
        {"id": 2, "file_name": "2.jpg"},
    ]
    rows = list(readers.read(source(tmp_path, images, [caption(1, 1, "A dog.")])))
    details = [row.detail for row in rows if isinstance(row, Rejected)]
    assert "id is 1 and file_name 'other.jpg', expected a number of its own" in details[0]
    assert "id is None" in details[1]
    assert details[2] == "no caption of this image"
    assert len(details) == 3
    assert rows[2] == RawCaption("train-1", "train-1", "train2017/1.jpg", ("A dog.",), (), "train")


def test_a_missing_root_or_split_names_its_key_and_what_is_there(tmp_path: Path) -> None:
    data = source(tmp_path, [], [])
    with pytest.raises(SourceError, match=r"data\.root: there is no folder '.*nowhere'"):
        readers.locate(replace(data, root=tmp_path / "nowhere"))
    there = r"data\.splits\.train: .*captions_train\.json.* is captions_train2017\.json\)"
    with pytest.raises(SourceError, match=there):
        readers.locate(replace(data, splits={"train": "train"}))
