"""ONNX files give what torch gives, at any batch size, and say how to be fed."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.models.conftest import edit

from compo_pipeline.core.hashing import file_hash
from compo_pipeline.core.settings import SettingsError
from compo_pipeline.models import onnx_export
from compo_pipeline.models.loading import LoadedModel, export, load
from compo_pipeline.models.onnx_export import session, to_onnx
from compo_pipeline.models.settings import ModelSettings
from compo_scenes import scenes_base

pytest.importorskip("onnxscript")
pytest.importorskip("onnxruntime")

BASE = scenes_base()
TEXTS = ["A red cube isn't left of two spheres.", "", "word " * 300, "three dogs", "a"]


@pytest.fixture(scope="module")
def exported(tiny_clip: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return to_onnx(tiny_clip, tmp_path_factory.mktemp("exports") / "onnx")


def agree(folder: Path, loaded: LoadedModel) -> None:
    """Check both files against torch at batches of 1, 2 and 5."""
    from tokenizers import Tokenizer

    size = loaded.image_size
    pixels = torch.randn(5, 3, size, size, generator=torch.Generator().manual_seed(1))
    read = Tokenizer.from_file(str(folder / "tokenizer.json"))
    ids = np.array([encoded.ids for encoded in read.encode_batch(TEXTS)], dtype=np.int64)
    np.testing.assert_array_equal(ids, loaded.tokenize(TEXTS).numpy())
    model: torch.nn.Module = loaded.model
    with torch.no_grad():
        images = model.encode_image(pixels, normalize=True).numpy()
        texts = model.encode_text(torch.from_numpy(ids), normalize=True).numpy()
    image, text = session(folder / "image.onnx"), session(folder / "text.onnx")
    for rows in (1, 2, 5):
        np.testing.assert_allclose(image(pixels[:rows].numpy()), images[:rows], atol=1e-3)
        np.testing.assert_allclose(text(ids[:rows]), texts[:rows], atol=1e-3)


def test_files_give_what_torch_gives(exported: Path, tiny_clip: Path) -> None:
    agree(exported, load(tiny_clip))


@pytest.mark.slow
def test_notes_say_how_to_feed_the_files(exported: Path, tiny_clip: Path) -> None:
    loaded = load(tiny_clip)
    notes = json.loads((exported / "compo_onnx.json").read_text())
    assert notes["image"]["preprocessing"]["resize_mode"] == "squash"
    assert notes["image"]["preprocessing"]["mean"] == [0.6, 0.5, 0.4]
    assert (notes["text"]["context_length"], notes["text"]["tokenizer"]) == (77, "tokenizer.json")
    assert notes["logit_scale"] == pytest.approx(1 / 0.07, rel=1e-5)
    assert (notes["logit_bias"], notes["fingerprint"]) == (0.0, loaded.fingerprint)
    assert set(notes["sha256"]) == {"image.onnx", "text.onnx", "tokenizer.json"}
    assert notes["sha256"]["text.onnx"] == file_hash(exported / "text.onnx")


@pytest.mark.parametrize(("clean", "held"), [("lower", True), ("canonicalize", False)])
def test_a_tokenizer_that_a_file_cannot_hold_is_named(
    tiny_clip: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    clean: str,
    held: bool,
) -> None:
    monkeypatch.setattr(onnx_export, "_write_tower", lambda *_: None)
    checkpoint = Path(shutil.copytree(tiny_clip, tmp_path / "checkpoint"))
    edit(checkpoint, "model_cfg.text_cfg", "tokenizer_kwargs", {"clean": clean})
    folder = to_onnx(checkpoint, tmp_path / "onnx")
    named = json.loads((folder / "compo_onnx.json").read_text())["text"]["tokenizer"]
    assert (folder / "tokenizer.json").is_file() == held
    assert named.startswith("tokenizer.json" if held else "open_clip.get_tokenizer('local-dir:")
    assert ("it would give other token ids: use open_clip.get_tokenizer" in caplog.text) != held


@pytest.mark.slow
def test_files_tell_no_paths_of_this_machine(exported: Path) -> None:
    for name in ("image.onnx", "text.onnx"):
        content = (exported / name).read_bytes()
        assert b"open_clip" not in content and b"File " not in content


@pytest.mark.slow
def test_other_numbers_are_refused_and_the_older_files_stay(
    tiny_clip: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "onnx"
    folder.mkdir()
    (folder / "older").touch()
    monkeypatch.setattr(torch.onnx, "export", lambda *_, **__: None)
    monkeypatch.setattr(onnx_export, "_remove_source_paths", lambda path: None)
    monkeypatch.setattr(onnx_export, "session", lambda path: lambda rows: np.float32("nan"))
    with pytest.raises(SettingsError, match=r"--onnx: image\.onnx gives other numbers"):
        to_onnx(tiny_clip, folder)
    assert [path.name for path in folder.iterdir()] == ["older"]
    assert [path.name for path in tmp_path.iterdir()] == ["onnx"]


def test_missing_packages_are_told_with_the_command(
    tiny_clip: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(onnx_export, "find_spec", lambda name: None)
    with pytest.raises(SettingsError, match=r"onnxscript.*pip install .* -e '\.\[onnx\]'"):
        to_onnx(tiny_clip, tmp_path / "onnx")


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["base", "siglip", "stretched"])
def test_other_models(tiny_siglip: Path, tmp_path: Path, kind: str) -> None:
    checkpoint = tiny_siglip if kind == "siglip" else BASE
    if kind == "stretched":
        checkpoint = export(load(ModelSettings(context_length=248)), tmp_path / "checkpoint")
    loaded, folder = load(checkpoint), to_onnx(checkpoint, tmp_path / "onnx")
    agree(folder, loaded)
    notes = json.loads((folder / "compo_onnx.json").read_text())
    assert notes["text"]["context_length"] == loaded.context_length
