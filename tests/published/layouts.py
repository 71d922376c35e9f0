"""Caption data in the layouts in which they are published, one function a layout.

Each takes the folder, the rows that train and those that are held out, and returns the number of
caption rows that train. Layouts without a held-out split write the training rows alone.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from tests.published.world import Row

DEAD = 999_999
"""Number of an image whose link was dead."""


def coco(root: Path, train: Sequence[Row], held_out: Sequence[Row]) -> int:
    """COCO's own layout, two captions an image."""
    return _coco(root, {"train2017": train, "val2017": held_out})


def coco_2014(root: Path, train: Sequence[Row], held_out: Sequence[Row]) -> int:
    """The same, under the names of COCO's first release, and its validation images beside it."""
    return _coco(root, {"train2014": train, "val2014": held_out})


def _coco(root: Path, splits: dict[str, Sequence[Row]]) -> int:
    (root / "annotations").mkdir(parents=True)
    for split, rows in splits.items():
        images = [{"id": one.number, "file_name": f"{one.number:012}.jpg"} for one, _ in rows]
        annotations = [
            {"id": 10 * one.number + place, "image_id": one.number, "caption": text}
            for one, texts in rows
            for place, text in enumerate(texts)
        ]
        for (one, _), image in zip(rows, images, strict=True):
            one.write(root / split / str(image["file_name"]))
        content = {"images": images, "annotations": annotations}
        (root / "annotations" / f"captions_{split}.json").write_text(json.dumps(content))
    return sum(len(texts) for _, texts in next(iter(splits.values())))


def neg_clip(root: Path, train: Sequence[Row], held_out: Sequence[Row]) -> int:
    """NegCLIP's files, two captions an image."""
    for name, folder, rows in (("train", "train", train), ("valid", "val", held_out)):
        with (root / f"{name}_neg_clip.tsv").open("w", newline="") as file:
            table = csv.writer(file, delimiter="\t")
            table.writerow(["", "title", "filepath", "neg_caption", "neg_image"])
            for one, texts in rows:
                image = f"coco/{folder}2014/{one.number:012}.jpg"
                one.write(root / image)
                for text in texts:
                    table.writerow([one.number, text, image, [text[::-1]], [1, 2, 3]])
    return sum(len(texts) for _, texts in train)


def img2dataset(root: Path, train: Sequence[Row], held_out: Sequence[Row]) -> int:
    """A shard of img2dataset's in which one link was dead, one caption an image."""
    rows = []
    for one, (caption, by_coca) in train:
        row = {"key": f"{one.number:09}", "status": "success", "error_message": None}
        rows.append({**row, "caption": caption, "coca_captions": by_coca})
        one.write(root / "00000" / f"{row['key']}.jpg")
    dead = {"key": f"{DEAD:09}", "status": "failed_to_download", "error_message": "404"}
    rows.append({**dead, "caption": "A dog.", "coca_captions": ""})
    pq.write_table(pa.Table.from_pylist(rows), root / "00000.parquet")
    return len(train)


def dreamlip(root: Path, train: Sequence[Row], held_out: Sequence[Row]) -> int:
    """DreamLIP's file, and a shard of what img2dataset fetched of it: the last link was dead."""
    shard = []
    with (root / "cc3m_3long_3short_1raw_captions_url.csv").open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(["Image Path", "raw_caption", "shortLLA_captions", "longLLA_captions"])

        def write(number: int, texts: tuple[str, str], status: str) -> None:
            address = f"https://example.org/{number}.jpg"
            table.writerow([address, "sofa", *texts])
            row = {"url": address, "key": f"{number:09}", "status": status}
            shard.append({**row, "error_message": None})

        for one, texts in train:
            write(one.number, texts, "success")
            one.write(root / "00000" / f"{one.number:09}.jpg")
        write(DEAD, train[0][1], "failed_to_download")
    pq.write_table(pa.Table.from_pylist(shard), root / "00000.parquet")
    return len(train)


def pixelprose(root: Path, train: Sequence[Row], held_out: Sequence[Row]) -> int:
    """A file of each subset of PixelProse's, and the images that img2dataset fetched."""
    rows = []
    for one, texts in train:
        key, text = f"{one.number:09}", f"This image displays {' '.join(texts)}"
        rows.append({"uid": f"u{one.number}", "key": key, "vlm_caption": text, "status": "success"})
        one.write(root / "00000" / f"{key}.jpg")
    for name in ("redcaps", "cc12m"):
        pq.write_table(pa.Table.from_pylist(rows), root / f"vlm_captions_{name}_00.parquet")
    return len(train)


def cogvlm_laion(root: Path, train: Sequence[Row], held_out: Sequence[Row]) -> int:
    """The authors' CSV without a header, and the images under the names of their addresses."""
    with (root / "laion_00.csv").open("w", newline="") as file:
        for one, texts in train:
            csv.writer(file).writerow([f"https://example.org/{one.number}.jpg", " ".join(texts)])
            one.write(root / "images" / f"{one.number}.jpg")
    return len(train)


def table(root: Path, train: Sequence[Row], held_out: Sequence[Row]) -> int:
    """A person's table, whose column says what is held out: half of it for validation."""
    with (root / "captions.csv").open("w", newline="") as file:
        written = csv.writer(file)
        written.writerow(("image", "caption", "split"))
        splits = [("train", train), ("val", held_out[::2]), ("test", held_out[1::2])]
        for split, rows in splits:
            for one, texts in rows:
                name = f"{one.number}.jpg"
                one.write(root / name)
                written.writerows((name, text, split) for text in texts)
    return sum(len(texts) for _, texts in train)
