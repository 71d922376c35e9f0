"""NegCLIP's captions of COCO: one row per caption, the image's other captions beside it."""

import csv
from pathlib import Path
from typing import Any

from compo_pipeline.core.records import Rejected
from compo_pipeline.data import readers
from compo_pipeline.data.readers.record import RawCaption
from compo_pipeline.data.settings import DataSettings

A, B = (f"coco/train2014/COCO_train2014_{number:012}.jpg" for number in (9, 25))


def write(path: Path, rows: list[tuple[str, str]]) -> None:
    """A file as it is published: an index without a name, and two columns of Python lists."""
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, delimiter="\t")
        writer.writerow(["", "title", "filepath", "neg_caption", "neg_image"])
        for number, (title, image) in enumerate(rows):
            writer.writerow([number, title, image, repr([f'"{title}" swapped', title]), "[1, 2]"])


def source(root: Path, rows: list[tuple[str, str]], **settings: Any) -> DataSettings:
    write(root / "train_neg_clip.tsv", rows)
    return DataSettings(root, "neg_clip", {"train": "train_neg_clip.tsv"}, **settings)


def read(data: DataSettings) -> list[RawCaption | Rejected]:
    return list(readers.read(data))


def test_captions_of_one_image_share_it_and_are_further_to_each_other(tmp_path: Path) -> None:
    data = source(tmp_path, [("A dog's bed.", A), ("Two cats.", B), ('A "dog".\n', A)])
    first, second, third = read(data)
    assert first == RawCaption(
        "train-0", f"train-{A}", A, ("A dog's bed.",), ('A "dog".\n',), "train"
    )
    assert (second.image_id, second.further) == (f"train-{B}", ())
    assert (third.image_id, third.further) == (f"train-{A}", ("A dog's bed.",))


def test_unusable_rows_are_kept_with_the_reason(tmp_path: Path) -> None:
    data = source(tmp_path, [("A dog.", A), ("A cat.", "")])
    path = tmp_path / "train_neg_clip.tsv"
    path.write_bytes(path.read_bytes() + b"2\tcut\n3\t\xff\t" + A.encode() + b"\t[]\t[]\r\n")
    good, nameless, short, garbled = read(data)
    assert good.further == (), "what cannot be read is no further caption"
    details = [row.detail for row in (nameless, short, garbled) if isinstance(row, Rejected)]
    for detail, reason in zip(details, ["name is ''", "2 fields", "UTF-8"], strict=True):
        assert reason in detail
