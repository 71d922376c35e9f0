"""Text-to-image pipelines of diffusers and CLIP image towers, from folders.

What a folder cannot be used for is found from its small files, long before weights are read.
Nothing loaded may run code: weights are safetensors, classes those of diffusers and transformers.
"""

from __future__ import annotations

import re
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from compo_pipeline.core.settings import SettingsError, pip_install
from compo_pipeline.data.images import style
from compo_pipeline.generation.counterfactuals.settings import (
    DiffusionAdainSettings,
    DiffusionSettings,
)
from compo_pipeline.models import foreign, hub

if TYPE_CHECKING:
    import torch
    from torch.nn import Sequential

HUB_FILES = (
    "*.json",
    "*.txt",
    "model.safetensors",
    "text_encoder*/model.safetensors",
    "unet/diffusion_pytorch_model.safetensors",
    "vae/diffusion_pytorch_model.safetensors",
    "image_encoder/model.safetensors",
)
"""Files to download from a repository of the hub: one of its several copies of the weights."""

KEY = "counterfactuals.diffusion"
_REPOSITORY = re.compile(r"[\w-][\w.-]*/[\w.-]+")
_INDEX = "model_index.json"
# Pipelines of one CLIP text encoder, whose padding is free to hold an image's features.
_ONE_ENCODER = ("LatentConsistencyModelPipeline", "StableDiffusionPipeline")
# Pipelines that give latents as their VAE takes them.
_KINDS = (*_ONE_ENCODER, "StableDiffusionXLPipeline")
_WEIGHTS = ("unet", "vae", "text_encoder")
_LIBRARIES = ("diffusers", "transformers")
_OR_NO_INJECTION = f"or set {KEY}.injection to false"


class ModelFolders(NamedTuple):
    """Folders of the diffusers pipeline, the CLIP image tower and its preprocessing.

    The last two are None where no image features are injected.
    """

    pipeline: Path
    tower: Path | None
    preprocessing: Path | None


def local_folder(name: str, key: str) -> Path:
    """Local folder of a model, given as a folder or as a hub repository to download.

    Args:
        name: a folder, or `owner/model`.
        key: the YAML key that names it.

    Raises:
        SettingsError: it is no folder and no download, or asks for code of its own.
    """
    folder = Path(name).expanduser()
    if not folder.is_dir():
        folder = _download(name, key)
    foreign.refuse_code(folder, key)
    return folder


def _download(name: str, key: str) -> Path:
    """Local folder of a hub repository, downloaded if it is not complete in the cache."""
    if not _REPOSITORY.fullmatch(name):
        raise SettingsError(
            f"{key}: '{name}' is no folder; expected one as save_pretrained of diffusers or "
            "transformers writes it"
        )
    try:
        # An interrupted download leaves a part.
        return hub.folder(name, HUB_FILES, lambda found: not missing_file(found))
    except Exception as error:
        raise SettingsError(
            f"{key}: there is no folder '{name}', and the model of that name could not be "
            f"downloaded ({hub.reason(error)}). Without a network, "
            f"fetch its folder elsewhere and name that"
        ) from error


def missing_file(folder: Path) -> str:
    """Name of the first file that a pipeline or CLIP folder lacks, empty if it is complete."""
    if (folder / _INDEX).is_file():
        index = foreign.read_object(folder / _INDEX)
        second = ["text_encoder_2"] if "text_encoder_2" in index else []
        towers = [folder / name for name in [*_WEIGHTS, *second]]
    else:
        towers = [folder]
        if not (folder / "preprocessor_config.json").is_file():
            return "preprocessor_config.json"
    for tower in towers:
        if not (tower / "config.json").is_file():
            return str((tower / "config.json").relative_to(folder))
        # Weights of a variant have it in their name: `model.fp16.safetensors`.
        if not any(path.name.count(".") == 1 for path in tower.glob("*.safetensors")):
            return f"safetensors weights in {tower.relative_to(folder)}/"
    return ""


def model_folders(settings: DiffusionSettings) -> ModelFolders:
    """Folders of all models, after checks that their kinds are right and fit together.

    Raises:
        SettingsError: they do not, or packages are missing.
    """
    if find_spec("diffusers") is None or find_spec("transformers") is None:
        raise SettingsError(
            "counterfactuals.image_generator: 'diffusion' needs the packages diffusers and "
            f"transformers: {pip_install('diffusion')}"
        )
    pipeline = local_folder(settings.model, f"{KEY}.model")
    kind = _check_pipeline(pipeline)
    if not settings.injection:
        return ModelFolders(pipeline, None, None)
    if kind not in _ONE_ENCODER:
        raise SettingsError(
            f"{KEY}.model: features are injected into the prompt of one CLIP text encoder, {kind} "
            f"has another; choose a model with one ({', '.join(_ONE_ENCODER)}), {_OR_NO_INJECTION}"
        )
    if settings.vision is None:
        tower, preprocessing = pipeline / "image_encoder", pipeline / "feature_extractor"
        if not tower.is_dir() or not preprocessing.is_dir():
            raise SettingsError(
                f"{KEY}.vision: the model brings no image_encoder with a feature_extractor; name "
                f"the CLIP that its text encoder belongs to, {_OR_NO_INJECTION}"
            )
    else:
        tower = preprocessing = local_folder(settings.vision, f"{KEY}.vision")
        if lack := missing_file(tower):
            raise SettingsError(f"{KEY}.vision: '{tower}' is no CLIP, it has no {lack}")
    _check_embedding_width(pipeline, tower)
    return ModelFolders(pipeline, tower, preprocessing)


def _check_pipeline(folder: Path) -> str:
    """Raise an error if a pipeline's folder cannot be used.

    Returns the pipeline class's name.
    """
    if not (folder / _INDEX).is_file():
        raise SettingsError(f"{KEY}.model: '{folder}' is no pipeline, it has no {_INDEX}")
    index = foreign.read_object(folder / _INDEX)
    kind = index.get("_class_name")
    if kind not in _KINDS:
        raise SettingsError(
            f"{KEY}.model: '{folder}' is a {kind}; expected one of {', '.join(_KINDS)}"
        )
    if lack := missing_file(folder):
        raise SettingsError(f"{KEY}.model: '{folder}' has no {lack}")
    others = {
        name: part[0]
        for name, part in index.items()
        if isinstance(part, list) and name != "safety_checker"  # which is not loaded
        if part[0] not in (None, *_LIBRARIES)
    }
    if others:
        raise SettingsError(
            f"{KEY}.model: '{folder}' wants code of its own ({others}), which is not run; "
            f"expected parts of {' and '.join(_LIBRARIES)} alone"
        )
    if foreign.read_object(folder / "vae" / "config.json").get("latents_mean") is not None:
        raise SettingsError(
            f"{KEY}.model: the VAE of '{folder}' shifts its latents (latents_mean), which is not "
            "supported; choose another model"
        )
    return str(kind)


def _check_embedding_width(pipeline: Path, tower: Path) -> None:
    """Raise an error unless image embeddings are as wide as the prompt's token embeddings."""
    from transformers import CLIPTextConfig, CLIPVisionConfig

    kind = foreign.read_object(tower / "config.json").get("model_type")
    if kind not in ("clip", "clip_vision_model"):
        raise SettingsError(
            f"{KEY}.vision: '{tower}' is a '{kind}', expected a CLIP, {_OR_NO_INJECTION}"
        )
    got = CLIPVisionConfig.from_pretrained(tower).projection_dim
    wanted = CLIPTextConfig.from_pretrained(pipeline / "text_encoder").hidden_size
    if got != wanted:
        raise SettingsError(
            f"{KEY}.vision: image embeddings are {got} wide, the prompt's {wanted}; name the "
            f"CLIP that the model's text encoder belongs to, {_OR_NO_INJECTION}"
        )


def load_pipeline(folder: Path, dtype: torch.dtype, device: str) -> Any:
    """Load a diffusers pipeline without its safety checker, which blackens some images.

    Raises:
        SettingsError: its files cannot be read.
    """
    import diffusers
    import torch

    kind = getattr(diffusers, foreign.read_object(folder / _INDEX)["_class_name"])
    unwanted: dict[str, Any] = {"image_encoder": None, "feature_extractor": None}
    if kind.__name__ in _ONE_ENCODER:
        unwanted |= {"safety_checker": None, "requires_safety_checker": False}
    pipe = _from_pretrained(kind, folder, "model", dtype=dtype, **unwanted)
    pipe.set_progress_bar_config(disable=True)
    pipe.to(device)
    if dtype == torch.float16 and pipe.vae.config.force_upcast:
        pipe.vae.to(torch.float32)  # its activations leave the range of float16
    return pipe


def load_vision(places: ModelFolders, dtype: torch.dtype, device: str) -> tuple[Any, Any]:
    """Load the CLIP image tower and its preprocessing.

    Raises:
        SettingsError: its files cannot be read.
    """
    from transformers import CLIPImageProcessor, CLIPVisionModelWithProjection

    assert places.tower is not None and places.preprocessing is not None
    encoder = _from_pretrained(CLIPVisionModelWithProjection, places.tower, "vision", dtype=dtype)
    preprocess = CLIPImageProcessor.from_pretrained(places.preprocessing, local_files_only=True)
    return encoder.to(device).eval(), preprocess


def load_vgg(adain: DiffusionAdainSettings) -> tuple[Sequential, Sequential]:
    """Load the VGG encoder and decoder for style transfer, on the CPU.

    Raises:
        SettingsError: their files cannot be read.
    """
    encoder, decoder = Path(adain.vgg or "").expanduser(), Path(adain.decoder or "").expanduser()
    return (
        style.load(style.encoder(), encoder, f"{KEY}.adain.vgg"),
        style.load(style.decoder(), decoder, f"{KEY}.adain.decoder"),
    )


def _from_pretrained(kind: Any, folder: Path, key: str, **how: Any) -> Any:
    """Load a model from safetensors in a folder, without using the network or foreign code."""
    from safetensors import SafetensorError

    try:
        safe = {"use_safetensors": True, "local_files_only": True, "trust_remote_code": False}
        return kind.from_pretrained(folder, **safe, **how)
    except (OSError, ValueError, RuntimeError, SafetensorError) as error:
        raise SettingsError(f"{KEY}.{key}: '{folder}' cannot be loaded ({error})") from error
