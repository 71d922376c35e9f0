"""Small random models of every kind of tower that open_clip builds."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import open_clip
import pytest
import torch
from open_clip.model import CLIP, CustomTextCLIP
from open_clip.tokenizer import SimpleTokenizer
from torch import Tensor

from compo_pipeline.models.importing import ImportRequest, import_model
from compo_pipeline.models.loading import LoadedModel, load
from compo_pipeline.models.weights import CONFIG_FILE

VIT = {"image_size": 32, "layers": 2, "width": 16, "head_width": 8, "patch_size": 8}
TEXT = {"context_length": 77, "vocab_size": 49408, "width": 16, "heads": 2, "layers": 2}
SIGLIP_TEXT = {
    **TEXT,
    "context_length": 12,
    "vocab_size": 50,
    "no_causal_mask": True,
    "proj_bias": True,
    "pool_type": "last",
}
TIMM = {"timm_model_pretrained": False, "image_size": 160}

VISIONS = {
    "tok": VIT,
    "avg": {**VIT, "pool_type": "avg"},
    "clipa": {**VIT, "pool_type": "avg", "final_ln_after_pool": True, "no_ln_pre": True},
    "timm-avg": {**TIMM, "timm_model_name": "test_vit", "timm_pool": "avg", "timm_proj": "linear"},
    "timm-norm": {**TIMM, "timm_model_name": "test_vit2", "timm_pool": "avg", "timm_proj": None},
    "timm-token": {**TIMM, "timm_model_name": "test_vit", "timm_pool": "token", "timm_proj": None},
    "timm-map": {**TIMM, "timm_model_name": "test_vit3", "timm_pool": "map", "timm_proj": "none"},
    "xcit": {
        **TIMM,
        "timm_model_name": "xcit_nano_12_p8_224",
        "timm_pool": "avg",
        "timm_proj": "linear",
        "image_size": 32,
    },
}
VISIONS["timm-convolutional"] = {**VISIONS["timm-avg"], "timm_model_name": "test_convnext"}
WIDTHS = {"timm-map": 96}

# Both towers of a model of transformers.
TOWER = {
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "hidden_act": "quick_gelu",
    "image_size": 32,
    "patch_size": 16,
}

Build = Callable[..., torch.nn.Module]
Imported = Callable[..., LoadedModel]


def edit(folder: Path, part: str, key: str, value: Any) -> None:
    """Set a key in a part, named with dots, of the configuration in a model's folder."""
    config = json.loads((folder / CONFIG_FILE).read_text())
    values = config
    for name in part.split("."):
        values = values.setdefault(name, {})
    values[key] = value
    (folder / CONFIG_FILE).write_text(json.dumps(config))


def write_chinese_clip(folder: Path) -> Any:
    """A random Chinese-CLIP of transformers; writes its tokenizer, with Chinese punctuation."""
    import transformers as hf

    letters = "一只红色的猫在桌子上两个球，！“”,!&;"
    words = [
        "[PAD]",
        "[UNK]",
        "[CLS]",
        "[SEP]",
        "[MASK]",
        *letters,
        "red",
        "cat",
        "##s",
        '"',
        "amp",
    ]
    (folder / "vocab.txt").write_text("\n".join(words))
    hf.BertTokenizer.from_pretrained(folder).save_pretrained(folder)
    text = {**TOWER, "hidden_act": "gelu", "vocab_size": 40}
    config = hf.ChineseCLIPConfig(text_config=text, vision_config=TOWER, projection_dim=8)
    return hf.ChineseCLIPModel(config)


@pytest.fixture
def imported_model(tmp_path: Path) -> Imported:
    """Imports a model into a new folder, and loads that."""
    folders = (tmp_path / f"imported-{number}" for number in count())

    def run(source: str | Path, **options: Any) -> LoadedModel:
        folder = next(folders)
        import_model(ImportRequest(str(source), **options), folder)
        return load(folder)

    return run


@pytest.fixture(scope="session")
def architectures(tiny_clip: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    """The tiny architecture under names of its own, as open_clip knows its many."""
    folder = tmp_path_factory.mktemp("architectures")
    config = json.loads((tiny_clip / CONFIG_FILE).read_text())["model_cfg"]
    (folder / "Tiny-16.json").write_text(json.dumps(config))
    (folder / "Tiny-16-quickgelu.json").write_text(json.dumps({**config, "quick_gelu": True}))
    open_clip.add_model_config(folder)


@pytest.fixture(scope="session")
def build() -> Build:
    """Maker of random models: kind of image tower, of text tower ("clip", "custom", "siglip").

    Norms, biases and scales are drawn as well: at their usual ones and zeros, leaving one out or
    applying it twice would change nothing.
    """

    def make(vision: str, text: str = "clip", **changes: object) -> torch.nn.Module:
        kind = CLIP if text == "clip" else CustomTextCLIP
        config = {
            "embed_dim": WIDTHS.get(vision, 24),
            "vision_cfg": VISIONS[vision],
            "text_cfg": {**(SIGLIP_TEXT if text == "siglip" else TEXT), **changes},
        }
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            model: torch.nn.Module = kind(**config)
            with torch.no_grad():
                for parameter in model.parameters():
                    if parameter.ndim == 1:
                        parameter.add_(0.2 * torch.randn_like(parameter))
        return model.eval()

    return make


@pytest.fixture(scope="session")
def pixels() -> Callable[[torch.nn.Module], Tensor]:
    """Three random images of a model's size."""

    def draw(model: torch.nn.Module) -> Tensor:
        height, width = model.visual.image_size
        return torch.randn(3, 3, height, width, generator=torch.Generator().manual_seed(1))

    return draw


@pytest.fixture(scope="session")
def tokens() -> Tensor:
    """Texts of several lengths; "!" within a word is token 0, which is padding's number too."""
    texts = ["a red cat", "!?!?!? !a", "", "two dogs left of a very small blue cup"]
    ids: Tensor = SimpleTokenizer()(texts)
    return ids
