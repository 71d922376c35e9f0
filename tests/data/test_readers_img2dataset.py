"""What img2dataset leaves on disk, with captions of its own or of a table."""

import csv
import json
import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from compo_pipeline.core.records import Rejected
from compo_pipeline.data import readers
from compo_pipeline.data.readers.record import RawCaption, SourceError
from compo_pipeline.data.settings import CaptionTable, Columns, DataSettings

HTTP = "HTTP Error 404: Not Found"


def values(shard: int, number: int, caption: str | None, **more: Any) -> dict[str, Any]:
    """One image's metadata; without a `status` of its own, it was downloaded."""
    return {
        "url": f"https://example.org/{number}.jpg",
        "key": f"{shard:05}{number:04}",
        "status": "success",
        "error_message": None,
        "width": 256,
        "height": 192,
        "caption": caption,
        **more,
    }


def write(root: Path, shard: int, rows: list[dict[str, Any]]) -> None:
    """A shard as img2dataset writes it with `--output_format files`."""
    folder = root / f"{shard:05}"
    folder.mkdir(parents=True)
    pq.write_table(pa.Table.from_pylist(rows), folder.with_suffix(".parquet"))
    (root / f"{shard:05}_stats.json").write_text('{"successes": 1}')
    for row in rows:
        if row["status"] == "success":
            (folder / f"{row['key']}.jpg").touch()
            (folder / f"{row['key']}.json").write_text(json.dumps(row))


def settings(root: Path, source: str = "*.parquet", **given: Any) -> DataSettings:
    return DataSettings(root, given.pop("format", "img2dataset"), {"train": source}, **given)


def read(data: DataSettings) -> list[RawCaption | Rejected]:
    return list(readers.read(data))


def captions(data: DataSettings) -> list[str]:
    return [row.own[0] for row in read(data) if isinstance(row, RawCaption)]


def test_shards_in_order(tmp_path: Path) -> None:
    write(tmp_path, 1, [values(1, 0, "A cat.")])
    write(tmp_path, 0, [values(0, 0, "A dog.\nIt sleeps."), values(0, 1, "猫 🐈")])
    rows = read(settings(tmp_path))
    names = "train-000000000", "train-00000/000000000.jpg", "00000/000000000.jpg"
    assert rows[0] == RawCaption(*names, ("A dog.\nIt sleeps.",), (), "train")
    assert [row.image for row in rows[1:]] == ["00000/000000001.jpg", "00001/000010000.jpg"]
    assert all((tmp_path / row.image).is_file() for row in rows)


def test_what_was_never_downloaded_stands_apart(tmp_path: Path) -> None:
    failed = {"status": "failed_to_download", "error_message": HTTP}
    write(tmp_path, 0, [values(0, 0, "A dog."), values(0, 1, "A cat.", **failed)])
    _, gone = read(settings(tmp_path))
    assert gone == Rejected(
        -1, "train-000000001", "", "not_downloaded", f"failed_to_download: {HTTP}"
    )


def test_unusable_rows_are_kept_with_the_reason(tmp_path: Path) -> None:
    without_key = values(0, 1, "A dog.") | {"key": None}
    write(tmp_path, 0, [values(0, 0, None), without_key, values(0, 2, "A cat.")])
    silent, nameless, good = read(settings(tmp_path))
    assert "None is not a text" in silent.detail
    assert (nameless.sample_id, nameless.rule) == ("train-00000/1", "unparseable")
    assert "nothing in key" in nameless.detail
    assert isinstance(good, RawCaption)


def test_tars_are_refused_until_they_are_unpacked(tmp_path: Path) -> None:
    """Two shards, of which the second is packed."""
    for shard in range(2):
        write(tmp_path, shard, [values(shard, 0, "A dog.")])
    (tmp_path / "00001.tar").touch()
    assert captions(settings(tmp_path)) == ["A dog."] * 2
    shutil.rmtree(tmp_path / "00001")
    with pytest.raises(SourceError, match=r"00001\.tar holds its images packed.*webdataset"):
        list(readers.read(settings(tmp_path)))


def test_images_in_the_shards_are_read_in_place(tmp_path: Path) -> None:
    failed = {"status": "failed_to_download", "error_message": HTTP}
    rows = [{**values(0, 0, "A dog."), "jpg": b"..."}, values(0, 1, "A cat.", **failed)]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "00000.parquet")
    image, gone = read(settings(tmp_path))
    assert (image.image, gone.image) == ("00000.parquet/jpg/0", "")
    assert isinstance(gone, Rejected) and gone.rule == "not_downloaded"


def test_unpacked_shards_are_a_folder_whose_files_of_values_have_the_captions(
    tmp_path: Path,
) -> None:
    write(tmp_path, 0, [values(0, n, "sofa", top="A dog.") for n in range(2)])
    (tmp_path / "00000" / "000000000.txt").write_text("sofa")
    columns = Columns(caption="top")
    assert captions(settings(tmp_path, ".", format="folder", columns=columns)) == ["A dog."] * 2


def test_captions_of_a_table_are_joined_by_address(tmp_path: Path) -> None:
    """DreamLIP's, in another order; a link is dead, and an address was never tried."""
    dead = values(0, 1, None, status="failed_to_download", error_message=HTTP)
    write(tmp_path, 0, [values(0, 0, None), dead, values(0, 2, None)])
    with (tmp_path / "cc3m.csv").open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["Image Path", "raw_caption", "shortLLA_captions"])
        for number in (3, 2, 1, 0):
            address = f"https://example.org/{number}.jpg"
            writer.writerow([address, "sofa", f'A "dog" {number}.\n'])
    table = CaptionTable("cc3m.csv", "Image Path", "url", "shortLLA_captions")
    report: dict[str, Any] = {}
    first, gone, last = readers.read(settings(tmp_path, captions=table), report)
    assert isinstance(first, RawCaption) and isinstance(last, RawCaption)
    assert (first.own, last.own) == (('A "dog" 0.\n',), ('A "dog" 2.\n',))
    assert (first.image, last.image) == ("00000/000000000.jpg", "00000/000000002.jpg")
    assert isinstance(gone, Rejected) and gone.rule == "not_downloaded"
    assert (report["matched"], report["captions_without_image"]) == (2, {"not_in_the_shards": 2})
