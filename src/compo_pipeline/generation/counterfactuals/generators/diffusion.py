"""Image generator with a text-to-image pipeline of diffusers, kept close to the real image.

Source: SPARCL, Sec. 3: the real image's CLIP features in the prompt's padding (`injection`), and
its channel statistics on the result (`style`).

What a model's folder cannot be used for is found from its small files, long before weights are
read. Nothing loaded may run code: weights are safetensors, classes those of diffusers and
transformers.

Shapes: b images; pixels [b, 3, H, W] in -1..1 unless it is said otherwise; latents of the VAE.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from compo_pipeline.core.hashing import files_hash, files_in, hash_of
from compo_pipeline.core.seeding import digest
from compo_pipeline.core.settings import SettingsError, pip_install
from compo_pipeline.core.tables import grouped
from compo_pipeline.data.images import decoding, style
from compo_pipeline.data.images.style import adain, has_padding, inject, restyled
from compo_pipeline.generation.counterfactuals.contract import CaptionEditor, ImageRequest, Opening
from compo_pipeline.generation.counterfactuals.settings import (
    DiffusionAdainSettings,
    DiffusionSettings,
)
from compo_pipeline.models import foreign, hub

if TYPE_CHECKING:
    import torch
    from PIL.Image import Image
    from torch import Generator, Tensor
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


log = logging.getLogger(__name__)

_SUFFIXES = (".json", ".txt", ".safetensors")


class DiffusionGenerator:
    """Image generator that runs a text-to-image pipeline of diffusers.

    Pipeline, image tower and VGG are loaded when each is first needed, and cached.

    Pipelines of one CLIP text encoder take injected features (Stable Diffusion 1 and 2, latent
    consistency models); with `injection` off Stable Diffusion XL will do too.
    """

    name = "diffusion"

    def __init__(self, settings: DiffusionSettings, device: str = "cpu") -> None:
        """Check that all models exist and fit together.

        It reads no pipeline weights.

        Raises:
            SettingsError: they do not.
        """
        self._settings, self._device = settings, device
        self._full = 0  # prompts without padding
        self._folders = model_folders(settings)
        log.info("Images will be generated by %s.", self._folders.pipeline)
        # Hash of all settings but the batch size, and of the models' files.
        values = {k: v for k, v in asdict(settings).items() if k != "batch"}
        values["model"] = files_hash(files_in(self._folders.pipeline, _SUFFIXES))
        tower = self._folders.tower
        values["vision"] = files_hash(files_in(tower, _SUFFIXES)) if tower else None
        style = values["adain"]
        if style["space"] == "vgg":
            load_vgg(settings.adain)
            files = ((name, Path(style[name]).expanduser()) for name in ("vgg", "decoder"))
            style |= {"vgg": files_hash(files), "decoder": None}
        self.settings_fingerprint = hash_of(self.name, values)

    def generate(self, requests: Sequence[ImageRequest]) -> Iterator[Image | str]:
        """Yield an image for each request, in order, or why the real image is unreadable.

        Raises:
            SettingsError: the model cannot be loaded, its parts do not fit together, or a batch
                does not fit into the GPU.
        """
        self._full = 0
        for some in grouped(requests, self._settings.batch):
            reals = [_real_image(request.image) for request in some]
            pairs = zip(some, reals, strict=True)
            wanted = [(one, real) for one, real in pairs if not isinstance(real, str)]
            images = iter(self._generate_batch(wanted) if wanted else ())
            for real in reals:
                if isinstance(real, str):
                    yield real
                else:
                    yield next(images) or f"not finite; see {KEY}.precision"
        if self._full:
            log.warning(
                "%d of %d prompts fill the text encoder and took no features of their images.",
                self._full,
                len(requests),
            )

    def _generate_batch(self, wanted: Sequence[tuple[ImageRequest, Image]]) -> list[Image | None]:
        """Generate images for requests, in one batch.

        An image that is not finite is None.
        """
        import torch

        settings, pipe = self._settings, self._pipe
        real = [image for _, image in wanted]
        with torch.inference_mode(), _naming_full_gpu(settings):
            prompt = self._prompt_inputs([request.text for request, _ in wanted], real)
            latents = pipe(
                **prompt,
                height=settings.height,
                width=settings.width,
                num_inference_steps=settings.steps,
                guidance_scale=settings.guidance,
                generator=[self._noise_generator(request) for request, _ in wanted],
                output_type="latent",
            ).images
            pixels = self._decode(latents.to(pipe.vae.dtype), real)
            finite = pixels.isfinite().flatten(1).all(1).tolist()
            images = pipe.image_processor.postprocess(pixels.nan_to_num(), output_type="pil")
        return [image if good else None for image, good in zip(images, finite, strict=True)]

    def _decode(self, latents: Tensor, real: list[Image]) -> Tensor:
        """Decode latents to pixels [b, 3, H, W] in -1..1, with the real images' statistics."""
        from torch.nn.functional import interpolate

        vae, style = self._pipe.vae, self._settings.adain
        if style.space == "latents":
            size = self._settings.height, self._settings.width
            encoded = vae.encode(self._preprocess(real, size, latents)).latent_dist.mode()
            latents = adain(latents, encoded * vae.config.scaling_factor, style.weight)
        pixels: Tensor = vae.decode(latents / vae.config.scaling_factor, return_dict=False)[0]
        if style.size is not None:
            pixels = interpolate(
                pixels, (style.size, style.size), mode="bicubic", antialias=True
            ).clamp(-1, 1)
        size = pixels.shape[-2], pixels.shape[-1]
        if style.space == "pixels":
            pixels = adain(pixels, self._preprocess(real, size, pixels), style.weight)
        if style.space == "vgg":
            # In float32, in 0..1: what its weights were trained on.
            pair = (pixels.float(), self._preprocess(real, size, pixels.float()))
            content, like = ((one / 2 + 0.5).clamp(0, 1) for one in pair)
            pixels = restyled(content, like, style.weight, *self._vgg) * 2 - 1
        return pixels.clamp(-1, 1)

    def _preprocess(self, real: list[Image], size: tuple[int, int], like: Tensor) -> Tensor:
        """Real images as pixels [b, 3, H, W] in -1..1, squashed to a size (H, W)."""
        pixels: Tensor = self._pipe.image_processor.preprocess(real, *size)
        return pixels.to(like.device, like.dtype)

    def _noise_generator(self, request: ImageRequest) -> Generator:
        """Random number generator for one image's noise, on the CPU.

        Thus it is the same on any device.
        """
        import torch

        seed = digest("picture", 0, request.seed) % 2**63
        return torch.Generator().manual_seed(seed)

    def _prompt_inputs(self, texts: list[str], real: list[Image]) -> dict[str, Any]:
        """Prompt arguments for the pipeline.

        Counts the prompts that leave no padding.
        """
        if not self._settings.injection:
            return {"prompt": texts}
        pipe = self._pipe
        encoder, preprocess = self._image_tower
        ids: Tensor = pipe.tokenizer(
            texts,
            padding="max_length",
            max_length=pipe.tokenizer.model_max_length,
            truncation=True,
            return_tensors="pt",
        ).input_ids.to(self._device)
        plain: Tensor = pipe.encode_prompt(texts, self._device, 1, False)[0]
        pixels = preprocess(images=real, return_tensors="pt").pixel_values
        image: Tensor = encoder(pixels.to(encoder.device, encoder.dtype)).image_embeds
        eos = pipe.tokenizer.eos_token_id
        self._full += int((~has_padding(ids, eos)).sum())
        return {"prompt_embeds": inject(plain, ids, image, eos)}

    @cached_property
    def _pipe(self) -> Any:
        """The text-to-image pipeline of diffusers, loaded at first use."""
        return load_pipeline(self._folders.pipeline, self._precision, self._device)

    @cached_property
    def _image_tower(self) -> tuple[Any, Any]:
        """The CLIP image tower and its preprocessing, loaded at first use."""
        return load_vision(self._folders, self._precision, self._device)

    @cached_property
    def _vgg(self) -> tuple[Sequential, Sequential]:
        """VGG encoder and decoder for style transfer, loaded at first use."""
        encoder, decoder = load_vgg(self._settings.adain)
        return encoder.to(self._device), decoder.to(self._device)

    @property
    def _precision(self) -> Any:
        """The torch dtype of the models' weights and arithmetic."""
        import torch

        kinds = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
        return kinds[self._settings.precision]


def _real_image(path: Path) -> Image | str:
    """Real image of a request, or the reason why it cannot be read."""
    try:
        return decoding.load(path.parent, path.name, decoding.Limits(follow_symlinks=True))
    except decoding.ImageError as error:
        return f"the real image: {error}"


@contextmanager
def _naming_full_gpu(settings: DiffusionSettings) -> Iterator[None]:
    """Context manager that raises an error with the keys to change where the GPU is full."""
    import torch

    try:
        yield
    except torch.OutOfMemoryError as error:
        raise SettingsError(
            f"{KEY}.batch: {settings.batch} images of {settings.width} x {settings.height} pixels "
            f"do not fit into the GPU; set a smaller batch, {KEY}.precision to bf16, or a smaller "
            f"{KEY}.height and width ({error}); images so far are stored"
        ) from None


def open_generator(
    settings: DiffusionSettings, _key: str, _opening: Opening, _editor: CaptionEditor
) -> DiffusionGenerator:
    """Create the image generator `diffusion` from its settings, on a GPU if there is one.

    Raises:
        SettingsError: its model cannot be used.
    """
    import torch

    return DiffusionGenerator(settings, "cuda" if torch.cuda.is_available() else "cpu")
