"""Writing a checkpoint as a folder of Hugging Face transformers.

CLIPModel and SiglipModel where both towers are of that kind, VisionTextDualEncoderModel where they
are not. What is written has been compared with open_clip before: towers, tokenizer, preprocessing.
"""

from __future__ import annotations

import logging
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor

from compo_pipeline.configuration.settings import SettingsError, pip_install
from compo_pipeline.models.encoding import encode_images, encode_texts
from compo_pipeline.models.hf_preprocessing import image_processor, tokenizer
from compo_pipeline.models.hf_towers import Tower, image_tower, text_part, unsupported_error
from compo_pipeline.models.loading import LoadedModel, load
from compo_pipeline.models.weights import PROBES, RECORD_FILE, read_record
from compo_pipeline.storage.files import atomic_folder, write_json

log = logging.getLogger(__name__)

# Of any number of a normalised embedding.
TOLERANCE = 1e-4
# transformers resizes in its own way, which rounds otherwise than Pillow's.
_GREY_LEVELS = 2.5


def require_packages() -> None:
    """Raise an error with the command that installs transformers, unless transformers is installed.

    Raises:
        SettingsError: they are not; the message says how to install them.
    """
    if find_spec("transformers") is None:
        raise SettingsError(
            "export.hugging_face: the package transformers is not installed: "
            f"{pip_install('siglip')}"
        )


def to_hugging_face(checkpoint: Path, folder: Path) -> Path:
    """Write a checkpoint as a folder of Hugging Face transformers, atomically.

    These are config.json, model.safetensors, processor and tokenizer.

    Args:
        checkpoint: a folder that `export` or open_clip wrote.
        folder: replaced where it exists.

    Raises:
        SettingsError: transformers is missing, has no counterpart of a part of the model, or
            does not compute the same; the message names the part.
    """
    require_packages()
    from transformers import CLIPConfig, CLIPProcessor, SiglipConfig, SiglipProcessor
    from transformers import VisionTextDualEncoderProcessor as DualProcessor

    loaded = load(checkpoint)
    model = convert(loaded)
    kinds = {CLIPConfig: CLIPProcessor, SiglipConfig: SiglipProcessor}
    processor: Any = kinds.get(type(model.config), DualProcessor)(
        image_processor=image_processor(dict(loaded.config["preprocess_cfg"])),
        tokenizer=tokenizer(loaded),
    )
    check(loaded, model, processor)
    with atomic_folder(folder) as new:
        model.save_pretrained(new)
        processor.save_pretrained(new)
        note = {"transformers": version("transformers"), "class": type(model).__name__}
        write_json(new / RECORD_FILE, {**read_record(checkpoint), "precision": "fp32", **note})
    return folder


def convert(loaded: LoadedModel) -> Any:
    """Convert an open_clip model to a model of Hugging Face transformers with the same weights.

    Raises:
        SettingsError: transformers has no counterpart of a tower.
    """
    image, text = image_tower(loaded.model), text_part(loaded)
    weights = {f"vision_model.{name}": tensor for name, tensor in image.weights.items()}
    weights |= {f"text_model.{name}": tensor for name, tensor in text.weights.items()}
    bias: Tensor | None = loaded.model.logit_bias  # type: ignore[assignment]
    scale: Tensor = loaded.model.logit_scale  # type: ignore[assignment]
    width = int(loaded.config["model_cfg"]["embed_dim"])
    model = _unloaded_model(image, text, width)
    if hasattr(model, "logit_bias"):
        own_bias = torch.zeros(1) if bias is None else bias
        weights |= {"logit_scale": scale.reshape(1), "logit_bias": own_bias.reshape(1)}
    else:
        weights["logit_scale"] = scale.reshape(())
        for name, tower in (("visual", image), ("text", text)):
            own = tower.projection
            weights[f"{name}_projection.weight"] = torch.eye(width) if own is None else own
        if bias is not None:
            model.config.logit_bias = bias.item()
            kind, shown = type(model).__name__, model.config.logit_bias
            log.warning(
                "%s adds no logit_bias: add the %.4f in its config.json to its logits.", kind, shown
            )
    model.load_state_dict({name: tensor.detach().clone() for name, tensor in weights.items()})
    return model.eval()


def _unloaded_model(image: Tower, text: Tower, width: int) -> Any:
    """Model of transformers for these two towers, whose weights are still to be loaded."""
    import transformers as hf

    kinds = (type(image.config), type(text.config))
    pair = {"vision_config": image.config.to_dict(), "text_config": text.config.to_dict()}
    with torch.random.fork_rng(devices=[]):
        if kinds == (hf.CLIPVisionConfig, hf.CLIPTextConfig):
            return hf.CLIPModel(hf.CLIPConfig(**pair, projection_dim=width))
        if kinds == (hf.SiglipVisionConfig, hf.SiglipTextConfig) and image.projection is None:
            return hf.SiglipModel(hf.SiglipConfig(**pair))
        if kinds[1] is hf.SiglipTextConfig:
            raise unsupported_error(
                "text tower",
                "is read as a whole, which transformers knows beside SigLIP's image tower alone",
            )
        dual = hf.VisionTextDualEncoderConfig(**pair, projection_dim=width)
        return hf.VisionTextDualEncoderModel(dual)


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
    """The error to raise for a part of the model whose converted outputs differ."""
    return unsupported_error(part, f"as converted it gives other numbers (up to {apart})")
