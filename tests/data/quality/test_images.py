"""Images are measured once each, in order, and measurements are stored."""

from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from compo_pipeline.core.table_files import PrepareSettings
from compo_pipeline.data.images import decoding
from compo_pipeline.data.images.decoding import DecodedImage, Limits
from compo_pipeline.data.quality import ingest
from compo_pipeline.data.quality.settings import IngestSettings


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Three hundred small images and one broken file."""
    folder = tmp_path / "root"
    folder.mkdir()
    for number in range(300):
        Image.new("RGB", (number % 7 + 1, 3)).save(folder / f"{number}.png")
    (folder / "7.png").write_bytes(b"broken")
    return folder


@pytest.fixture
def inspected(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The paths that were really inspected."""
    seen: list[str] = []
    really = decoding.inspect

    def spy(root: Path, relative: str, limits: Limits) -> DecodedImage:
        seen.append(relative)
        return really(root, relative, limits)

    monkeypatch.setattr(decoding, "inspect", spy)
    return seen


NAMES = [f"{number}.png" for number in range(300)]


def measure(*given: Any) -> dict[str, DecodedImage]:
    return {image.path: image for image in ingest.measure(*given)}


@pytest.mark.parametrize("workers", [1, None])
def test_every_worker_count_gives_the_same(root: Path, workers: int | None) -> None:
    found = measure(root, NAMES, IngestSettings(), PrepareSettings(workers=workers))
    assert list(found) == NAMES
    assert found == {name: decoding.inspect(root, name, Limits()) for name in NAMES}


def test_an_interrupted_run_resumes(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, inspected: list[str]
) -> None:
    settings = IngestSettings(journal=tmp_path / "deep" / "measured.sqlite")
    one = PrepareSettings(workers=1)
    monkeypatch.setattr(ingest, "_IMAGES_PER_TASK", 10)
    really = decoding.inspect

    def interrupted(root: Path, relative: str, limits: Limits) -> DecodedImage:
        if relative == "105.png":
            raise KeyboardInterrupt
        return really(root, relative, limits)

    with monkeypatch.context() as context:
        context.setattr(decoding, "inspect", interrupted)
        with pytest.raises(KeyboardInterrupt):
            measure(root, NAMES, settings, one)
    inspected.clear()
    found = measure(root, NAMES, settings, one)
    assert set(inspected) == set(NAMES[100:])
    assert found == measure(root, NAMES, IngestSettings())


def test_a_changed_file_is_measured_again(root: Path, tmp_path: Path, inspected: list[str]) -> None:
    settings = IngestSettings(journal=tmp_path / "measured.sqlite")
    measure(root, NAMES, settings)
    Image.new("RGB", (9, 9)).save(root / "7.png")
    (root / "8.png").unlink()
    inspected.clear()
    found = measure(root, NAMES, settings)
    assert sorted(inspected) == ["7.png", "8.png"]
    assert (found["7.png"].width, found["7.png"].error) == (9, None)
    assert str(found["8.png"].error).startswith("missing")


def test_another_decoder_and_other_limits_do_not_use_the_measurements(
    root: Path, tmp_path: Path, inspected: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = tmp_path / "measured.sqlite"
    measure(root, NAMES[:3], IngestSettings(journal=journal))
    inspected.clear()
    found = measure(root, NAMES[:3], IngestSettings(journal=journal, max_pixels=3))
    assert sorted(inspected) == NAMES[:3]
    assert str(found["2.png"].error).startswith("oversized")
    monkeypatch.setattr(decoding, "DECODING", 2)
    inspected.clear()
    measure(root, NAMES[:3], IngestSettings(journal=journal))
    assert sorted(inspected) == NAMES[:3]
