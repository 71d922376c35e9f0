"""Images in tar archives are read in place, as the same file beside it would be."""

import io
import resource
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from compo_pipeline.core import archives
from compo_pipeline.data.images import decoding
from compo_pipeline.data.images.decoding import ImageError, Limits

LIMITS = Limits()


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    """Three images in a folder, in an archive, and a link in it."""
    path = tmp_path / "0.tar"
    with tarfile.open(path, "w") as tar:
        for number in range(3):
            image = tmp_path / f"{number}.png"
            Image.effect_noise((40, 30 + number), 50).convert("RGB").save(image)
            tar.add(image, f"test/{number}.png")
        link = tarfile.TarInfo("link.png")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        tar.addfile(link)
    return path


def test_an_image_of_an_archive_is_the_image(archive: Path) -> None:
    for number in range(3):
        name = f"0.tar/test/{number}.png"
        assert decoding.is_there(archive.parent, name, LIMITS)
        own = decoding.load(archive.parent, f"{number}.png", LIMITS)
        assert decoding.load(archive.parent, name, LIMITS).tobytes() == own.tobytes()
        plain = decoding.inspect(archive.parent, f"{number}.png", LIMITS)
        found = decoding.inspect(archive.parent, name, LIMITS)
        assert (found.sha256, found.bytes) == (plain.sha256, plain.bytes)
    crop = decoding.load(archive.parent, "0.tar/test/0.png#xywh=0,0,5,6", LIMITS)
    assert crop.size == (5, 6)


@pytest.mark.parametrize("name", ["0.tar/a.png", "0.tar/link.png", "1.tar/test/0.png"])
def test_what_is_no_file_of_an_archive_is_missing(archive: Path, name: str) -> None:
    with pytest.raises(ImageError, match="missing"):
        decoding.load(archive.parent, name, LIMITS)


@pytest.mark.parametrize(
    "name", ["../0.tar/test/0.png", "0.tar/../../0.png", "linked.tar/test/0.png"]
)
def test_no_archive_outside_the_root_is_opened(archive: Path, name: str) -> None:
    root = archive.parent / "root"
    root.mkdir()
    (root / "linked.tar").symlink_to(archive)
    with pytest.raises(ImageError, match="out_of_root"):
        decoding.load(root, name, LIMITS)


def test_a_folder_may_be_named_like_an_archive(archive: Path) -> None:
    folder = archive.parent / "folder.tar"
    folder.mkdir()
    (archive.parent / "0.png").rename(folder / "0.png")
    assert decoding.load(archive.parent, "folder.tar/0.png", LIMITS).size == (40, 30)


def test_a_cut_archive_keeps_its_whole_members(archive: Path) -> None:
    assert not archives.scan(archive).damage
    place, size = archives.scan(archive).members["test/2.png"]
    content = archive.read_bytes()
    for end in (place + size // 2, place - 100, place - 512, 10):
        archive.write_bytes(content[:end])
        if end == 10:
            with pytest.raises(ValueError, match="not a tar archive"):
                archives.scan(archive)
            continue
        found = archives.scan(archive)
        assert found.damage and {"test/0.png", "test/1.png"} <= found.members.keys()
        assert decoding.load(archive.parent, "0.tar/test/1.png", LIMITS).size == (40, 31)
        if "test/2.png" in found.members:
            with pytest.raises(ImageError, match="truncated"):
                decoding.load(archive.parent, "0.tar/test/2.png", LIMITS)


HUGE = 10**15
PAX_SIZE = b"40 size=1000000000000000000000000000000\n"


def member(name: str, size: int, kind: bytes, content: bytes = b"") -> bytes:
    """A member of a tar archive whose header states any size."""
    info = tarfile.TarInfo(name)
    info.size, info.type = size, kind
    return info.tobuf(tarfile.GNU_FORMAT) + content.ljust(-(-len(content) // 512) * 512, b"\0")


@pytest.fixture
def little_memory() -> Iterator[None]:
    """Of this process: a gigabyte more than it has."""
    before = resource.getrlimit(resource.RLIMIT_AS)
    now = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (now + 2**30, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_AS, before)


@pytest.mark.parametrize("size", [HUGE, 2**32, -5000])
@pytest.mark.parametrize("kind", [tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK, b"x", b"g"])
@pytest.mark.parametrize("before", [b"", member("././@LongLink", 3, b"L", b"ab\0")])
def test_a_header_of_any_stated_size_is_an_error_of_one_line(
    tmp_path: Path, little_memory: None, before: bytes, kind: bytes, size: int
) -> None:
    path = tmp_path / "0.tar"
    path.write_bytes(before + member("././@LongLink", size, kind, b"a" * 600))
    with path.open("r+b") as file:
        file.truncate(2**33)  # so that the bytes are there
    with pytest.raises(ValueError, match=r"0\.tar is not a tar archive: a header of -?\d+ bytes"):
        archives.scan(path)


@pytest.mark.parametrize(
    "start", [member("a", 2**80, b"0"), member("a", 2**62, b"0"), member("p", 40, b"x", PAX_SIZE)]
)
def test_a_member_of_any_stated_size_ends_with_the_archive(tmp_path: Path, start: bytes) -> None:
    path = tmp_path / "0.tar"
    path.write_bytes(start + member("b.png", 512, b"0", b"b" * 512))
    found = archives.scan(path)
    assert found.damage
    assert all(size <= path.stat().st_size for _, size in found.members.values())


def test_long_names_are_read(tmp_path: Path) -> None:
    name = "a/" * 2000 + "b.png"
    for form in (tarfile.GNU_FORMAT, tarfile.PAX_FORMAT):
        path = tmp_path / f"{form}.tar"
        with tarfile.open(path, "w", format=form) as tar:
            info = tarfile.TarInfo(name)
            info.size, info.pax_headers = 3, {"comment": "c" * 500_000}
            tar.addfile(info, io.BytesIO(b"abc"))
        assert archives.read(path, name) == b"abc"


def test_images_in_a_parquet_file_are_read_in_place(tmp_path: Path) -> None:
    cells: list[dict[str, bytes | str | None] | None] = []
    for number in range(5):
        Image.effect_noise((8, 9 + number), 50).convert("RGB").save(tmp_path / f"{number}.png")
        cells.append({"bytes": (tmp_path / f"{number}.png").read_bytes(), "path": "a.png"})
    cells += [None, {"bytes": None, "path": "b.png"}]
    kind = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    table = pa.table({"image": pa.array(cells, kind), "text": ["a"] * 7})
    pq.write_table(table, tmp_path / "test.parquet", row_group_size=2)
    for number in (4, 0, 3):
        own = decoding.load(tmp_path, f"{number}.png", LIMITS)
        found = decoding.load(tmp_path, f"test.parquet/image/{number}", LIMITS)
        assert found.tobytes() == own.tobytes()
    for number in (5, 6):
        with pytest.raises(ImageError, match="empty"):
            decoding.load(tmp_path, f"test.parquet/image/{number}", LIMITS)
    for name in ("image/7", "text/0", "image/-1", "0"):
        with pytest.raises(ImageError, match="missing"):
            decoding.load(tmp_path, f"test.parquet/{name}", LIMITS)
    content = (tmp_path / "test.parquet").read_bytes()
    for broken in (b"", content[:200], content[:4] + b"\0" * 300 + content[304:]):
        (tmp_path / "test.parquet").write_bytes(broken)
        with pytest.raises(ImageError, match="missing|truncated"):
            decoding.load(tmp_path, "test.parquet/image/0", LIMITS)


def parquet_of_images(path: Path, rows: int, **options: Any) -> list[bytes]:
    """Write a column of `rows` cells of random bytes; the bytes of each."""
    cells = [np.random.default_rng(row).bytes(10_000) for row in range(rows)]
    kind = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    values = [{"bytes": cell, "path": f"{row}.jpg"} for row, cell in enumerate(cells)]
    pq.write_table(pa.table({"image": pa.array(values, kind)}), path, **options)
    return cells


def test_rows_of_parquet_are_read_in_any_order(tmp_path: Path) -> None:
    path = tmp_path / "test.parquet"
    cells = parquet_of_images(path, 300, row_group_size=50)
    order = [*range(300), 0, 299, 150, 149, *reversed(range(100))]
    assert [archives.read(path, f"image/{row}") for row in order] == [cells[row] for row in order]
    assert archives.source_name(path, "image/7") == "7.jpg"


def test_a_large_row_group_is_not_held_in_memory(tmp_path: Path) -> None:
    path = tmp_path / "test.parquet"
    options = {"use_dictionary": False, "write_batch_size": 16, "data_page_size": 2**17}
    cells = parquet_of_images(path, 4000, **options)
    before = pa.total_allocated_bytes()
    for row in (0, 1500, 3999):
        assert archives.read(path, f"image/{row}") == cells[row]
        held = pa.total_allocated_bytes() - before
        assert held < sum(map(len, cells)) / 20


def test_a_damaged_page_costs_no_row_before_it(tmp_path: Path) -> None:
    path = tmp_path / "test.parquet"
    options = {"use_dictionary": False, "write_batch_size": 4, "data_page_size": 2**15}
    cells = parquet_of_images(path, 100, compression="zstd", **options)
    content = bytearray(path.read_bytes())
    place = content.index(cells[60][:500])
    content[place - 40_000 : place] = b"\xff" * 40_000
    path.write_bytes(content)
    assert archives.read(path, "image/10") == cells[10]
    for _ in range(2):
        with pytest.raises(ImageError, match="truncated"):
            decoding.load(tmp_path, "test.parquet/image/99", LIMITS)
    assert archives.read(path, "image/11") == cells[11]


def test_names_of_sources(archive: Path, tmp_path: Path) -> None:
    assert decoding.source_name(tmp_path, "0.png", LIMITS) == "0.png"
    assert decoding.source_name(tmp_path, "0.tar/test/0.png#xywh=0,0,5,6", LIMITS) == "test/0.png"
    pq.write_table(pa.table({"image": pa.array([b"a"])}), tmp_path / "plain.parquet")
    assert decoding.source_name(tmp_path, "plain.parquet/image/0", LIMITS) == ""
    with pytest.raises(ImageError, match="missing"):
        decoding.source_name(tmp_path, "plain.parquet/image/1", LIMITS)
    assert decoding.is_file_name("a/0.png")
    assert not decoding.is_file_name("plain.parquet/image/0")
    assert not decoding.is_file_name("0.png#xywh=0,0,5,6")
