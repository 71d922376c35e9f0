"""Writing a checkpoint as a folder of transformers, which sentence-transformers reads as well.

CLIPModel, MetaClip2Model and SiglipModel where both towers are of that kind,
VisionTextDualEncoderModel where they are not. What is written has been compared with open_clip
before: towers, tokenizer, preprocessing.

Shapes: W width of a tower, D width of the joint space.
"""

from __future__ import annotations

import logging
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from open_clip.timm_model import TimmModel
from open_clip.tokenizer import SimpleTokenizer
from open_clip.transformer import QuickGELU
from PIL import Image
from timm.models.vision_transformer import VisionTransformer as TimmTransformer
from torch import Tensor, nn

from compo_pipeline.core.files import atomic_folder, write_json
from compo_pipeline.core.settings import SettingsError
from compo_pipeline.models.encoding import encode_images, encode_texts, pool_type, text_tower
from compo_pipeline.models.foreign import require_transformers
from compo_pipeline.models.hf_import import to_open_clip_names
from compo_pipeline.models.hf_preprocessing import image_processor, tokenizer
from compo_pipeline.models.hub import reason
from compo_pipeline.models.loading import LoadedModel, load
from compo_pipeline.models.weights import PROBES, RECORD_FILE, read_record

log = logging.getLogger(__name__)

UNSUPPORTED = (AttributeError, KeyError, RuntimeError, TypeError, ValueError)
"""Errors of `convert`: what a tower has that transformers' models do not is a missing attribute or
weight there."""
# Of any number of a normalised embedding.
TOLERANCE = 1e-4
# transformers resizes in its own way, which rounds otherwise than Pillow's.
_GREY_LEVELS = 2.5
# CLIPTextModel takes this number for "the largest id of a text marks its end", as old
# configurations of transformers said.
_ARGMAX = 2
_MODULE = "sentence_transformers.base.modules"
# What sentence-transformers reads beside transformers' own files, to encode texts and images.
_SENTENCE_FILES: dict[str, Any] = {
    "config_sentence_transformers.json": {
        "model_type": "SentenceTransformer",
        "similarity_fn_name": "cosine",
    },
    "modules.json": [
        {"idx": 0, "name": "0", "path": "", "type": f"{_MODULE}.transformer.Transformer"},
        {"idx": 1, "name": "1", "path": "1_Normalize", "type": f"{_MODULE}.normalize.Normalize"},
    ],
    "sentence_bert_config.json": {
        "transformer_task": "feature-extraction",
        "modality_config": {
            kind: {"method": f"get_{kind}_features", "method_output_name": "pooler_output"}
            for kind in ("text", "image")
        },
        "module_output_name": "sentence_embedding",
        "processing_kwargs": {"text": {"padding": "max_length", "truncation": True}},
        "processor_kwargs": {"backend": "pil"},
    },
}


def to_hugging_face(checkpoint: Path, folder: Path) -> Path:
    """Write a checkpoint as a folder of transformers and sentence-transformers, atomically.

    These are config.json, model.safetensors, processor and tokenizer, and modules.json with what it
    names.

    Args:
        checkpoint: a folder that `export` or open_clip wrote.
        folder: replaced where it exists.

    Raises:
        SettingsError: transformers is not installed, has no counterpart of the model, or does not
            compute the same; the message names the part.
    """
    require_transformers()
    from transformers import CLIPConfig, CLIPProcessor, SiglipConfig, SiglipProcessor
    from transformers import VisionTextDualEncoderProcessor as DualProcessor

    loaded = load(checkpoint)
    try:
        model = convert(loaded.model, loaded.tokenize, loaded.config["model_cfg"]["embed_dim"])
    except UNSUPPORTED as error:
        message = f"transformers has no such model ({reason(error)})"
        raise _unsupported("towers", message) from error
    kinds = {CLIPConfig: CLIPProcessor, SiglipConfig: SiglipProcessor}
    processor: Any = kinds.get(type(model.config), DualProcessor)(
        image_processor=image_processor(dict(loaded.config["preprocess_cfg"])),
        tokenizer=tokenizer(loaded),
    )
    check(loaded, model, processor)
    with atomic_folder(folder) as new:
        model.save_pretrained(new)
        processor.save_pretrained(new)
        for name, content in _SENTENCE_FILES.items():
            write_json(new / name, content)
        note = {"transformers": version("transformers"), "class": type(model).__name__}
        write_json(new / RECORD_FILE, {**read_record(checkpoint), "precision": "fp32", **note})
    return folder


def convert(model: Any, tokenize: Any, width: int) -> Any:
    """Convert an open_clip model to a model of Hugging Face transformers with the same weights.

    An import renames, joins, splits and transposes the tensors of transformers; its transpose, a
    vector-Jacobian product, takes open_clip's weights back to where they came from. `check` finds
    out whether the two models compute the same.

    Args:
        model: open_clip's module. If it is on the meta device, so is the result.
        tokenize: its tokenizer.
        width: D of its joint space.
    """
    import transformers as hf

    visual: Any = model.visual
    if (tower := text_tower(model)) is None:
        raise ValueError("with a text tower that is not open_clip's own")
    image, text = _image_config(visual), _text_config(tower, tokenize, width)
    pair = {"vision_config": image.to_dict(), "text_config": text.to_dict()}
    texts = tower.state_dict()
    state = {**texts, **{f"text.{key}": each for key, each in texts.items()}, **model.state_dict()}
    if (projection := state.get("visual.head.proj.weight")) is not None:
        state["visual.proj"] = projection.T
    kinds = type(image), type(text)
    with torch.random.fork_rng(devices=[]):
        if kinds == (hf.CLIPVisionConfig, hf.CLIPTextConfig):
            built: Any = hf.CLIPModel(hf.CLIPConfig(**pair, projection_dim=width))
        elif kinds == (hf.CLIPVisionConfig, hf.MetaClip2TextConfig):
            built = hf.MetaClip2Model(hf.MetaClip2Config(**pair, projection_dim=width))
        elif kinds == (hf.SiglipVisionConfig, hf.SiglipTextConfig) and "visual.proj" not in state:
            built = hf.SiglipModel(hf.SiglipConfig(**pair))
        elif kinds[1] is hf.SiglipTextConfig:
            raise ValueError("SigLIP's text tower goes with its image tower alone")
        else:
            dual = hf.VisionTextDualEncoderConfig(**pair, projection_dim=width)
            built = hf.VisionTextDualEncoderModel(dual)
    absent = {"visual.proj": torch.eye(width), "text_projection": torch.eye(width)}
    state = {**absent, "logit_bias": torch.zeros(1), **state}
    own = {key: each for key, each in built.named_parameters() if ".timm_model." not in key}
    imported = to_open_clip_names(own)
    wanted = [state[key].reshape(each.shape) for key, each in imported.items()]
    found = torch.autograd.grad([*imported.values()], [*own.values()], wanted)
    built.load_state_dict(dict(zip(own, found, strict=True)), strict=False)
    if hasattr(built.vision_model, "timm_model"):
        built.vision_model.timm_model.load_state_dict(visual.trunk.state_dict())
    bias = model.logit_bias
    if bias is not None and "logit_bias" not in own and not bias.is_meta:
        built.config.logit_bias = bias.item()
        name, shown = type(built).__name__, built.config.logit_bias
        log.warning(
            "%s adds no logit_bias: add the %.4f in its config.json to its logits.", name, shown
        )
    return built.eval()


def _image_config(visual: Any) -> Any:
    """Configuration, by transformers, of an open_clip image tower."""
    from transformers import CLIPVisionConfig, SiglipVisionConfig

    if not isinstance(visual, TimmModel):
        sizes = {"image_size": visual.image_size[0], "patch_size": visual.patch_size[0]}
        return CLIPVisionConfig(**sizes, **_clip_values(visual.transformer, visual.ln_post))
    trunk: Any = visual.trunk
    if not (isinstance(trunk, TimmTransformer) and trunk.global_pool == "map"):
        return _timm_config(trunk)
    first = trunk.blocks[0]
    return SiglipVisionConfig(
        image_size=trunk.patch_embed.img_size[0],
        patch_size=trunk.patch_embed.proj.kernel_size[0],
        hidden_size=trunk.embed_dim,
        intermediate_size=first.mlp.fc1.out_features,
        num_hidden_layers=len(trunk.blocks),
        num_attention_heads=first.attn.num_heads,
        hidden_act=_activation(first.mlp.act),
        layer_norm_eps=first.norm1.eps,
    )


def _timm_config(trunk: Any) -> Any:
    """Configuration of a TimmWrapperModel that builds a trunk with these weights.

    open_clip changes the pooling of a finished trunk, TimmWrapper asks for it while it builds;
    where timm puts the final norm can depend on that, so the one that has these weights is taken.
    """
    import timm
    from transformers import TimmWrapperConfig

    name = str(trunk.default_cfg["architecture"])
    wanted = {key: value.shape for key, value in trunk.state_dict().items()}
    pool = {"global_pool": trunk.global_pool} if hasattr(trunk, "global_pool") else {}
    for arguments in (pool, {**pool, "fc_norm": False}, {}):
        try:
            with torch.random.fork_rng(devices=[]):
                built = timm.create_model(name, num_classes=0, **arguments)
        except TypeError:
            continue  # this architecture knows no such argument
        if {key: value.shape for key, value in built.state_dict().items()} == wanted:
            # Not in the class's signature: VisionTextDualEncoderModel asks for it.
            width = {"hidden_size": trunk.num_features}
            return TimmWrapperConfig(architecture=name, model_args=arguments, **width)
    raise ValueError(f"TimmWrapperModel builds no {name} with these weights")


def _text_config(tower: Any, tokenize: Any, width: int) -> Any:
    """Configuration, by transformers, of one of open_clip's own text transformers."""
    from transformers import CLIPTextConfig, MetaClip2TextConfig, SiglipTextConfig

    values = {
        "max_position_embeddings": tower.positional_embedding.shape[0],
        "vocab_size": tower.token_embedding.num_embeddings,
        **_clip_values(tower.transformer, tower.ln_final),
    }
    if tower.attn_mask is None:
        return SiglipTextConfig(**values, projection_size=width)
    inner = getattr(tokenize, "tokenizer", tokenize)
    if pool_type(tower) != "argmax":
        end = tower.eos_id if hasattr(tower, "eos_id") else tower.text_eos_id
    else:
        # CLIP's own end is the largest id that its tokenizer writes: the same place. Any other
        # vocabulary may have larger ids in a text, and open_clip pools at those.
        end = tokenize.eot_token_id if isinstance(tokenize, SimpleTokenizer) else _ARGMAX
    marked = pool_type(tower) != "argmax" and end == _ARGMAX
    return (MetaClip2TextConfig if marked else CLIPTextConfig)(
        **values,
        projection_dim=width,
        eos_token_id=int(end),
        bos_token_id=getattr(inner, "sot_token_id", getattr(inner, "bos_token_id", None)),
        pad_token_id=getattr(inner, "eot_token_id", getattr(inner, "pad_token_id", None)),
    )


def _clip_values(transformer: Any, norm: Any) -> dict[str, Any]:
    """Values for a CLIP or SigLIP configuration, read from open_clip's first block and a norm."""
    first = transformer.resblocks[0]
    return {
        "hidden_size": transformer.width,
        "intermediate_size": first.mlp.c_fc.out_features,
        "num_hidden_layers": len(transformer.resblocks),
        "num_attention_heads": first.attn.num_heads,
        "hidden_act": _activation(first.mlp.gelu),
        "layer_norm_eps": norm.eps,
    }


def _activation(layer: nn.Module) -> str:
    """Name in transformers of an activation layer, of torch, timm or open_clip."""
    if isinstance(layer, QuickGELU):
        return "quick_gelu"
    tanh = type(layer).__name__ == "GELUTanh" or getattr(layer, "approximate", "none") == "tanh"
    return "gelu_pytorch_tanh" if tanh else "gelu"


@torch.no_grad()
def check(loaded: LoadedModel, model: Any, processor: Any) -> None:
    """Raise an error unless a converted model and its processor give open_clip's outputs.

    Raises:
        SettingsError: one gives other numbers; the message says which, and how far apart.
    """
    size = loaded.image_size
    pixels = torch.randn(2, 3, size, size, generator=torch.Generator().manual_seed(0))
    tokens = loaded.tokenize(list(PROBES))
    texts = encode_texts(loaded.model, tokens)
    images = model.get_image_features(pixel_values=pixels).pooler_output
    _require_close("image tower", F.normalize(images, dim=-1), encode_images(loaded.model, pixels))
    _require_close("text tower", _text_embeddings(model, tokens), texts)
    inputs = processor.tokenizer(
        list(PROBES), padding="max_length", truncation=True, return_tensors="pt"
    )
    _require_close("tokenizer", _text_embeddings(model, inputs["input_ids"]), texts)
    # Of a shape at which both round alike where they crop or fill up.
    image = Image.radial_gradient("L").resize((2 * size, size)).convert("RGB")
    seen = processor.image_processor(image, return_tensors="pt")["pixel_values"][0]
    grey = torch.tensor(loaded.std)[:, None, None] * (seen - loaded.preprocess(image)) * 255
    if grey.abs().max() > _GREY_LEVELS:
        raise _difference_error("preprocessing", f"{grey.abs().max():.0f} of 255 grey levels")


def _text_embeddings(model: Any, tokens: Tensor) -> Tensor:
    """Normalised text embeddings by a Hugging Face model, of token ids."""
    return F.normalize(model.get_text_features(input_ids=tokens).pooler_output, dim=-1)


def _require_close(part: str, got: Tensor, wanted: Tensor) -> None:
    """Raise an error if embeddings differ by more than the tolerance."""
    apart = (got - wanted).abs().max().item()
    # Written so that NaN is refused too.
    if not apart <= TOLERANCE:
        raise _difference_error(part, f"{apart:.1e} of a normalised embedding")


def _difference_error(part: str, apart: str) -> SettingsError:
    return _unsupported(part, f"as converted it gives other numbers (up to {apart})")


def _unsupported(part: str, reason: str) -> SettingsError:
    return SettingsError(
        f"no Hugging Face folder can hold this model: its {part}: {reason}. "
        "The open_clip folder holds every model, ONNX files most (--onnx)"
    )
