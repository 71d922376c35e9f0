"""Published checkpoints, built here in the layouts of their files from a tiny CLIP."""

import argparse
import json
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch.nn.functional import normalize

from compo_pipeline.core.settings import SettingsError
from compo_pipeline.data.images import style as vgg
from compo_pipeline.models import weights
from compo_pipeline.models.encoding import encode_images, encode_texts
from compo_pipeline.models.loading import LoadedModel

TEXTS = ["a red cube", "a blue sphere left of a cat"]
State = dict[str, torch.Tensor]
Imported = Callable[..., LoadedModel]

pytestmark = pytest.mark.usefixtures("architectures")


@pytest.fixture
def state(tiny_clip: Path) -> State:
    return load_file(tiny_clip / "open_clip_model.safetensors")


@pytest.fixture
def written(tmp_path: Path) -> Callable[[Any], Path]:
    """Writes a pickled checkpoint."""

    def write(content: Any) -> Path:
        torch.save(content, tmp_path / "weights.pt")
        return tmp_path / "weights.pt"

    return write


@pytest.fixture
def read(imported_model: Imported) -> Imported:
    """Imports a file as a small architecture, and loads that."""

    def run(path: Path, name: str = "Tiny-16", **more: Any) -> LoadedModel:
        return imported_model(name, **({"weights": str(path), "quick_gelu": False} | more))

    return run


def read_vgg(path: Path) -> Any:
    return vgg.load(vgg.encoder(), path, "key")


@pytest.mark.parametrize("through", [weights.read, read_vgg])
@pytest.mark.parametrize("member", ["archive/data.pkl", "archive/data/0", "archive/more"])
def test_a_checkpoint_that_inflates_is_refused_before_it_is_read(
    through: Callable[[Path], Any],
    member: str,
    written: Callable[[Any], Path],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    path = written({"a": torch.zeros(2)})
    with zipfile.ZipFile(path) as archive:
        parts = {f"archive/{n.partition('/')[2]}": archive.read(n) for n in archive.namelist()}
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in (parts | {member: parts.get(member, b"") + bytes(2**25)}).items():
            archive.writestr(name, content)
    assert path.stat().st_size < 2**17
    monkeypatch.setattr(torch, "load", lambda *_, **__: pytest.fail("it was read"))
    with pytest.raises(SettingsError, match=r"weights\.pt.*inflates to 335"):
        through(path)


@pytest.mark.parametrize(
    ("key", "prefix"),
    [
        (None, "module."),
        ("state_dict", "module.model."),
        ("model_state_dict", ""),
        ("model", "_orig_mod."),
    ],
)
def test_tensors_are_found_under_any_key_and_wrapper(
    state: State, written: Callable[[Any], Path], read: Imported, key: str | None, prefix: str
) -> None:
    named = {prefix + name: tensor for name, tensor in state.items()}
    training = {"epoch": 3, "args": argparse.Namespace(lr=1e-6), "best": np.float64(0.4)}
    path = written(named if key is None else {**training, key: named})
    found = read(path).model.state_dict()
    assert all(torch.equal(found[name], tensor) for name, tensor in state.items())


def test_classes_that_are_not_allowed_are_named(
    written: Callable[[Any], Path], read: Imported
) -> None:
    path = written({"state_dict": {}, "config": Path("a"), "args": argparse.Namespace()})
    with pytest.raises(SettingsError, match=r"it holds pathlib\.\S*PosixPath\)"):
        read(path)


RANK = 2
FACTORS = {
    # A [r k, in k] and B [out k, r k] of the patches' convolution: k = 16, 3 to 16 channels.
    "visual.conv1.weight": ("visual.conv1.lora_", (RANK * 16, 3 * 16), (16 * 16, RANK * 16)),
    "visual.transformer.resblocks.0.attn.in_proj_weight": (
        *("visual.transformer.resblocks.0.attn.in_proj_weight_lora_", (RANK, 16), (48, RANK)),
    ),
    "transformer.resblocks.0.attn.out_proj.weight": (
        *("transformer.resblocks.0.attn.out_proj.lora_", (RANK, 16), (16, RANK)),
    ),
    "transformer.resblocks.0.mlp.c_fc.weight": (
        *("transformer.resblocks.0.mlp.c_fc.lora_", (RANK, 16), (64, RANK)),
    ),
}


def with_lora(state: State) -> tuple[State, State]:
    """A state with factors beside its weights, and the weights that they make."""
    stored, merged = dict(state), dict(state)
    for weight, (stem, shape_a, shape_b) in FACTORS.items():
        a, b = torch.randn(shape_a), torch.randn(shape_b)
        stored |= {f"{stem}A": a, f"{stem}B": b}
        merged[weight] = state[weight] + (b @ a).reshape(state[weight].shape) / RANK
    return stored, merged


def test_lora_is_merged_at_one_over_its_rank(
    state: State, written: Callable[[Any], Path], read: Imported
) -> None:
    stored, merged = with_lora(state)
    path = written({"state_dict": {f"module.{name}": each for name, each in stored.items()}})
    loaded = read(path, "Tiny-16-quickgelu", layout="dac", quick_gelu=None)
    found = loaded.model.state_dict()
    assert found.keys() >= merged.keys()
    for name, tensor in merged.items():
        torch.testing.assert_close(found[name], tensor)


def test_a_layout_states_the_activation(
    state: State, written: Callable[[Any], Path], read: Imported
) -> None:
    path = written({"state_dict": state})
    with pytest.raises(SettingsError, match="set SOURCE to 'Tiny-16-quickgelu'"):
        read(path, layout="negclip", quick_gelu=None)
    assert read(path, "Tiny-16-quickgelu", layout="negclip", quick_gelu=None).quick_gelu


def test_clove_is_mixed_with_its_base_at_64_tokens(
    state: State, written: Callable[[Any], Path], read: Imported, tmp_path: Path
) -> None:
    other = {name: tensor + 1 for name, tensor in state.items()}
    path = written({"epoch": 1, "state_dict": {f"module.{k}": v for k, v in other.items()}})
    save_file(state, tmp_path / "base.safetensors")
    loaded = read(
        *(path, "Tiny-16-quickgelu"),
        layout="clove",
        quick_gelu=None,
        mixed_with=str(tmp_path / "base.safetensors"),
    )
    assert (loaded.context_length, loaded.tokenize(TEXTS).shape[1]) == (64, 64)
    for name, tensor in loaded.model.state_dict().items():
        expected = 0.4 * state[name] + 0.6 * other[name]
        torch.testing.assert_close(tensor, expected[: len(tensor)] if tensor.ndim else expected)


def test_towers_in_folders_of_their_own_give_what_transformers_gives(
    tmp_path: Path, imported_model: Imported
) -> None:
    transformers = pytest.importorskip("transformers")
    shape: dict[str, Any] = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2}
    shape |= {"num_attention_heads": 2, "projection_dim": 8, "hidden_act": "quick_gelu"}
    vision = transformers.CLIPVisionConfig(**shape, image_size=32, patch_size=16)
    text = transformers.CLIPTextConfig(**shape, eos_token_id=49407)
    torch.manual_seed(0)
    models = {
        "vision-encoder": transformers.CLIPVisionModelWithProjection(vision),
        "text-encoder": transformers.CLIPTextModelWithProjection(text),
    }
    for part, model in models.items():
        folder = tmp_path / part
        folder.mkdir()
        named = {f"model.{name}": tensor for name, tensor in model.state_dict().items()}
        save_file(
            {name: tensor.contiguous() for name, tensor in named.items()},
            folder / "model.safetensors",
        )
        code = {"auto_map": {"AutoModel": "utils.CLIPTextEncoderOnly"}, "model_type": "own"}
        (folder / "config.json").write_text(json.dumps({**model.config.to_dict(), **code}))
    loaded = imported_model(tmp_path)
    ids = loaded.tokenize(TEXTS)
    pixels = torch.randn(2, 3, 32, 32)
    with torch.no_grad():
        image = models["vision-encoder"].eval()(pixel_values=pixels).image_embeds
        texts = models["text-encoder"].eval()(input_ids=ids).text_embeds
        torch.testing.assert_close(encode_images(loaded.model, pixels), normalize(image, dim=-1))
        torch.testing.assert_close(encode_texts(loaded.model, ids), normalize(texts, dim=-1))
    assert loaded.context_length == 64
