"""SigLIP's towers, from a folder to embeddings, to an exported folder and back."""

import shutil
import socket
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from compo_pipeline.models.dense import encode_images_densely
from compo_pipeline.models.encoding import encode_images, encode_texts
from compo_pipeline.models.loading import LoadedModel, export, load

TEXTS = ["A red cube, left of the sphere!", "blue", "the dog"]


@pytest.fixture(autouse=True)
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: object, **kwargs: object) -> None:
        raise AssertionError("a connection was tried")

    monkeypatch.setattr(socket.socket, "connect", refuse)


@pytest.fixture
def drawn(tiny_siglip: Path) -> LoadedModel:
    """The model with nothing at its usual start: norms, biases, scale and bias are drawn too."""
    loaded = load(tiny_siglip)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in loaded.model.parameters():
            if parameter.ndim < 2:
                parameter.add_(0.2 * torch.randn(parameter.shape, generator=generator))
    return loaded


def outputs(loaded: LoadedModel) -> dict[str, torch.Tensor]:
    """Token ids, and everything that the towers give for them and for two images."""
    noise = np.random.default_rng(0).integers(0, 256, (2, 48, 90, 3), dtype=np.uint8)
    pixels = torch.stack([loaded.preprocess(Image.fromarray(image)) for image in noise])
    tokens = loaded.tokenize(TEXTS)
    with torch.no_grad():
        dense = encode_images_densely(loaded.model, pixels, loaded.name)
        return {
            "tokens": tokens,
            "pixels": pixels,
            "images": encode_images(loaded.model, pixels),
            "pooled": dense.pooled,
            "patches": dense.patches,
            "texts": encode_texts(loaded.model, tokens),
        }


def test_towers_give_what_open_clip_gives(drawn: LoadedModel) -> None:
    found = outputs(drawn)
    with torch.no_grad():
        images = drawn.model.encode_image(found["pixels"], normalize=True)
        texts = drawn.model.encode_text(found["tokens"], normalize=True)
    torch.testing.assert_close(found["images"], images)
    torch.testing.assert_close(found["pooled"], images)
    torch.testing.assert_close(found["texts"], texts)
    assert found["patches"].shape == (2, 100, 96)


def test_an_export_is_the_same_model_without_a_hub(drawn: LoadedModel, tmp_path: Path) -> None:
    before = outputs(drawn)
    again = load(export(drawn, tmp_path / "export"))
    after = outputs(again)
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert torch.equal(again.model.logit_bias, drawn.model.logit_bias)
    assert torch.equal(again.model.logit_scale, drawn.model.logit_scale)
    assert again.model.logit_bias.item() != -10.0
    assert again.config == drawn.config
    assert load(export(again, tmp_path / "second")).fingerprint == again.fingerprint


def test_a_tokenizer_of_ones_own_travels_with_the_export(
    tiny_siglip: Path,
    siglip_tokenizer: Path,
    tmp_path: Path,
    imported_model: Callable[..., LoadedModel],
) -> None:
    """The model's folder came without tokenizer."""
    folder = tmp_path / "bare"
    folder.mkdir()
    for name in ("open_clip_config.json", "open_clip_model.safetensors"):
        shutil.copy(tiny_siglip / name, folder)
    shutil.copytree(siglip_tokenizer, tmp_path / "tokenizer")
    loaded = imported_model(folder, tokenizer=str(tmp_path / "tokenizer"))
    assert torch.equal(loaded.tokenize(TEXTS), load(tiny_siglip).tokenize(TEXTS))

    exported = export(loaded, tmp_path / "export")
    shutil.rmtree(tmp_path / "tokenizer")

    assert torch.equal(load(exported).tokenize(TEXTS), loaded.tokenize(TEXTS))
    assert load(exported).config == loaded.config
