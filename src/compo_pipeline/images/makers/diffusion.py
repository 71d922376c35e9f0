"""Counterfactual pictures by a few-step text-to-image model, kept close to the real picture.

Source: SPARCL, Sec. 3: the real picture's CLIP features in the prompt's padding (`injection`), and
its channel statistics on the result (`style`).
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from compo_pipeline.configuration import SettingsError
from compo_pipeline.images import decoding
from compo_pipeline.images.injection import has_padding, inject
from compo_pipeline.images.makers.contract import Made, PictureRequest, Unmade
from compo_pipeline.images.style import adain
from compo_pipeline.seeding import digest

if TYPE_CHECKING:
    from PIL.Image import Image
    from torch import Generator, Tensor

log = logging.getLogger(__name__)

KEY = "counterfactuals.diffusion"
HUB_FILES = ("*.json", "*.txt", "*.model", "*.safetensors")
"""What is wanted of a repository of the hub: no weights that could run code."""

_INDEX = "model_index.json"


@dataclass(frozen=True)
class AdainSettings:
    """How the real picture's channel statistics are carried over.

    Attributes:
        weight: 0 leaves the picture as it is, 1 gives it the real one's statistics.
        space: of the VAE's latents or of the pixels; "off" leaves it out.
    """

    weight: float = 0.5
    space: Literal["latents", "pixels", "off"] = "latents"


@dataclass(frozen=True)
class DiffusionSettings:
    """How pictures are generated.

    Attributes:
        model: folder of a text-to-image pipeline as diffusers saves it, safetensors only.
        vision: folder of a CLIP image tower with projection, whose embeddings are as wide as the
            model's prompt; null takes the model's own `image_encoder`.
        steps: of denoising.
        guidance: scale of the guidance by the prompt; models distilled without it want 0.
        height: of the pictures, in pixels; a multiple of eight, as is the width.
        width: of the pictures, in pixels.
        precision: of weights and arithmetic.
        injection: whether the real picture's features go into the prompt's padding.
        adain: the real picture's statistics.
        batch: pictures at a time; a picture does not depend on its neighbours but for rounding.
        seed: of all pictures, beside each request's own.
    """

    model: str
    vision: str | None = None
    steps: int = 4
    guidance: float = 7.5
    height: int = 512
    width: int = 512
    precision: Literal["fp32", "bf16", "fp16"] = "fp32"
    injection: bool = True
    adain: AdainSettings = field(default_factory=AdainSettings)
    batch: int = 8
    seed: int = 0

    def __post_init__(self) -> None:
        """Refuse what no pipeline can do."""
        for key in ("steps", "batch"):
            if getattr(self, key) < 1:
                raise ValueError(f"{key} must be at least 1, got {getattr(self, key)}")
        for key in ("height", "width"):
            if getattr(self, key) < 8 or getattr(self, key) % 8:
                raise ValueError(f"{key} must be a multiple of 8, got {getattr(self, key)}")
        if not 0 <= self.adain.weight <= 1:
            raise ValueError(f"adain.weight must lie within 0 and 1, got {self.adain.weight}")


def local_folder(name: str) -> Path:
    """The folder of that name.

    Raises:
        SettingsError: there is none.
    """
    folder = Path(name).expanduser()
    if not folder.is_dir():
        raise SettingsError(
            f"{KEY}.model, {KEY}.vision: '{name}' is no folder; expected one as save_pretrained of "
            "diffusers or transformers writes it"
        )
    return folder


class DiffusionMaker:
    """Makes pictures with a text-to-image pipeline of diffusers; loads it when it is first asked.

    Pipelines of one CLIP text encoder take injected features (Stable Diffusion 1 and 2, latent
    consistency models); with `injection` off any text-to-image pipeline on a VAE will do.
    """

    name = "diffusion"

    def __init__(
        self,
        settings: DiffusionSettings,
        device: str = "cpu",
        locate: Callable[[str], Path] = local_folder,
    ) -> None:
        """Keep what is needed to load the model.

        Args:
            settings: how pictures are made.
            device: where.
            locate: the folder of a `model` or `vision`, which may fetch it from elsewhere.
        """
        self._settings, self._device, self._locate = settings, device, locate

    @property
    def settings_hash(self) -> str:
        """Of all settings but the batch; a model is known by its name."""
        values = {k: v for k, v in asdict(self._settings).items() if k != "batch"}
        return f"{digest(self.name, json.dumps(values, sort_keys=True)):016x}"[:12]

    def make(self, requests: Sequence[PictureRequest]) -> Iterator[Made | Unmade]:
        """A picture for each request, in their order; a real picture that cannot be read gives
        none.

        Raises:
            SettingsError: the model cannot be loaded, or its parts do not fit together.
        """
        filled = 0
        for start in range(0, len(requests), self._settings.batch):
            answers: list[Made | Unmade | None] = []
            readable: list[tuple[PictureRequest, Image]] = []
            for request in requests[start : start + self._settings.batch]:
                try:
                    readable.append((request, _read(request.image)))
                    answers.append(None)
                except decoding.PictureError as error:
                    answers.append(Unmade(request, f"the real picture: {error}"))
            pictures, full = self._draw(readable) if readable else ([], 0)
            filled += full
            made = (Made(r, p) for (r, _), p in zip(readable, pictures, strict=True))
            yield from (next(made) if answer is None else answer for answer in answers)
        if filled:
            log.warning(
                "%d of %d prompts fill the text encoder and took no features of their pictures.",
                *(filled, len(requests)),
            )

    def _draw(self, wanted: Sequence[tuple[PictureRequest, Image]]) -> tuple[list[Image], int]:
        """The pictures, and how many prompts were too long for injection."""
        import torch

        settings, pipe = self._settings, self._pipe
        real = [picture for _, picture in wanted]
        with torch.inference_mode():
            prompt, filled = self._prompt([request.text for request, _ in wanted], real)
            latents = pipe(
                **prompt,
                height=settings.height,
                width=settings.width,
                num_inference_steps=settings.steps,
                guidance_scale=settings.guidance,
                generator=[self._generator(request) for request, _ in wanted],
                output_type="latent",
            ).images
            made = self._decoded(latents, real)
            return list(pipe.image_processor.postprocess(made, output_type="pil")), filled

    def _decoded(self, latents: Tensor, real: list[Image]) -> Tensor:
        """Latents as pixels in -1..1, [b, 3, H, W], under the real pictures' statistics."""
        vae, style = self._pipe.vae, self._settings.adain
        if style.space == "latents":
            encoded = vae.encode(self._pixels(real, latents)).latent_dist.mode()
            latents = adain(latents, encoded * vae.config.scaling_factor, style.weight)
        made: Tensor = vae.decode(latents / vae.config.scaling_factor, return_dict=False)[0]
        if style.space == "pixels":
            made = adain(made, self._pixels(real, latents), style.weight)
        return made.clamp(-1, 1)

    def _pixels(self, real: list[Image], like: Tensor) -> Tensor:
        """Real pictures in -1..1, squashed to the size of the made ones, [b, 3, H, W]."""
        settings, processor = self._settings, self._pipe.image_processor
        pixels: Tensor = processor.preprocess(real, settings.height, settings.width)
        return pixels.to(like.device, like.dtype)

    def _generator(self, request: PictureRequest) -> Generator:
        """Random numbers of one picture, drawn on the CPU: the same on any device."""
        import torch

        seed = digest("picture", self._settings.seed, request.seed) % 2**63
        return torch.Generator().manual_seed(seed)

    def _prompt(self, texts: list[str], real: list[Image]) -> tuple[dict[str, Any], int]:
        """What the pipeline is asked with, and how many prompts fill all positions."""
        if not self._settings.injection:
            return {"prompt": texts}, 0
        pipe = self._pipe
        encoder, preprocess = self._vision
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
        filled = len(texts) - int(has_padding(ids, eos).sum())
        return {"prompt_embeds": inject(plain, ids, image, eos)}, filled

    @cached_property
    def _pipe(self) -> Any:
        """The pipeline, without a safety checker: it would black out pictures at random."""
        if find_spec("diffusers") is None or find_spec("transformers") is None:
            raise SettingsError(
                "counterfactuals.maker: 'diffusion' needs the packages diffusers and "
                "transformers: pip install 'compo-pipeline[diffusion]'"
            )
        from diffusers import DiffusionPipeline

        folder = self._locate(self._settings.model)
        if not (folder / _INDEX).is_file():
            raise SettingsError(f"{KEY}.model: '{folder}' is no pipeline, it has no {_INDEX}")
        parts = json.loads((folder / _INDEX).read_text(encoding="utf-8"))
        unchecked: dict[str, Any] = {}
        if "safety_checker" in parts:
            unchecked = {"safety_checker": None, "requires_safety_checker": False}
        untyped: Any = DiffusionPipeline
        try:
            pipe = untyped.from_pretrained(
                folder,
                dtype=self._precision,
                use_safetensors=True,
                local_files_only=True,
                **unchecked,
            )
        except (OSError, ValueError) as error:
            raise SettingsError(
                f"{KEY}.model: '{folder}' cannot be loaded; weights must be safetensors ({error})"
            ) from error
        pipe.set_progress_bar_config(disable=True)
        return pipe.to(self._device)

    @cached_property
    def _vision(self) -> tuple[Any, Any]:
        """The CLIP image tower that fits the prompt, and its preprocessing."""
        pipe, name = self._pipe, self._settings.vision
        encoder: Any
        preprocess: Any
        if name is not None:
            from transformers import CLIPImageProcessor, CLIPVisionModelWithProjection

            folder = self._locate(name)
            encoder = CLIPVisionModelWithProjection.from_pretrained(
                folder, use_safetensors=True, local_files_only=True, dtype=self._precision
            )
            encoder.to(self._device)
            preprocess = CLIPImageProcessor.from_pretrained(folder, local_files_only=True)
        else:
            encoder = getattr(pipe, "image_encoder", None)
            preprocess = getattr(pipe, "feature_extractor", None)
        off = f"or set {KEY}.injection to false"
        if encoder is None or preprocess is None:
            raise SettingsError(
                f"{KEY}.vision: the model brings no image_encoder with a feature_extractor; name "
                f"the folder of the CLIP that its text encoder belongs to, {off}"
            )
        if getattr(pipe, "text_encoder_2", None) or not hasattr(pipe, "encode_prompt"):
            raise SettingsError(
                f"{KEY}.model: features are injected into the prompt of one CLIP text encoder, "
                f"{type(pipe).__name__} has another; choose a model with one, {off}"
            )
        got, wanted = encoder.config.projection_dim, pipe.text_encoder.config.hidden_size
        if got != wanted:
            raise SettingsError(
                f"{KEY}.vision: picture embeddings are {got} wide, the prompt's {wanted}; name the "
                f"CLIP that the model's text encoder belongs to, {off}"
            )
        return encoder.eval(), preprocess

    @property
    def _precision(self) -> Any:
        import torch

        kinds = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
        return kinds[self._settings.precision]


def _read(path: Path) -> Image:
    """The real picture, wherever a link may lead: the path is the project's own."""
    return decoding.load(path.parent, path.name, decoding.Limits(follow_symlinks=True))
