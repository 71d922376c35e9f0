"""DreamLIP's captions: images by address, by path, or in tables of img2dataset's."""

import csv
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from compo_pipeline.core.records import Rejected
from compo_pipeline.data import readers
from compo_pipeline.data.readers.record import RawCaption, SourceError
from compo_pipeline.data.settings import Columns, DataSettings

PUBLISHED = "cc3m_3long_3short_1raw_captions_url"
NOTHING_THERE = "HTTP Error 404: Not Found"


def address(number: int) -> str:
    return f"https://example.org/photos/{number}.jpg?size=1,2"


def texts(number: int) -> dict[str, str]:
    """The seven captions of an image, told apart by their columns."""
    kinds = [f"{length}{by}" for by in ("IB", "SV", "LLA") for length in ("short", "long")]
    captions = {f"{kind}_captions": f'{kind}, of a "dog" {number}.\n' for kind in kinds}
    return {"raw_caption": f"dog {number}", **captions}


def publish(root: Path, suffix: str, images: list[str]) -> str:
    """The published file, with these in the column of images."""
    rows = [{"Image Path": image, **texts(number)} for number, image in enumerate(images)]
    path = root / f"{PUBLISHED}.{suffix}"
    if suffix == "parquet":
        pq.write_table(pa.Table.from_pylist(rows), path)
    else:
        with path.open("w", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, list(rows[0]))
            writer.writeheader()
            writer.writerows(rows)
    return path.name


def download(folder: Path, numbers: dict[int, str], shard: int = 0, **more: Any) -> None:
    """A shard of img2dataset's: the addresses of these numbers, each with its status."""
    images = folder / f"{shard:05}"
    images.mkdir(parents=True)
    rows = []
    for place, (number, status) in enumerate(numbers.items()):
        key = f"{shard:05}{place:04}"
        error = None if status == "success" else NOTHING_THERE
        row = {"url": address(number), "key": key, "status": status, "error_message": error}
        rows.append({**row, "caption": None, **(texts(number) if more.get("carried") else {})})
        if error is None:
            (images / f"{key}.jpg").touch()
            (images / f"{key}.json").write_text(json.dumps(rows[-1]))
    pq.write_table(pa.Table.from_pylist(rows), images.with_suffix(".parquet"))


def settings(root: Path, source: str, **given: Any) -> DataSettings:
    return DataSettings(root, "dreamlip", {"train": source}, **given)


def read(data: DataSettings) -> list[RawCaption | Rejected]:
    return list(readers.read(data))


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_images_are_found_by_their_address(tmp_path: Path, suffix: str) -> None:
    """Three rows, fetched in another order and in two shards."""
    name = publish(tmp_path, suffix, [address(n) for n in range(3)])
    download(tmp_path / "images", {2: "success", 1: "success"})
    download(tmp_path / "images", {0: "success"}, shard=1)
    rows = read(settings(tmp_path, name, images="images"))
    images = ["00001/000010000.jpg", "00000/000000001.jpg", "00000/000000000.jpg"]
    assert rows == [
        RawCaption(
            sample_id=f"train-{number}",
            image_id=f"train-images/{image}",
            image=f"images/{image}",
            own=(f'shortLLA, of a "dog" {number}.\n',),
            further=(),
            split="train",
        )
        for number, image in enumerate(images)
    ]
    assert all((tmp_path / row.image).is_file() for row in rows)


def test_dead_links_and_addresses_never_tried_stand_apart(tmp_path: Path) -> None:
    name = publish(tmp_path, "csv", [address(n) for n in range(3)])
    download(tmp_path, {0: "success", 1: "failed_to_download"})
    good, dead, unknown = read(settings(tmp_path, name))
    assert isinstance(good, RawCaption)
    detail = f"failed_to_download: {NOTHING_THERE}: {address(1)}"
    assert dead == Rejected(-1, "train-1", "", "not_downloaded", detail)
    assert isinstance(unknown, Rejected)
    assert (unknown.sample_id, unknown.rule) == ("train-2", "not_downloaded")
    assert unknown.detail == f"no row of [0-9]*.parquet has this address: {address(2)}"


def test_an_address_that_was_fetched_once_is_there(tmp_path: Path) -> None:
    """The second try failed."""
    name = publish(tmp_path, "csv", [address(0)])
    download(tmp_path, {0: "success"})
    download(tmp_path, {0: "failed_to_download"}, shard=1)
    (row,) = read(settings(tmp_path, name))
    assert row.image == "00000/000000000.jpg"


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_paths_in_the_place_of_addresses(tmp_path: Path, suffix: str) -> None:
    name = publish(tmp_path, suffix, ["a/0.png", "b/1.png"])
    (tmp_path / "images").mkdir()
    (tmp_path / "images" / "0.png").touch()
    first, second = read(settings(tmp_path, name, images="images"))
    assert isinstance(first, RawCaption) and isinstance(second, RawCaption)
    assert (first.image, first.image_id) == ("images/a/0.png", "train-images/a/0.png")
    assert second.image == "images/b/1.png"
    (plain, _) = readers.read(settings(tmp_path, name))
    assert plain.image == "a/0.png"


@pytest.mark.parametrize("source", ["*.parquet", "*/*.json"])
def test_captions_carried_along_by_img2dataset(tmp_path: Path, source: str) -> None:
    download(tmp_path, {4: "success", 5: "success"}, carried=True)
    download(tmp_path, {6: "failed_to_resize"}, shard=1, carried=True)
    first, second, *rest = read(settings(tmp_path, source))
    assert first == RawCaption(
        "train-000000000",
        "train-00000/000000000.jpg",
        "00000/000000000.jpg",
        ('shortLLA, of a "dog" 4.\n',),
        (),
        "train",
    )
    assert isinstance(second, RawCaption)
    # There is no file of the values where there is no image.
    failed = [row.rule for row in rest if isinstance(row, Rejected)]
    assert failed == (["not_downloaded"] if source == "*.parquet" else [])
    other = settings(tmp_path, source, columns=Columns(caption="longSV_captions"))
    (long, *_) = readers.read(other)
    assert isinstance(long, RawCaption)
    assert long.own == ('longSV, of a "dog" 4.\n',)


def test_columns_of_the_users_own(tmp_path: Path) -> None:
    path = tmp_path / "own.jsonl"
    rows = [{"who": "x", "link": address(0), "s": ["A dog.", "It sleeps."]}]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    download(tmp_path, {0: "success"})
    columns = Columns(id="who", image="link", sentences="s")
    (row,) = read(settings(tmp_path, "own.jsonl", columns=columns))
    assert isinstance(row, RawCaption)
    assert (row.sample_id, row.image) == ("train-x", "00000/000000000.jpg")
    assert row.own == ("A dog.", "It sleeps.")


def test_addresses_without_downloads_name_the_key(tmp_path: Path) -> None:
    name = publish(tmp_path, "csv", [address(0)])
    (tmp_path / "images").mkdir()
    with pytest.raises(
        SourceError, match=r"'Image Path' holds addresses, and no table .* set data\.images to the"
    ):
        list(readers.read(settings(tmp_path, name, images="images")))
