"""WebDataset shards are read in place; damage costs a sample or a shard, with a reason."""

import io
import json
import re
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from compo_pipeline.configuration.settings import leaves, overlay, parse
from compo_pipeline.datasets import readers
from compo_pipeline.datasets.readers import locate
from compo_pipeline.datasets.readers.record import RawCaption, SourceError
from compo_pipeline.datasets.settings import Columns, DataSettings
from compo_pipeline.images.decoding import Limits, load
from compo_pipeline.storage.records import Rejected


def jpeg() -> bytes:
    buffer = io.BytesIO()
    Image.effect_noise((40, 30), 50).save(buffer, "jpeg")
    return buffer.getvalue()


def write(path: Path, members: dict[str, bytes]) -> None:
    with tarfile.open(path, "w") as shard:
        for name, content in members.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            shard.addfile(member, io.BytesIO(content))


def fields(**values: Any) -> bytes:
    return json.dumps(values).encode()


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Two shards as img2dataset writes them."""
    for shard in range(2):
        members = {}
        for number in range(3):
            key = f"{shard:05}{number:04}"
            members[f"{key}.jpg"] = jpeg()
            members[f"{key}.txt"] = f"Dog {key}.\n".encode()
            members[f"{key}.json"] = fields(key=key, caption="web", better=f"A dog {key}.")
        write(tmp_path / f"{shard:05}.tar", members)
    return tmp_path


def settings(root: Path, **columns: str) -> DataSettings:
    return DataSettings(root, "webdataset", {"train": "*.tar"}, columns=Columns(**columns))


def read(data: DataSettings) -> list[RawCaption | Rejected]:
    return list(readers.read(data))


def test_samples_in_order_with_images_that_are_read_in_place(root: Path) -> None:
    assert locate(settings(root))["splits"]["train"]["records"] == 6
    rows = [row for row in read(settings(root)) if isinstance(row, RawCaption)]
    assert [row.own for row in rows][2:4] == [("Dog 000000002.",), ("Dog 000010000.",)]
    assert rows[3].sample_id == "train-00001/000010000"
    assert load(root, rows[3].image, Limits()).size == (40, 30)


def test_caption_and_id_are_fields_of_the_json(root: Path) -> None:
    (first, *_) = read(settings(root, caption="better", id="key"))
    assert isinstance(first, RawCaption)
    assert (first.sample_id, first.own) == ("train-000000000", ("A dog 000000000.",))


@pytest.mark.parametrize(
    ("members", "reason"),
    [
        ({"a.txt": b"A dog."}, "no image"),
        ({"a.jpg": b"x"}, "neither a text nor a field caption"),
        ({"a.jpg": b"x", "a.json": b"{"}, "Expecting"),
        ({"a.jpg": b"x", "a.json": b"[]"}, r"a\.json: \[\], expected an object"),
        ({"a.jpg": b"x", "a.json": fields(caption=3)}, "3 is not a text"),
        ({"a.jpg": b"x", "a.txt": b"\xff"}, "not valid UTF-8"),
    ],
)
def test_a_damaged_sample_says_why(root: Path, members: dict[str, bytes], reason: str) -> None:
    write(root / "00002.tar", members)
    *rest, last = read(settings(root))
    assert len(rest) == 6 and isinstance(last, Rejected)
    with pytest.raises(ValueError, match=reason):
        raise ValueError(last.detail)


def test_a_cut_shard_keeps_what_is_whole(root: Path) -> None:
    content = (root / "00001.tar").read_bytes()
    (root / "00001.tar").write_bytes(content[: content.index(b"Dog 000010002") - 100])
    rows = read(settings(root))
    assert [row.sample_id for row in rows if isinstance(row, RawCaption)][-1].endswith("00010001")
    assert isinstance(rows[-1], Rejected) and "00001.tar is cut off" in rows[-1].detail


def test_a_shard_that_is_none_is_one_rejected_record(root: Path) -> None:
    (root / "00000.tar").write_bytes(b"no tar" * 500)
    first, *rest = read(settings(root))
    assert isinstance(first, Rejected) and "00000.tar is not a tar archive" in first.detail
    assert len(rest) == 3


def test_a_shard_that_vanishes_is_one_line(root: Path) -> None:
    rows = readers.read(settings(root))
    next(rows)
    (root / "00001.tar").unlink()
    with pytest.raises(SourceError, match=r"00001\.tar cannot be read: No such file.*data\.splits"):
        list(rows)


def test_laion_coco_s_tars_are_read_in_place_as_the_page_says(
    root: Path, project: Path, context: Callable[..., Any]
) -> None:
    """With the options of the page's own command, on the recipe's settings."""
    page = (project / "docs" / "how-to" / "your-data.md").read_text(encoding="utf-8")
    (options,) = re.findall(r"--env=fsc_laion_coco --params '(data\.format=.*)'", page)
    given = overlay(dict(option.split("=") for option in options.split(",")))
    own = overlay({"data.root": str(root), **dict(leaves(given))})
    data = parse(DataSettings, context("fsc_laion_coco", **own).params["data"], "data")
    assert [row.own for row in read(data) if isinstance(row, RawCaption)] == [("web",)] * 6
