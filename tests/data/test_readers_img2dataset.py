"""What img2dataset leaves on disk, with captions of its own, of BLIP's and of CoCa's."""

import json
import shutil
import tarfile
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from compo_pipeline.core.records import Rejected
from compo_pipeline.data import readers
from compo_pipeline.data.readers.record import RawCaption, SourceError
from compo_pipeline.data.settings import Columns, DataSettings

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


@pytest.mark.parametrize("source", ["*.parquet", "*/*.json"])
def test_shards_in_order_from_tables_or_from_the_files_beside_the_images(
    tmp_path: Path, source: str
) -> None:
    write(tmp_path, 1, [values(1, 0, "A cat.")])
    write(tmp_path, 0, [values(0, 0, "A dog.\nIt sleeps."), values(0, 1, "猫 🐈")])
    rows = read(settings(tmp_path, source))
    assert rows[0] == RawCaption(
        "train-000000000",
        "train-00000/000000000.jpg",
        "00000/000000000.jpg",
        ("A dog.\nIt sleeps.",),
        (),
        "train",
    )
    assert [row.image for row in rows[1:]] == ["00000/000000001.jpg", "00001/000010000.jpg"]
    assert all((tmp_path / row.image).is_file() for row in rows)


def test_what_was_never_downloaded_stands_apart(tmp_path: Path) -> None:
    failed = {"status": "failed_to_download", "error_message": HTTP}
    write(tmp_path, 0, [values(0, 0, "A dog."), values(0, 1, "A cat.", **failed)])
    _, gone = read(settings(tmp_path))
    assert gone == Rejected(
        -1, "train-000000001", "", "not_downloaded", f"failed_to_download: {HTTP}"
    )


def test_a_table_without_a_status_holds_downloaded_images(tmp_path: Path) -> None:
    row = {"key": "000000000", "caption": "A dog."}
    pq.write_table(pa.Table.from_pylist([row]), tmp_path / "00000.parquet")
    assert captions(settings(tmp_path)) == ["A dog."]


def test_columns_are_named_by_configuration(tmp_path: Path) -> None:
    more = {"uid": "u7", "top_caption": "a dog on a sofa", "name": "x"}
    write(tmp_path / "laion", 0, [values(0, 0, "SOFA CHEAP!!", **more)])
    columns = Columns(id="uid", image="{name}-{key}.png", caption="top_caption")
    (row,) = read(settings(tmp_path, "laion/*.parquet", columns=columns))
    assert isinstance(row, RawCaption)
    assert (row.sample_id, row.image) == ("train-u7", "laion/00000/x-000000000.png")
    assert row.own == ("a dog on a sofa",)


def test_unusable_rows_are_kept_with_the_reason(tmp_path: Path) -> None:
    write(
        tmp_path,
        0,
        [values(0, 0, None), values(0, 1, "A dog.") | {"key": None}, values(0, 2, "A cat.")],
    )
    silent, nameless, good = read(settings(tmp_path))
    assert isinstance(silent, Rejected)
    assert "None is not a text" in silent.detail
    assert isinstance(nameless, Rejected)
    assert (nameless.sample_id, nameless.rule) == ("train-00000-1", "unparseable")
    assert "nothing in key" in nameless.detail
    assert isinstance(good, RawCaption)


@pytest.mark.parametrize("source", ["*.parquet", "*.tar", "*/*.json"])
def test_tars_are_refused_until_they_are_unpacked(tmp_path: Path, source: str) -> None:
    """Two shards, of which the second is packed: it must not be left out in silence."""
    write(tmp_path, 0, [values(0, 0, "A dog.")])
    write(tmp_path, 1, [values(1, 0, "A cat.")])
    folder = tmp_path / "00001"
    with tarfile.open(f"{folder}.tar", "w") as tar:
        for path in folder.iterdir():
            tar.add(path, path.name)
    shutil.rmtree(folder)
    with pytest.raises(SourceError, match=r"00001\.tar holds its images packed.*webdataset"):
        list(readers.read(settings(tmp_path, source)))
    folder.mkdir()
    with tarfile.open(f"{folder}.tar") as tar:
        tar.extractall(folder, filter="data")
    if source != "*.tar":
        assert captions(settings(tmp_path, source)) == ["A dog.", "A cat."]


def test_images_inside_a_table_are_refused(tmp_path: Path) -> None:
    rows = [{**values(0, 0, "A dog."), "jpg": b"..."}]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "00000.parquet")
    with pytest.raises(SourceError, match=r"00000\.parquet holds images.*output_format files"):
        list(readers.read(settings(tmp_path)))


@pytest.mark.parametrize("source", ["*.parquet", "*/*.json"])
def test_coca_captions_in_a_column(tmp_path: Path, source: str) -> None:
    marked = "<start_of_text>a dog on a sofa . <end_of_text>!!"
    write(
        tmp_path,
        0,
        [
            values(0, 0, "sofa", coca_captions="a dog on a sofa . "),
            values(0, 1, "sofa", coca_captions=marked),
            values(0, 2, "sofa", coca_captions="", status="failed_to_resize"),
        ],
    )
    data = settings(tmp_path, source, format="cc3m_coca")
    assert captions(data) == ["a dog on a sofa ."] * 2
    own = settings(tmp_path, source, format="cc3m_coca", columns=Columns(caption="caption"))
    assert captions(own) == ["sofa", "sofa"]


@pytest.mark.parametrize("source", ["*.parquet", "*/*.json"])
def test_coca_captions_in_a_folder(tmp_path: Path, source: str) -> None:
    write(tmp_path, 0, [values(0, number, "sofa") for number in range(3)])
    texts = tmp_path / "coca_captions"
    texts.mkdir()
    (texts / "000000000.txt").write_text("a dog on a sofa .\nno caption", "utf-8")
    (texts / "000000001.txt").write_bytes(b"a \xff dog\n")
    dog, garbled, absent = read(settings(tmp_path, source, format="cc3m_coca"))
    assert isinstance(dog, RawCaption)
    assert dog.own == ("a dog on a sofa .",)
    assert isinstance(garbled, Rejected)
    assert "not valid UTF-8" in garbled.detail
    assert isinstance(absent, Rejected)
    assert absent.image == "00000/000000002.jpg"
    assert "neither a coca_captions nor a text file of it" in absent.detail


def test_a_key_leads_to_no_text_outside_its_folder(tmp_path: Path) -> None:
    write(tmp_path / "data", 0, [values(0, 0, "sofa")])
    (tmp_path / "data" / "coca_captions").mkdir()
    (tmp_path / "secret.txt").write_text("a secret")
    row = values(0, 0, "sofa") | {"key": "../../secret"}
    (tmp_path / "data" / "00000" / "000000000.json").write_text(json.dumps(row))
    (refused,) = read(settings(tmp_path / "data", "*/*.json", format="cc3m_coca"))
    assert isinstance(refused, Rejected)
    assert "secret" not in refused.detail
