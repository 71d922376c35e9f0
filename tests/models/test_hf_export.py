"""A folder for transformers computes what open_clip does, from images and texts to logits."""

import json
import shutil
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file
from tests.models import conftest
from tests.models.conftest import VIT

from compo_pipeline.core.settings import SettingsError
from compo_pipeline.models.encoding import encode_images, encode_texts
from compo_pipeline.models.hf_export import to_hugging_face
from compo_pipeline.models.hf_preprocessing import fast_tokenizer
from compo_pipeline.models.loading import LoadedModel, export, load
from compo_pipeline.models.settings import ModelSettings
from compo_pipeline.models.weights import CONFIG_FILE, PROBES
from compo_scenes import scenes_base

pytest.importorskip("transformers")

BASE = scenes_base()
TEXTS = ["A red cube isn’t left of “two” spheres!", "", "word " * 300, PROBES[1]]
TEXT = {**conftest.TEXT, "context_length": 24}
TIMM = {**conftest.TIMM, "timm_model_name": "test_vit"}
SEES_ALL = {"no_causal_mask": True, "pool_type": "last", "proj_bias": True}

Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Writer of a random model's folder; norms, biases and scales are drawn as well."""
    from open_clip.model import CLIP, CustomTextCLIP

    def folder(
        vision: dict[str, Any],
        text: dict[str, Any],
        preprocess: dict[str, Any] | None = None,
        **more: Any,
    ) -> Path:
        config = {"embed_dim": 24, "vision_cfg": vision, "text_cfg": text, **more}
        kind = CustomTextCLIP if config.pop("custom_text", False) else CLIP
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            built = kind(**deepcopy(config))
            with torch.no_grad():
                for name, parameter in built.named_parameters():
                    if parameter.ndim < 2 and "logit" not in name:
                        parameter.add_(0.2 * torch.randn_like(parameter))
        made = tmp_path / "checkpoint"
        made.mkdir()
        header = {"format": "pt", "quick_gelu": str(more.get("quick_gelu", False)).lower()}
        state = {name: tensor.contiguous() for name, tensor in built.state_dict().items()}
        save_file(state, made / "open_clip_model.safetensors", metadata=header)
        written = {"model_cfg": {**config, **more}, "preprocess_cfg": preprocess or {}}
        (made / "open_clip_config.json").write_text(json.dumps(written))
        return made

    return folder


def example_images(size: int) -> list[Image.Image]:
    """Wide, high and square, of shapes at which open_clip and transformers round alike."""
    shapes = [(3 * size, 6 * size), (2 * size, size), (size, size)]
    noise = np.random.default_rng(0).integers(0, 256, (40, 40, 3), dtype=np.uint8)
    return [Image.fromarray(noise).resize(shape) for shape in shapes]


def agree(folder: Path, loaded: LoadedModel) -> Any:
    """Check logits, embeddings and pixels of a written folder; the model as transformers reads it.

    sentence-transformers gives the same embeddings.

    The processor that resizes with Pillow is taken: it gives the same pixels, not similar ones.
    """
    from sentence_transformers import SentenceTransformer
    from transformers import AutoModel, AutoProcessor

    model = AutoModel.from_pretrained(folder).eval()
    processor = AutoProcessor.from_pretrained(folder, backend="pil")
    shown = example_images(loaded.image_size)
    inputs = processor(
        text=TEXTS, images=shown, padding="max_length", truncation=True, return_tensors="pt"
    )
    pixels = torch.stack([loaded.preprocess(image) for image in shown])
    torch.testing.assert_close(inputs["pixel_values"], pixels, atol=1e-5, rtol=0)
    with torch.no_grad():
        found = model(**inputs)
        encoder: Any = loaded.model
        images = encoder.encode_image(pixels, normalize=True)
        texts = encoder.encode_text(loaded.tokenize(TEXTS), normalize=True)
        logits, _ = encoder.get_logits(pixels, loaded.tokenize(TEXTS))
    near = {"atol": 1e-4, "rtol": 0.0}
    torch.testing.assert_close(found.image_embeds, images, **near)
    torch.testing.assert_close(found.text_embeds, texts, **near)
    bias = getattr(model.config, "logit_bias", 0.0)
    scale = encoder.logit_scale.exp()
    torch.testing.assert_close((found.logits_per_image + bias) / scale, logits / scale, **near)
    read = SentenceTransformer(str(folder), device="cpu", local_files_only=True)
    np.testing.assert_allclose(read.encode(TEXTS), texts.numpy(), atol=1e-6)
    np.testing.assert_allclose(read.encode(shown), images.numpy(), atol=1e-6)
    return model


NARROW = {**VIT, "norm_kwargs": {"eps": 1e-3}, "mlp_ratio": 2.0}
CLIPS = {
    "gelu": (VIT, TEXT, {"resize_mode": "squash"}, {}),
    "quick_gelu": (VIT, TEXT, {"mean": [0.6, 0.5, 0.4]}, {"quick_gelu": True}),
    "other numbers": (NARROW, TEXT, {"interpolation": "bilinear"}, {"init_logit_bias": -7.0}),
    "first eos": (VIT, {**TEXT, "pool_type": "eos", "eos_id": 49407}, {}, {"custom_text": True}),
    "longest": (VIT, TEXT, {"resize_mode": "longest"}, {}),
}


@pytest.mark.parametrize("kind", CLIPS)
def test_clips_become_clip_models(write: Write, tmp_path: Path, kind: str) -> None:
    vision, text, preprocess, more = CLIPS[kind]
    checkpoint = write(vision, text, preprocess, **more)
    model = agree(to_hugging_face(checkpoint, tmp_path / "hf"), load(checkpoint))
    assert type(model).__name__ == "CLIPModel"


def test_stretched_models_have_their_248_positions(tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    stretched = export(load(ModelSettings(context_length=248)), tmp_path / "checkpoint")
    model = agree(to_hugging_face(stretched, tmp_path / "hf"), load(stretched))
    assert model.config.text_config.max_position_embeddings == 248
    assert AutoTokenizer.from_pretrained(tmp_path / "hf").model_max_length == 248


@pytest.fixture
def small_siglip(write: Write, siglip_tokenizer: Path, siglip_trunk: dict[str, Any]) -> Path:
    """A model built as SigLIP is."""
    text = {**TEXT, **SEES_ALL, "vocab_size": 64, "hf_tokenizer_name": "x"}
    text |= {"norm_kwargs": {"eps": 1e-6}, "tokenizer_kwargs": {"clean": "canonicalize"}}
    more = {"custom_text": True, "init_logit_bias": -10.0}
    checkpoint = write(siglip_trunk, text, {"resize_mode": "squash"}, **more)
    return Path(shutil.copytree(siglip_tokenizer, checkpoint, dirs_exist_ok=True))


@pytest.fixture
def siglip_trunk(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Vision settings of a trunk built as timm builds SigLIP's, in small."""
    import timm
    from timm.models.vision_transformer import VisionTransformer

    def create(name: str, **_: Any) -> torch.nn.Module:
        assert name == "siglip_in_small"
        shape = {"img_size": 32, "patch_size": 8, "embed_dim": 24, "depth": 2, "num_heads": 2}
        whole = {"class_token": False, "global_pool": "map", "num_classes": 0}
        return VisionTransformer(**shape, **whole, act_layer="gelu_tanh")

    monkeypatch.setattr(timm, "create_model", create)
    settings = {"timm_model_name": "siglip_in_small", "image_size": 32}
    return {**settings, "timm_pool": "map", "timm_proj": "none"}


def test_a_siglip_becomes_one_of_transformers_and_is_imported_again(
    small_siglip: Path,
    imported_model: Callable[..., LoadedModel],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    loaded, folder = load(small_siglip), to_hugging_face(small_siglip, tmp_path / "hf")
    model = agree(folder, loaded)
    assert type(model).__name__ == "SiglipModel" and model.logit_bias.item() == -10.0
    config = json.loads((small_siglip / CONFIG_FILE).read_text())["model_cfg"]
    monkeypatch.setattr("open_clip.list_models", lambda: ["ViT-B-32", "SigLIP in small"])
    monkeypatch.setattr("open_clip.get_model_config", lambda name: deepcopy(config))
    same(loaded, imported_model(folder))


def same(first: LoadedModel, second: LoadedModel) -> None:
    """Two models have the same weights, token ids and pixels."""
    assert torch.equal(first.tokenize(list(PROBES)), second.tokenize(list(PROBES)))
    for image in example_images(first.image_size):
        assert torch.equal(first.preprocess(image), second.preprocess(image))
    states = first.model.state_dict(), second.model.state_dict()
    assert states[0].keys() == states[1].keys()
    for name, tensor in states[0].items():
        assert torch.equal(tensor, states[1][name]), name
    assert first.quick_gelu == second.quick_gelu


def test_a_clip_of_other_numbers_is_imported_again(
    write: Write, imported_model: Callable[..., LoadedModel], tmp_path: Path
) -> None:
    """Of CLIPS's: GELU by tanh, norms of another epsilon, texts of 80 tokens."""
    own = {"act_kwargs": {"approximate": "tanh"}, "norm_kwargs": {"eps": 1e-3}}
    checkpoint = write({**VIT, **own}, {**TEXT, **own, "context_length": 80})
    first, second = load(checkpoint), imported_model(to_hugging_face(checkpoint, tmp_path / "hf"))
    same(first, second)
    pixels = torch.randn(1, 3, 32, 32)
    assert torch.equal(encode_images(first.model, pixels), encode_images(second.model, pixels))
    tokens = first.tokenize(TEXTS)
    assert torch.equal(encode_texts(first.model, tokens), encode_texts(second.model, tokens))


def test_siglips_text_tower_needs_its_image_tower(tiny_siglip: Path, tmp_path: Path) -> None:
    """That of tiny_siglip has a register token and layer scales."""
    with pytest.raises(SettingsError, match="transformers has no such model"):
        to_hugging_face(tiny_siglip, tmp_path / "hf")


LINEAR = {"timm_pool": "avg", "timm_proj": "linear"}


def test_mixed_towers_become_dual_encoders(write: Write, tmp_path: Path) -> None:
    checkpoint = write({**TIMM, **LINEAR}, TEXT, {"resize_mode": "squash"})
    model = agree(to_hugging_face(checkpoint, tmp_path / "hf"), load(checkpoint))
    assert type(model).__name__ == "VisionTextDualEncoderModel"


def test_siglips_image_tower_goes_with_clips_text_tower(
    write: Write, siglip_trunk: dict[str, Any], tmp_path: Path
) -> None:
    checkpoint = write(siglip_trunk, TEXT, {"resize_mode": "squash"})
    model = agree(to_hugging_face(checkpoint, tmp_path / "hf"), load(checkpoint))
    assert type(model).__name__ == "VisionTextDualEncoderModel"
    assert type(model.vision_model).__name__ == "SiglipVisionModel"


def test_the_shipped_base_becomes_a_dual_encoder(tmp_path: Path) -> None:
    folder = to_hugging_face(BASE, tmp_path / "hf")
    assert type(agree(folder, load(BASE))).__name__ == "VisionTextDualEncoderModel"
    names = {path.name for path in folder.iterdir()}
    assert {"config.json", "model.safetensors", "tokenizer.json", "compo.json"} <= names
    assert json.loads((folder / "compo.json").read_text())["name"] == "scenes-base"


@pytest.fixture
def small_vocabulary(write: Write) -> Path:
    """A model of few words whose end is not the largest id: open_clip pools at the largest."""
    tokenizers = pytest.importorskip("tokenizers")
    from transformers import PreTrainedTokenizerFast

    words = ["[PAD]", "[UNK]", "[END]", "a", "red", "cube", "blue"]
    inner = tokenizers.Tokenizer(
        tokenizers.models.WordLevel({word: k for k, word in enumerate(words)}, unk_token="[UNK]")
    )
    inner.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    inner.post_processor = tokenizers.processors.TemplateProcessing(
        "$A [END]", special_tokens=[("[END]", 2)]
    )
    checkpoint = write(VIT, {**TEXT, "vocab_size": 7, "hf_tokenizer_name": "x"})
    roles = {"pad_token": "[PAD]", "unk_token": "[UNK]", "eos_token": "[END]"}
    PreTrainedTokenizerFast(tokenizer_object=inner, **roles).save_pretrained(checkpoint)
    return checkpoint


def test_another_vocabulary_is_pooled_where_open_clip_does(
    small_vocabulary: Path, tmp_path: Path
) -> None:
    loaded = load(small_vocabulary)
    model = agree(to_hugging_face(small_vocabulary, tmp_path / "hf"), loaded)
    tokens = loaded.tokenize(["a blue cube"])
    assert tokens[0, :4].tolist() == [3, 6, 5, 2]
    changed = tokens.clone()
    changed[0, 2] = 4  # after the largest id: not read under a causal mask
    with torch.no_grad():
        first, second = (
            model.get_text_features(input_ids=x).pooler_output for x in (tokens, changed)
        )
    assert torch.equal(first, second)


RESNET = {"image_size": 32, "layers": [1, 1, 1, 1], "width": 8, "head_width": 8}
REFUSED = {
    "a ResNet": (RESNET, TEXT),
    "mean pooling of patches": ({**VIT, "pool_type": "avg"}, TEXT),
    "no norm before the first block": ({**VIT, "no_ln_pre": True}, TEXT),
    "an MLP as projection": ({**TIMM, **LINEAR, "timm_proj": "mlp"}, TEXT),
    "norms of queries and keys": ({**VIT, "qk_norm": True}, TEXT),
    "layer scales": ({**VIT, "ls_init_value": 0.3}, TEXT),
    "the last token of a causal text": (VIT, {**TEXT, "pool_type": "last"}),
    "a projection of texts with a bias": (VIT, {**TEXT, "proj_bias": True}),
}


@pytest.mark.parametrize("part", REFUSED)
def test_what_transformers_computes_otherwise_is_refused(
    write: Write, tmp_path: Path, part: str
) -> None:
    with pytest.raises(SettingsError, match="ONNX files most") as refusal:
        to_hugging_face(write(*REFUSED[part]), tmp_path / "hf")
    assert "\n" not in refusal.value.message
    assert not (tmp_path / "hf").exists()


def test_a_conversion_that_computes_otherwise_is_not_written(
    write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint = write(VIT, TEXT)
    monkeypatch.setattr("compo_pipeline.models.hf_export._activation", lambda *_: "relu")
    with pytest.raises(SettingsError, match="image tower: as converted it gives other numbers"):
        to_hugging_face(checkpoint, tmp_path / "hf")
    assert not (tmp_path / "hf").exists()


def test_writing_twice_gives_the_same_bytes_and_leaves_nothing_else(
    write: Write, tmp_path: Path
) -> None:
    checkpoint = write(VIT, TEXT)
    folder = to_hugging_face(checkpoint, tmp_path / "hf")
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    (folder / "leftover").touch()
    to_hugging_face(checkpoint, folder)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    assert {path.name for path in tmp_path.iterdir()} == {"checkpoint", "hf"}


@pytest.mark.parametrize("kind", ["tiny_clip", "tiny_siglip"])
def test_the_tokenizer_file_alone_gives_the_same_ids(
    request: pytest.FixtureRequest, kind: str
) -> None:
    loaded = load(request.getfixturevalue(kind))
    texts = [
        *TEXTS,
        *PROBES,
        "snake_case; A  tab\tand\n“quotes”",
        "don't we'll I'm",
        "a &amp;quot;b&#39;",
    ]
    ids = [encoded.ids for encoded in fast_tokenizer(loaded).encode_batch(texts)]
    np.testing.assert_array_equal(ids, loaded.tokenize(texts).numpy())
