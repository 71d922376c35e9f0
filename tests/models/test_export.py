"""An exported folder is the model, for open_clip alone as well."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from safetensors.torch import load_file

from compo_pipeline.core.files import DamagedFileError
from compo_pipeline.core.hashing import file_hash
from compo_pipeline.core.settings import SettingsError
from compo_pipeline.models import weights
from compo_pipeline.models.loading import LoadedModel, export, load
from compo_pipeline.models.weights import read_record

TEXTS = ["A red cube isn't left of two spheres.", "word " * 100]

# Run where compo_pipeline cannot be imported and nothing can connect.
OPEN_CLIP_ALONE = """
import sys, socket
class Hide:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == "compo_pipeline":
            raise ImportError("hidden")
sys.meta_path.insert(0, Hide())
def refuse(*args, **kwargs):
    raise OSError("no network")
socket.socket.connect = refuse
import open_clip, torch
from PIL import Image
from safetensors.torch import save_file
image, *folders, first, second = sys.argv[1:]
for folder in folders:
    model, _, transform = open_clip.create_model_and_transforms("local-dir:" + folder)
    tokens = open_clip.get_tokenizer("local-dir:" + folder)([first, second])
    model.eval()
    with torch.no_grad():
        pixels = transform(Image.open(image))
        embedded = model.encode_image(pixels[None])
        text = model.encode_text(tokens)
    found = {"pixels": pixels, "tokens": tokens, "image": embedded, "text": text}
    save_file(found, folder + ".safetensors")
assert "compo_pipeline" not in sys.modules
"""


def test_open_clip_alone_computes_the_same(
    tiny_clip: Path, tiny_siglip: Path, tmp_path: Path
) -> None:
    image = tmp_path / "image.png"
    Image.radial_gradient("L").resize((70, 40)).convert("RGB").save(image)
    models = {tmp_path / folder.name: load(folder) for folder in (tiny_clip, tiny_siglip)}
    folders = [str(export(loaded, folder)) for folder, loaded in models.items()]
    command = [sys.executable, "-P", "-c", OPEN_CLIP_ALONE, str(image), *folders, *TEXTS]
    subprocess.run(command, check=True)

    for folder, loaded in models.items():
        result = load_file(f"{folder}.safetensors")
        pixels = loaded.preprocess(Image.open(image))
        tokens = loaded.tokenize(TEXTS)
        assert torch.equal(result["pixels"], pixels)
        assert torch.equal(result["tokens"], tokens)
        with torch.no_grad():
            assert torch.equal(result["image"], loaded.model.encode_image(pixels[None]))
            assert torch.equal(result["text"], loaded.model.encode_text(tokens))


@pytest.mark.parametrize(
    ("name", "readers"),
    [(weights.WEIGHTS_FILE, (load,)), (weights.CONFIG_FILE, (load, read_record))],
)
def test_an_export_with_a_flipped_bit_is_refused(
    tiny_clip: Path, tmp_path: Path, name: str, readers: tuple[Callable[[Path], Any], ...]
) -> None:
    file = export(load(tiny_clip), tmp_path / "export") / name
    content = bytearray(file.read_bytes())
    content[-7] ^= 1
    file.write_bytes(content)
    for read in readers:
        with pytest.raises(DamagedFileError, match=f"{name} is damaged"):
            read(file.parent)


@pytest.mark.parametrize(
    ("before", "after"),
    [('"vision_cfg"', '"vision"'), ('"heads": 2', '"heads": 0'), ('"squash"', '"odd"')],
)
def test_a_configuration_that_cannot_be_built_is_one_line(
    before: str, after: str, tiny_clip: Path, tmp_path: Path
) -> None:
    """Of a folder without a record, as open_clip writes it."""
    folder = export(load(tiny_clip), tmp_path / "export")
    (folder / weights.RECORD_FILE).unlink()
    config = (folder / weights.CONFIG_FILE).read_text()
    assert before in config
    (folder / weights.CONFIG_FILE).write_text(config.replace(before, after))
    with pytest.raises(SettingsError) as caught:
        load(folder)
    assert "\n" not in caught.value.message and str(folder.name) in caught.value.message


def test_a_record_that_is_no_object_is_one_line(tmp_path: Path) -> None:
    file = tmp_path / weights.RECORD_FILE
    for broken in (b'{"name": ', b'{"name": "\xff"}', b"[]"):
        file.write_bytes(broken)
        with pytest.raises(SettingsError, match=r"compo\.json"):
            read_record(tmp_path)


def test_record_tells_the_model_as_written(tiny_clip: Path, tmp_path: Path) -> None:
    loaded = load(tiny_clip)
    before = loaded.fingerprint
    with torch.no_grad():
        loaded.model.text_projection.add_(1e-3)
    metadata = {"method": "clic", "base_fingerprint": before, "fingerprint": "not mine"}

    folder = export(loaded, tmp_path / "export", precision="fp16", metadata=metadata)

    record, again = read_record(folder), load(folder)
    assert (record["method"], record["base_fingerprint"]) == ("clic", before)
    assert record["fingerprint"] == again.fingerprint != before
    assert record["precision"] == "fp16"
    weights = load_file(folder / "open_clip_model.safetensors")
    assert {tensor.dtype for tensor in weights.values()} == {torch.float16}
    assert again.name == loaded.name


def test_equal_models_are_equal_files(tiny_clip: Path, tmp_path: Path) -> None:
    loaded = load(tiny_clip)
    written = {file_hash(weights.find(export(loaded, tmp_path / str(n)))) for n in range(8)}
    assert len(written) == 1


def test_interrupted_export_leaves_the_older_one(
    tiny_clip: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded: LoadedModel = load(tiny_clip)
    folder = export(loaded, tmp_path / "export", metadata={"method": "older"})

    def full(state: object, path: Path, metadata: object) -> None:
        path.write_bytes(b"half")
        raise OSError("no space left on device")

    monkeypatch.setattr("compo_pipeline.models.weights.save_file", full)
    with pytest.raises(OSError, match="no space left"):
        export(loaded, folder, metadata={"method": "newer"})
    assert read_record(folder)["method"] == "older"
    assert load(folder).fingerprint == loaded.fingerprint
    assert [path.name for path in tmp_path.iterdir()] == ["export"]


@pytest.mark.parametrize(("value", "precision"), [(float("nan"), "fp32"), (1e6, "fp16")])
def test_weights_that_do_not_fit_are_refused(
    tiny_clip: Path, tmp_path: Path, value: float, precision: str
) -> None:
    loaded = load(tiny_clip)
    with torch.no_grad():
        loaded.model.text_projection[0, 0] = value
    with pytest.raises(ValueError, match=f"text_projection is not finite in {precision}"):
        export(loaded, tmp_path / "export", precision=precision)  # type: ignore[arg-type]
    assert not (tmp_path / "export").exists()


def test_shared_tensors_are_written_apart(tiny_clip: Path, tmp_path: Path) -> None:
    loaded = load(tiny_clip)
    norm = loaded.model.ln_final
    norm.bias = norm.weight
    folder = export(loaded, tmp_path / "export")
    weights = load_file(folder / "open_clip_model.safetensors")
    assert torch.equal(weights["ln_final.bias"], weights["ln_final.weight"])
