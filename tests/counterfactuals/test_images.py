"""Image files: whole or not there, safely named, linked where the disk can."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from compo_pipeline.counterfactuals.images import ImageStore, publish, published


def test_an_image_that_cannot_be_written_leaves_its_name_free(tmp_path: Path) -> None:
    store = ImageStore(tmp_path, "jpeg")

    class Broken(Image.Image):
        def convert(self, *_: object, **__: object) -> "Broken":
            return self

        def save(self, file: object, *_: object, **__: object) -> None:
            file.write(b"half a")  # type: ignore[attr-defined]
            raise OSError("no space")

    with pytest.raises(OSError, match="no space"):
        store.save("abc", Broken())
    assert not store.path("abc").exists()
    store.save("abc", Image.new("RGBA", (4, 3)))
    with Image.open(store.path("abc")) as image:
        assert (image.format, image.mode, image.size) == ("JPEG", "RGB", (4, 3))


def test_png_keeps_every_value(tmp_path: Path) -> None:
    store = ImageStore(tmp_path, "png")
    drawn = Image.effect_noise((16, 16), 90).convert("RGB")
    store.save("k1", drawn)
    assert store.path("k1").suffix == ".png"
    with Image.open(store.path("k1")) as image:
        assert image.tobytes() == drawn.tobytes()


# Sample ids come from tables in UTF-8: no lone surrogates.
@given(st.text(st.characters(codec="utf-8")))
def test_any_sample_id_gives_a_plain_path(sample_id: str) -> None:
    path = published(sample_id, 0, "negative", Path("store/0f/0f12ab.jpg"))
    folder, file = path.split("/")
    assert (len(folder), len(file) < 90) == (2, True)
    assert path.isascii() and path.isprintable()
    assert not set(path) & set('\\:*?"<>| ') and not file.startswith((".", "~"))


def test_equal_paths_are_of_equal_images() -> None:
    """The key of the store tells apart ids that read alike once they are safe."""
    stored = [Path(f"store/{key[:2]}/{key}.png") for key in ("0f12ab", "0f12ac")]
    paths = {published(name, 0, "negative", file) for name in ("a", "a/b") for file in stored}
    assert len(paths) == 4 and all(path.startswith("0f/") for path in paths)
    assert published("a/b", 1, "positive", stored[0]) == "0f/positive-1-a_b-0f12ab.png"


@pytest.mark.parametrize("linked", [True, False])
def test_published_folder_holds_these_images_and_no_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, linked: bool
) -> None:
    if not linked:

        def refuse(*_: object) -> None:
            raise OSError("another disk")

        monkeypatch.setattr(Path, "hardlink_to", refuse)
    source, folder = tmp_path / "one", tmp_path / "out"
    source.write_bytes(b"image")
    publish({"aa/first.jpg": source}, folder)
    publish({"aa/second.jpg": source, "bb/third.jpg": source}, folder)
    here = folder.stat().st_ino
    publish({"bb/third.jpg": source, "aa/second.jpg": source}, folder)
    assert folder.stat().st_ino == here, "what reads it would be disturbed"
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    assert [str(path.relative_to(folder)) for path in files] == ["aa/second.jpg", "bb/third.jpg"]
    assert files[0].read_bytes() == b"image"
    assert (source.stat().st_nlink > 1) == linked
    assert sorted(path.name for path in tmp_path.iterdir()) == ["one", "out"]
