"""Published checkpoints, built here in the layouts of their files from a tiny CLIP."""

import argparse
import json
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import open_clip
import pytest
import torch
from open_clip.model import CLIP
from safetensors.torch import load_file, save_file
from tests.models.conftest import TOWER, write_chinese_clip
from torch.nn.functional import normalize

from compo_pipeline.core.settings import SettingsError
from compo_pipeline.data.images import style as vgg
from compo_pipeline.models import weights
from compo_pipeline.models.encoding import encode_images, encode_texts
from compo_pipeline.models.loading import LoadedModel, export, load

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


def gnm_clip(state: State) -> tuple[Any, State]:
    """`torch.save` in training/train.py of OpenAI's model, which is in half precision on a GPU."""
    half = {name: tensor.half() for name, tensor in state.items()}
    adam = {"state": {0: {"step": torch.tensor(9.0), "exp_avg": torch.zeros(2).half()}}}
    saved = {"epoch": 9, "model_state_dict": half, "optimizer_state_dict": adam}
    return {**saved, "loss": torch.zeros((), requires_grad=True)}, half


def sparcl(state: State) -> tuple[Any, State]:
    """`torch.save` in finetuning/src/core.py of a model with LoRA, trained with `--sigmoid`."""
    stored, merged = with_lora(state | {"logit_bias": torch.tensor(-9.5)})
    settings = {"base_lr": 0.01, "betas": (0.9, 0.98), "eps": 1e-6, "weight_decay": 0.5}
    return {"model": stored, "epoch": 2, "global_step": 3000, **settings}, merged


def degla(state: State) -> tuple[Any, State]:
    """`torch.save` in src/main.py of a model under DistributedDataParallel with mixed precision."""
    named = {f"module.{name}": tensor for name, tensor in state.items()}
    scaler = {"scale": 65536.0, "growth_factor": 2.0, "_growth_tracker": 12}
    saved = {"epoch": 5, "name": "DeGLA", "state_dict": named}
    return {**saved, "optimizer": {"param_groups": [{"lr": 1e-6}]}, "scaler": scaler}, state


def macco(state: State) -> tuple[Any, State]:
    """`torch.save` in src/training/main_train_macco_clip.py: the tower pair without predictors."""
    return {"epoch": 5, "name": "train_macco_clip_coco", "state_dict": state}, state


AUTHORS = [gnm_clip, sparcl, degla, macco]


def logits(model: Any, pixels: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    """Logits of images and texts by open_clip's own forward pass."""
    with torch.no_grad():
        images, texts, scale, *bias = model(pixels, ids)
        found: torch.Tensor = scale * images @ texts.T + sum(bias)
        return found


@pytest.mark.parametrize("saved", AUTHORS)
def test_a_file_of_its_authors_gives_the_logits_of_their_model(
    state: State, written: Callable[[Any], Path], read: Imported, saved: Callable[[State], Any]
) -> None:
    content, expected = saved(state)
    loaded = read(written(content), "Tiny-16-quickgelu", layout=saved.__name__, quick_gelu=None)
    config = open_clip.get_model_config("Tiny-16-quickgelu")
    bias = {"init_logit_bias": 0.0} if "logit_bias" in expected else {}
    source = CLIP(**config, **bias).eval()
    source.load_state_dict(expected)
    pixels, ids = torch.randn(3, 3, 32, 32), open_clip.tokenize(TEXTS)
    assert torch.equal(loaded.tokenize(TEXTS), ids)
    torch.testing.assert_close(
        logits(loaded.model, pixels, ids), logits(source, pixels, ids), atol=1e-5, rtol=0
    )


@pytest.mark.parametrize("saved", AUTHORS)
def test_missing_and_surplus_tensors_are_named(
    state: State, written: Callable[[Any], Path], read: Imported, saved: Callable[[State], Any]
) -> None:
    kept = {name: each for name, each in state.items() if "ln_" not in name}
    content, _ = saved({**kept, "predictor.weight": torch.zeros(2)})
    with pytest.raises(SettingsError) as refusal:
        read(written(content), "Tiny-16-quickgelu", layout=saved.__name__, quick_gelu=None)
    told = refusal.value.message
    assert "ln_final.bias" in told and "predictor.weight" in told and "\n" not in told


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


CHINESE = ["一只红色的猫，在“桌子”上！", "ｒｅｄ cats & 两个球 &amp; 一", "", "猫" * 80]
ENGLISH = ["red cube", "a red 猫 a cube", "", "cube " * 90]


def metaclip_2(folder: Path) -> Any:
    """MetaCLIP 2 with a tokenizer whose end is not the largest id of a text."""
    import transformers as hf
    from tokenizers import Tokenizer, models, pre_tokenizers, processors

    words = ["<s>", "<pad>", "</s>", "<unk>", "red", "cube", "猫", "a"]
    inner = Tokenizer(models.WordLevel({each: k for k, each in enumerate(words)}, "<unk>"))
    inner.pre_tokenizer = pre_tokenizers.Whitespace()
    ends = [("<s>", 0), ("</s>", 2)]
    inner.post_processor = processors.TemplateProcessing("<s> $A </s>", special_tokens=ends)
    roles = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>", "unk_token": "<unk>"}
    hf.PreTrainedTokenizerFast(tokenizer_object=inner, **roles).save_pretrained(folder)
    text = {**TOWER, "vocab_size": 8, "max_position_embeddings": 12, "eos_token_id": 2}
    config = hf.MetaClip2Config(text_config=text, vision_config=TOWER, projection_dim=8)
    return hf.MetaClip2Model(config)


def read_clip(folder: Path) -> Any:
    """READ-CLIP: a CLIPModel without its processor, which its authors take from OpenAI's."""
    import transformers as hf

    text = {**TOWER, "eos_token_id": 2}
    config = hf.CLIPConfig(text_config=text, vision_config=TOWER, projection_dim=8)
    return hf.CLIPModel(config)


@pytest.mark.parametrize(
    ("made", "texts", "length"),
    [(read_clip, ENGLISH, 77), (metaclip_2, ENGLISH, 12), (write_chinese_clip, CHINESE, 52)],
)
def test_a_folder_of_transformers_gives_its_models_logits(
    tmp_path: Path,
    imported_model: Imported,
    made: Callable[..., Any],
    texts: list[str],
    length: int,
) -> None:
    hf = pytest.importorskip("transformers")
    (folder := tmp_path / "source").mkdir()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = made(folder).eval()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(0.2 * torch.randn_like(parameter))
    model.save_pretrained(folder)
    loaded = imported_model(folder)
    if made is read_clip:
        inputs = {"input_ids": open_clip.tokenize(texts)}
    else:
        tokenizer = hf.AutoTokenizer.from_pretrained(folder)
        assert made is metaclip_2 or type(tokenizer) is hf.BertTokenizer
        given = {"padding": "max_length", "max_length": length, "truncation": True}
        inputs = dict(tokenizer(texts, **given, return_tensors="pt"))
    ids = loaded.tokenize(texts)
    assert torch.equal(ids, inputs["input_ids"]) and loaded.context_length == length
    pixels = torch.randn(3, 3, 32, 32)
    with torch.no_grad():
        expected = model(pixel_values=pixels, **inputs).logits_per_image
        scale = loaded.model.logit_scale.exp()
        found = scale * encode_images(loaded.model, pixels) @ encode_texts(loaded.model, ids).T
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=0)
    torch.testing.assert_close(logits(loaded.model, pixels, ids), expected, atol=1e-5, rtol=0)
    again = load(export(replace(loaded, name="again"), tmp_path / "moved"))
    assert torch.equal(encode_texts(again.model, ids), encode_texts(loaded.model, ids))


@pytest.mark.parametrize("name", ["k_proj.weight", "text_projection.weight", "query.bias"])
def test_a_tensor_that_a_folder_of_transformers_lacks_is_named(
    tmp_path: Path, imported_model: Imported, name: str
) -> None:
    pytest.importorskip("transformers")
    write_chinese_clip(tmp_path).save_pretrained(tmp_path)
    state = load_file(tmp_path / "model.safetensors")
    kept = {each: tensor for each, tensor in state.items() if not each.endswith(name)}
    save_file({**kept, "head.extra": torch.zeros(2)}, tmp_path / "model.safetensors")
    with pytest.raises(SettingsError, match=rf"model\.safetensors.*{name}") as refusal:
        imported_model(tmp_path)
    assert "\n" not in refusal.value.message
