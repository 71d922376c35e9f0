"""Images as they come: whole, damaged, hostile."""

import io
import struct
import sys
import zlib
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from compo_pipeline.data.images.decoding import (
    ImageError,
    Limits,
    crop_name,
    file_name,
    inspect,
    is_there,
    load,
)

LIMITS = Limits()

# Pillow warns of much that is damaged or big, besides what it raises.
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::RuntimeWarning")


def image(width: int = 40, height: int = 30, suffix: str = "JPEG", **options: object) -> bytes:
    """The bytes of an image with a gradient, so that it does not compress to nothing."""
    image = Image.linear_gradient("L").resize((width, height)).convert("RGB")
    buffer = io.BytesIO()
    image.save(buffer, suffix, **options)
    return buffer.getvalue()


def bomb(width: int, height: int) -> bytes:
    """A PNG of a few bytes whose header claims a huge size."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        check = zlib.crc32(kind + content)
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", check)

    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    pixels = zlib.compress(b"\0" * 1000)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", pixels)


def test_a_good_image(tmp_path: Path) -> None:
    (tmp_path / "a.jpg").write_bytes(image(40, 30))
    found = inspect(tmp_path, "a.jpg", LIMITS)
    assert (found.error, found.width, found.height) == (None, 40, 30)
    assert found.bytes == (tmp_path / "a.jpg").stat().st_size
    assert len(found.sha256) == 64
    assert load(tmp_path, "a.jpg", LIMITS).size == (40, 30)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "empty"),
        (b"not an image at all", "not_an_image"),
        (image()[:400], "truncated"),
        (image(suffix="PNG")[:100], "truncated"),
        (bomb(20_000, 20_000), "oversized"),
        (bomb(10_000, 10_000), "oversized"),
        (bomb(8_000, 8_000), "oversized"),
        (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", "not_an_image"),
    ],
    ids=["empty", "text", "cut jpeg", "cut png", "bomb", "smaller bomb", "above limit", "program"],
)
def test_what_cannot_be_used_says_why(tmp_path: Path, content: bytes, reason: str) -> None:
    (tmp_path / "a.jpg").write_bytes(content)
    found = inspect(tmp_path, "a.jpg", LIMITS)
    assert found.error.startswith(f"{reason}: ")
    assert (found.width, found.height) == (0, 0)
    assert found.sha256, "the bytes are there and have a hash"
    with pytest.raises(ImageError) as raised:
        load(tmp_path, "a.jpg", LIMITS)
    assert raised.value.reason == reason


def test_avif_is_decoded_and_heic_names_the_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Image.new("RGB", (40, 30), "red").save(tmp_path / "a.avif")
    red = load(tmp_path, "a.avif", LIMITS)
    assert red.size == (40, 30) and np.abs(np.subtract(red.getpixel((9, 9)), (255, 0, 0))).max() < 9
    (tmp_path / "a.heic").write_bytes(b"\0\0\0\x18ftypheic\0\0\0\0mif1heic" + bytes(90))
    monkeypatch.setitem(sys.modules, "pillow_heif", None)
    with pytest.raises(ImageError, match=r"unsupported: .*pip install .*\[heic\]"):
        load(tmp_path, "a.heic", LIMITS)


def array(values: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, values)
    return buffer.getvalue()


def test_an_array_of_numpy_is_bgr(tmp_path: Path) -> None:
    for order in "CF":
        pixels = np.zeros((2, 3, 3), dtype=np.uint8, order=order)
        pixels[0, 1] = (10, 20, 30)
        (tmp_path / "a.npy").write_bytes(array(pixels))
        found = load(tmp_path, "a.npy", LIMITS)
        assert (found.mode, found.size, found.getpixel((1, 0))) == ("RGB", (3, 2), (30, 20, 10))


PIXELS = array(np.zeros((2, 3, 3), dtype=np.uint8))


class _Code:
    """Runs code when it is unpickled."""

    def __reduce__(self) -> tuple[object, ...]:
        return print, ("unpickled",)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (array(np.zeros((2, 3), dtype=np.uint8)), "unsupported"),
        (array(np.zeros((2, 3, 4), dtype=np.uint8)), "unsupported"),
        (array(np.zeros((0, 3, 3), dtype=np.uint8)), "unsupported"),
        (array(np.zeros((2, 3, 3))), "unsupported"),
        (array(np.full((2, 3, 3), _Code(), dtype=object)), "unsupported"),
        (PIXELS[:-4], "corrupt"),
        (PIXELS[:40], "corrupt"),
        (PIXELS.replace(b"(2, 3,", b"(9999, 9999,"), "oversized"),
        (PIXELS.replace(b"\x01\x00", b"\x07\x00", 1), "corrupt"),
    ],
)
def test_other_arrays_are_refused(
    tmp_path: Path, content: bytes, reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "a.npy").write_bytes(content)
    with pytest.raises(ImageError) as raised:
        load(tmp_path, "a.npy", LIMITS)
    assert raised.value.reason == reason
    assert "unpickled" not in capsys.readouterr().out


@pytest.mark.parametrize("name", ["a\0b.jpg", "x" * 300 + ".jpg", "."])
def test_names_no_file_can_have_are_missing(tmp_path: Path, name: str) -> None:
    assert str(inspect(tmp_path, name, LIMITS).error).startswith("missing")


@pytest.mark.parametrize("name", ["../secret.jpg", "a/../../secret.jpg", "a/../a.jpg"])
def test_dots_are_refused(tmp_path: Path, name: str) -> None:
    root = tmp_path / "root"
    (root / "a").mkdir(parents=True)
    (tmp_path / "secret.jpg").write_bytes(image())
    (root / "a.jpg").write_bytes(image())
    assert str(inspect(root, name, LIMITS).error).startswith("out_of_root")


def test_a_link_out_of_the_root_needs_permission(tmp_path: Path) -> None:
    root = tmp_path / "root"
    root.mkdir()
    (tmp_path / "a.jpg").write_bytes(image())
    (root / "link.jpg").symlink_to(tmp_path / "a.jpg")
    (root / "loop.jpg").symlink_to(root / "loop.jpg")
    assert str(inspect(root, "link.jpg", LIMITS).error).startswith("out_of_root")
    assert inspect(root, "link.jpg", Limits(follow_symlinks=True)).error is None
    assert str(inspect(root, "loop.jpg", LIMITS).error).startswith("missing")


def test_a_linked_root_is_a_root_and_a_link_inside_it_is_followed(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "disk" / "a.jpg").write_bytes(image())
    (tmp_path / "disk" / "link.jpg").symlink_to(tmp_path / "disk" / "a.jpg")
    (tmp_path / "root").symlink_to(tmp_path / "disk")
    for name in ("a.jpg", "link.jpg"):
        assert inspect(tmp_path / "root", name, LIMITS).error is None


def test_orientation_is_ignored_where_the_limits_say_so(tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    (tmp_path / "a.jpg").write_bytes(image(40, 30, exif=exif))
    assert load(tmp_path, "a.jpg", Limits(exif=False)).size == (40, 30)


def test_orientation_6_turns_clockwise(tmp_path: Path) -> None:
    image = Image.new("RGB", (2, 1), "black")
    image.putpixel((0, 0), (255, 255, 255))
    exif = Image.Exif()
    exif[0x0112] = 6
    image.save(tmp_path / "a.png", exif=exif)
    upright = load(tmp_path, "a.png", LIMITS)
    assert upright.getpixel((0, 0)) == (255, 255, 255)
    assert upright.getpixel((0, 1)) == (0, 0, 0)


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGBA", "CMYK", "I;16"])
def test_every_colour_mode_becomes_rgb(tmp_path: Path, mode: str) -> None:
    suffix = "jpeg" if mode == "CMYK" else "png"
    Image.new(mode, (5, 4)).save(tmp_path / f"a.{suffix}")
    image = load(tmp_path, f"a.{suffix}", LIMITS)
    assert (image.mode, image.size) == ("RGB", (5, 4))


@pytest.mark.parametrize("suffix", ["PNG", "PPM"])
def test_of_16_bits_the_upper_8_count(tmp_path: Path, suffix: str) -> None:
    values = np.arange(0, 65536, 16, dtype=np.uint16).reshape(64, 64)
    Image.fromarray(values).save(tmp_path / "a", suffix)
    found = np.asarray(load(tmp_path, "a", LIMITS))
    assert (found == (values // 256)[:, :, None]).all()
    assert inspect(tmp_path, "a", LIMITS).error is None


def test_floats_are_no_pixels(tmp_path: Path) -> None:
    Image.new("F", (40, 40)).save(tmp_path / "a", "PPM")
    assert str(inspect(tmp_path, "a", LIMITS).error).startswith("unsupported: ")


@settings(max_examples=100)
@given(
    suffix=st.sampled_from(["JPEG", "PNG", "GIF", "BMP", "WEBP"]),
    changes=st.lists(st.tuples(st.integers(0, 2000), st.integers(0, 255)), max_size=6),
    cut=st.integers(0, 3000),
)
def test_damage_is_an_answer_never_an_exception(
    tmp_path_factory: pytest.TempPathFactory, suffix: str, changes: list[tuple[int, int]], cut: int
) -> None:
    content = bytearray(image(20, 20, suffix))
    for place, value in changes:
        content[place % len(content)] = value
    root = tmp_path_factory.getbasetemp()
    (root / "damaged").write_bytes(content[:cut])
    found = inspect(root, "damaged", Limits(max_pixels=10_000))
    assert (found.error is None) == (found.width > 0)


@pytest.mark.parametrize(
    "box", ["1,2,3,4", "-5,-5,7,8", "38,29,99,99", "0,0,40,30", "40,0,5,5", "-9,0,9,9"]
)
def test_a_crop_is_a_box_of_the_upright_image(tmp_path: Path, box: str) -> None:
    pixels = np.random.default_rng(0).integers(0, 255, (30, 40, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(tmp_path / "a.png")
    name = f"a.png#xywh={box}"
    x, y, width, height = map(int, box.split(","))
    assert crop_name("a.png", x, y, width, height) == name and file_name(name) == "a.png"
    shown = np.asarray(load(tmp_path, name, LIMITS))
    margin = 100  # of black on every side
    framed = np.pad(pixels, ((margin, margin), (margin, margin), (0, 0)))
    x, y = x + margin, y + margin
    assert np.array_equal(shown, framed[y : y + height, x : x + width])
    found = inspect(tmp_path, name, LIMITS)
    assert (found.width, found.height) == (width, height)
    assert found.sha256 == inspect(tmp_path, "a.png", LIMITS).sha256


@pytest.mark.parametrize("box", ["", "1,2,3", "0,0,0,9", "0,0,-3,9", "a,b,c,d", "1,1,1,1e3"])
def test_a_crop_without_pixels_is_no_image(tmp_path: Path, box: str) -> None:
    (tmp_path / "a.jpg").write_bytes(image(40, 30))
    assert is_there(tmp_path, f"a.jpg#xywh={box}", LIMITS)
    with pytest.raises(ImageError, match="no_crop"):
        load(tmp_path, f"a.jpg#xywh={box}", LIMITS)
