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

from compo_pipeline.core.records import Rejected
from compo_pipeline.core.settings import leaves, parse, with_values
from compo_pipeline.data import readers
from compo_pipeline.data.images.decoding import Limits, load
from compo_pipeline.data.readers.record import RawCaption, SourceError
from compo_pipeline.data.settings import Columns, DataSettings


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
    read_all = read(settings(root))
    assert len(read_all) == 6
    rows = [row for row in read_all if isinstance(row, RawCaption)]
    assert [row.own for row in rows][2:4] == [("Dog 000000002.",), ("Dog 000010000.",)]
    assert rows[3].sample_id == "train-00001/000010000"
    assert load(root, rows[3].image, Limits()).size == (40, 30)


def test_caption_and_id_are_fields_of_the_json(root: Path) -> None:
    (first, *_) = read(settings(root, caption="better", id="key"))
    assert (first.sample_id, first.own) == ("train-000000000", ("A dog 000000000.",))


@pytest.mark.parametrize(
    ("members", "reason"),
    [
        ({"a.txt": b"A dog."}, "no image"),
        ({"a.jpg": b"x", "a.cls": b"1"}, "no caption: its members end in jpg, cls, expected txt"),
        ({f"a.{ending}": b"x" for ending in "bcdefgh"}, "end in b, c, d, e, f, ..., expected jpg"),
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


def flip(content: bytes, place: int) -> bytes:
    return content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :]


@pytest.mark.parametrize(
    "damage",
    [
        lambda content, header: content[: header + 700],
        lambda content, header: content[: header + 100],
        lambda content, header: content[:header],
        lambda content, header: flip(content, header + 3),
        lambda content, header: content[:header] + bytes(512) + content[header + 512 :],
        lambda content, header: content[:header] + bytes(4096) + content[header + 4096 :],
        lambda content, header: b"no tar" * 500,
        lambda content, header: b"",
    ],
)
def test_a_shard_that_cannot_be_read_to_its_end_is_refused(
    root: Path, damage: Callable[[bytes, int], bytes]
) -> None:
    """Behind a header that is cut off, changed or overwritten, nobody knows what there was."""
    content = (root / "00001.tar").read_bytes()
    with tarfile.open(root / "00001.tar") as shard:
        header = shard.getmember("000010001.jpg").offset
    (root / "00001.tar").write_bytes(damage(content, header))
    with pytest.raises(SourceError, match=r"00001\.tar is .*fetch again or move away") as raised:
        read(settings(root))
    assert "\n" not in raised.value.message


def test_keys_have_dots_and_hidden_files_are_no_samples(tmp_path: Path) -> None:
    texts = {f"./img v1.{n} no.{n}": f"A dog {n}." for n in range(4)}
    members = {}
    for key, text in texts.items():
        members |= {f"{key}.JPG": jpeg(), f"{key}.txt": text.encode(), f"{key}.seg.png": b"x"}
        members |= {f"./._{key[2:]}.JPG": b"x", f"__MACOSX/{key[2:]}.txt": b"x"}
    write(tmp_path / "0.tar", members)
    rows = read(settings(tmp_path))
    assert [row.own for row in rows if isinstance(row, RawCaption)] == [
        (t,) for t in texts.values()
    ]
    assert len(rows) == len(texts)
    assert load(tmp_path, rows[3].image, Limits()).size == (40, 30)


def test_endings_of_several_parts_are_named_in_the_reason_and_by_settings(tmp_path: Path) -> None:
    """As exports of models have them, `s0.input.jpg` with `s0.outputs.txt`."""
    members = {}
    for n in range(3):
        members |= {f"s{n}.input.jpg": jpeg(), f"s{n}.outputs.txt": f"A dog {n}.".encode()}
    write(tmp_path / "0.tar", members)
    bad = read(settings(tmp_path))
    assert len(bad) == 3
    assert all("end in input.jpg, outputs.txt" in each.detail for each in bad)
    named = {"image": "input.jpg", "caption": "outputs.txt"}
    assert [row.own for row in read(settings(tmp_path, **named))] == [
        (f"A dog {n}.",) for n in range(3)
    ]


def test_keys_with_words_after_a_period_are_keys(tmp_path: Path) -> None:
    members = {}
    for name in ("photo.final", "photo.draft", "photo.v2.final"):
        members |= {f"{name}.jpg": jpeg(), f"{name}.txt": f"A dog, {name}.".encode()}
    write(tmp_path / "0.tar", members)
    own = {row.sample_id for row in read(settings(tmp_path)) if isinstance(row, RawCaption)}
    assert own == {"train-0/photo.final", "train-0/photo.draft", "train-0/photo.v2.final"}


def test_members_that_collide_or_hold_nothing_are_bad_samples(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "0.tar", "w") as shard:
        for name in ("a.jpg", "a.txt", "a.jpg", "a.txt", "A.txt", "b.txt"):
            member, content = tarfile.TarInfo(name), f"A dog, {name}".encode()
            member.size = len(content)
            shard.addfile(member, io.BytesIO(content))
        for name, kind in (("b.jpg", tarfile.LNKTYPE), ("c.jpg", tarfile.SYMTYPE)):
            member = tarfile.TarInfo(name)
            member.type, member.linkname = kind, "a.jpg"
            shard.addfile(member)
    rows = read(settings(tmp_path))
    assert len(rows) == 5
    own = {row.sample_id: row.own for row in rows if isinstance(row, RawCaption)}
    assert own == {"train-0/a": ("A dog, a.txt",), "train-0/b": ("A dog, b.txt",)}
    reasons = {row.sample_id: row.detail for row in rows if isinstance(row, Rejected)}
    assert reasons.keys() == {"train-0/a", "train-0/A", "train-0/c"}
    assert "another sample has the key 'a'" in reasons["train-0/a"]


def test_laion_coco_s_tars_are_read_in_place_as_the_page_says(
    root: Path, project: Path, context: Callable[..., Any]
) -> None:
    """With the options of the page's own command, on the recipe's settings."""
    page = (project / "docs" / "how-to" / "your-data.md").read_text(encoding="utf-8")
    (options,) = re.findall(r"--env=fsc_laion_coco --params '(data\.format=.*)'", page)
    given = with_values({}, dict(option.split("=") for option in options.split(",")))
    own = with_values({}, {"data.root": str(root), **dict(leaves(given))})
    data = parse(DataSettings, context("fsc_laion_coco", **own).params["data"], "data")
    assert [row.own for row in read(data) if isinstance(row, RawCaption)] == [("web",)] * 6
