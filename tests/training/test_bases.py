"""Each family of base models, tiny: it trains, resumes, and leaves in every format that fits it."""

import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import open_clip
import pytest
import torch
import yaml
from open_clip.model import CLIP, CustomTextCLIP
from safetensors.torch import load_file, save_file
from tests.models.conftest import write_chinese_clip
from timm.models import VisionTransformer, register_model

from compo_pipeline.core.settings import SettingsError, with_values
from compo_pipeline.methods.clic import Clic, ClicObjective, ClicViews
from compo_pipeline.models.hf_export import to_hugging_face
from compo_pipeline.models.importing import ImportRequest, import_model
from compo_pipeline.models.loading import load
from compo_pipeline.models.onnx_export import session, to_onnx
from compo_pipeline.models.settings import ModelSettings
from compo_pipeline.training.bases import describe
from compo_pipeline.training.inputs import TrainingInputs
from compo_pipeline.training.loop import Job, train


@register_model
def siglip_in_small(**_: Any) -> VisionTransformer:
    """An image tower as timm builds SigLIP's."""
    shape = {"img_size": 32, "patch_size": 8, "embed_dim": 24, "depth": 2, "num_heads": 2}
    whole = {"class_token": False, "global_pool": "map", "num_classes": 0}
    return VisionTransformer(**shape, **whole, act_layer="gelu_tanh")


CLIC = Clic(ClicViews(), ClicObjective())
# A tower of each kind that is small as it is, or as small as timm makes it.
TOWERS = {
    "eva02_large_patch14_clip_224": ("eva02_tiny_patch14_224", 224),
    "vit_base_patch16_siglip_224": ("siglip_in_small", 32),
    "vit_large_patch16_siglip_256": ("siglip_in_small", 32),
    "vit_pe_core_base_patch16_224": ("vit_pe_core_tiny_patch16_384", 384),
    "fastvit_mci0": ("fastvit_mci0", 64),
}
CLIPS: Mapping[str, Any] = {
    "vision_cfg": {"act_kwargs": {"approximate": "tanh"}, "norm_kwargs": {"eps": 1e-6}},
    "text_cfg": {
        "context_length": 80,
        "act_kwargs": {"approximate": "tanh"},
        "norm_kwargs": {"eps": 1e-6},
    },
}
# Architecture of open_clip, changes by `model.config`, class of transformers.
FAMILIES: Mapping[str, tuple[str, Mapping[str, Any], str]] = {
    "CLIP": ("ViT-B-16-quickgelu", {}, "CLIPModel"),
    "H/14": ("ViT-H-14", {}, "CLIPModel"),
    "MetaCLIP 2": ("ViT-H-14-worldwide-quickgelu", {}, "MetaClip2Model"),
    "CLIPA": ("ViT-L-14-CLIPA", {}, ""),
    "CLIPS": ("ViT-L-14-CLIPA", CLIPS, ""),
    "EVA02": ("EVA02-L-14", {}, ""),
    "SigLIP": ("ViT-B-16-SigLIP", {}, "SiglipModel"),
    "SigLIP L/16": ("ViT-L-16-SigLIP-256", {}, "SiglipModel"),
    "SigLIP 2": ("ViT-B-16-SigLIP2", {}, "SiglipModel"),
    "PE-Core": ("PE-Core-B-16", {}, ""),
    "MobileCLIP2": ("MobileCLIP2-S0", {}, ""),
}
QUICK = ("CLIP", "MetaCLIP 2", "CLIPS", "SigLIP 2")


def shrunk(name: str) -> dict[str, Any]:
    """Configuration of one of open_clip's architectures with fewer and narrower layers."""
    config = open_clip.get_model_config(name)
    vision, text = config["vision_cfg"], config["text_cfg"]
    if tower := vision.get("timm_model_name"):
        vision["timm_model_name"], vision["image_size"] = TOWERS[tower]
    else:
        patch = vision["patch_size"]
        vision |= {"layers": 1, "width": 32, "head_width": 16, "image_size": 2 * patch}
    config["embed_dim"] = 24
    text |= {"layers": 1, "width": 32, "heads": 2}
    if "hf_tokenizer_name" in text:
        text["vocab_size"] = 64
    return dict(config)


@pytest.fixture
def tiny_base(tmp_path: Path, siglip_tokenizer: Path) -> Callable[[str, Mapping[str, Any]], Path]:
    """Writes a tiny random model of an architecture, as open_clip would."""

    def write(name: str, changes: Mapping[str, Any]) -> Path:
        folder = tmp_path / "base"
        folder.mkdir()
        config = shrunk(name)
        built = {key: value for key, value in config.items() if key != "custom_text"}
        # The weights are of the changed architecture, and the folder does not say so.
        for part, values in changes.items():
            built[part] = {**built[part], **values}
        torch.manual_seed(0)
        model = (CustomTextCLIP if config.get("custom_text") else CLIP)(**built)
        quick = str(config.get("quick_gelu", False)).lower()
        file = folder / "open_clip_model.safetensors"
        save_file(model.state_dict(), file, metadata={"quick_gelu": quick})
        size = list(model.visual.image_size)
        written = {"model_cfg": config, "preprocess_cfg": {"size": size}}
        (folder / "open_clip_config.json").write_text(json.dumps(written))
        tokenizer = config["text_cfg"].get("hf_tokenizer_name", "")
        if "SigLIP" in tokenizer:
            for path in siglip_tokenizer.iterdir():
                shutil.copy(path, folder)
        elif tokenizer:
            write_tokenizer(folder, tokenizer.split("/")[-1].split("-")[0])
        return folder

    return write


def write_tokenizer(folder: Path, kind: str) -> None:
    """Write a small tokenizer with the special tokens of BERT's or XLM's, in their order."""
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

    special = {
        "bert": ["[PAD]", "[UNK]", "[CLS]", "[SEP]"],
        "xlm": ["<s>", "<pad>", "</s>", "<unk>"],
    }
    roles = {"bert": ["pad", "unk", "cls", "sep"], "xlm": ["bos", "pad", "eos", "unk"]}[kind]
    names = dict(zip(roles, special[kind], strict=True))
    words = [
        *special[kind],
        *"a the red blue white green cube sphere cat dog cup left of on".split(),
    ]
    inner = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, names["unk"]))
    inner.normalizer = normalizers.Lowercase()
    inner.pre_tokenizer = pre_tokenizers.Whitespace()
    first, last = (names[role] for role in (("cls", "sep") if kind == "bert" else ("bos", "eos")))
    ends = [(token, words.index(token)) for token in (first, last)]
    inner.post_processor = processors.TemplateProcessing(f"{first} $A {last}", special_tokens=ends)
    inner.save(str(folder / "tokenizer.json"))
    config = {"tokenizer_class": "PreTrainedTokenizerFast"}
    config |= {f"{role}_token": token for role, token in names.items()}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))


class Broken(Exception):
    """The run ends here."""


def test_each_base_of_the_list_is_a_variant(project: Path) -> None:
    files = (project / "conf" / "base" / f"parameters_{n}.yml" for n in ("benchmark", "variants"))
    models, variants = (yaml.safe_load(file.read_text()) for file in files)
    for name, model in models["model_lists"]["bases"].items():
        own = with_values({}, variants["variants"]["all"][name])["model"]
        assert {key: value for key, value in own.items() if value is not None} == model


@pytest.mark.parametrize(
    "family",
    [pytest.param(name, marks=[] if name in QUICK else pytest.mark.slow) for name in FAMILIES],
)
def test_a_family_trains_resumes_and_is_exported(
    world: Any, views: Path, tiny_base: Any, recipe: Any, tmp_path: Path, family: str
) -> None:
    from sentence_transformers import SentenceTransformer

    pytest.importorskip("onnxscript")
    architecture, changes, transformers = FAMILIES[family]
    model = ModelSettings(f"local-dir:{tiny_base(architecture, changes)}", config=changes)
    settings = recipe(epochs=1, save_every=1)
    inputs = TrainingInputs(
        world.captions, "data", views, world.root, model, settings, 0, tmp_path / "resume"
    )
    whole, resumed = tmp_path / "whole", tmp_path / "resumed"
    train(replace(inputs, resume=tmp_path / "other"), Job(CLIC, "clic", whole), lambda _: None)

    def stop(point: Mapping[str, Any]) -> None:
        if point["step"] == 2:
            raise Broken

    with pytest.raises(Broken):
        train(inputs, Job(CLIC, "clic", resumed), stop)
    train(inputs, Job(CLIC, "clic", resumed), lambda _: None)
    weights = [load_file(folder / "open_clip_model.safetensors") for folder in (whole, resumed)]
    assert all(torch.equal(weights[0][key], weights[1][key]) for key in weights[0])
    base = load_file(tmp_path / "base" / "open_clip_model.safetensors")
    assert any(not torch.equal(base[key], weights[0][key]) for key in base)

    # open_clip and ONNX compute the same from the exported folder.
    loaded = load(whole)
    pixels = torch.randn(2, 3, loaded.image_size, loaded.image_size)
    captions = ["a red cube", "the sphere left of a blue cube"]
    tokens = loaded.tokenize(captions)
    with torch.no_grad():
        images = loaded.model.encode_image(pixels, normalize=True)
        texts = loaded.model.encode_text(tokens, normalize=True)
        theirs = open_clip.create_model(f"local-dir:{whole}").eval()
        torch.testing.assert_close(theirs.encode_image(pixels, normalize=True), images)
        torch.testing.assert_close(theirs.encode_text(tokens, normalize=True), texts)
    onnx = to_onnx(whole, tmp_path / "onnx")
    found = session(onnx / "image.onnx")(pixels.numpy())
    np.testing.assert_allclose(found, images, atol=1e-3)
    np.testing.assert_allclose(session(onnx / "text.onnx")(tokens.numpy()), texts, atol=1e-3)

    # transformers and sentence-transformers, too, or the description says that there is none.
    assert describe(family, model, {}, settings).transformers == transformers
    if transformers:
        written = to_hugging_face(whole, tmp_path / "transformers")
        sentences = SentenceTransformer(str(written), device="cpu", local_files_only=True)
        np.testing.assert_allclose(sentences.encode(captions), texts, atol=1e-6)
    else:
        with pytest.raises(SettingsError, match="transformers has no such model"):
            to_hugging_face(whole, tmp_path / "transformers")


@pytest.mark.slow
def test_chinese_clip_trains_and_is_exported_to_onnx(
    world: Any, views: Path, recipe: Any, tmp_path: Path
) -> None:
    """open_clip alone cannot load it, nor transformers: neither has a place for its BERT."""
    pytest.importorskip("onnxscript")
    (source := tmp_path / "source").mkdir()
    write_chinese_clip(source).save_pretrained(source)
    import_model(ImportRequest(str(source)), tmp_path / "base")
    model, settings = ModelSettings(f"local-dir:{tmp_path / 'base'}"), recipe(epochs=1)
    assert describe("chinese", model, {}, settings).gflops[1] > 0
    data = (world.captions, "data", views, world.root)
    inputs = TrainingInputs(*data, model, settings, 0, tmp_path / "resume")
    train(inputs, Job(CLIC, "clic", tmp_path / "out"), lambda _: None)
    base, loaded = load(tmp_path / "base"), load(tmp_path / "out")
    tokens = loaded.tokenize(["red 猫", "一只猫，在桌子上！"])
    with torch.no_grad():
        before, after = (each.model.encode_text(tokens, normalize=True) for each in (base, loaded))
    assert not torch.equal(before, after)
    onnx = to_onnx(tmp_path / "out", tmp_path / "onnx")
    np.testing.assert_allclose(session(onnx / "text.onnx")(tokens.numpy()), after, atol=1e-3)
    assert (onnx / "tokenizer.json").is_file()
    with pytest.raises(SettingsError, match="with a text tower that is not open_clip's own"):
        to_hugging_face(tmp_path / "out", tmp_path / "transformers")
