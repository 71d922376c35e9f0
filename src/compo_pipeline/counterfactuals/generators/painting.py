"""An image near a real one, painted by a text-to-image pipeline of diffusers.

Source: SPARCL, Sec. 3: the real image's CLIP features in the prompt's padding (`injection`), and
its channel statistics on the result (`style`, `vgg`).

Shapes: b images; pixels [b, 3, H, W] in -1..1 unless it is said otherwise; latents of the VAE.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

from compo_pipeline.counterfactuals.contract import ImageRequest
from compo_pipeline.counterfactuals.generators import loading
from compo_pipeline.counterfactuals.generators.settings import DiffusionSettings
from compo_pipeline.images import vgg
from compo_pipeline.images.injection import has_padding, inject
from compo_pipeline.images.style import adain
from compo_pipeline.seeding import digest

if TYPE_CHECKING:
    from PIL.Image import Image
    from torch import Generator, Tensor
    from torch.nn import Sequential


class Drawing(NamedTuple):
    """An image, None where it came out as no numbers; whether its prompt left no padding."""

    image: Image | None
    full: bool


class Painter:
    """Loads pipeline, image tower and VGG when each is first needed, and keeps them."""

    def __init__(self, settings: DiffusionSettings, folders: loading.Folders, device: str) -> None:
        self._settings, self._folders, self._device = settings, folders, device

    def draw(self, wanted: Sequence[tuple[ImageRequest, Image]]) -> list[Drawing]:
        """A drawing for each request with its real image, all at once."""
        import torch

        settings, pipe = self._settings, self._pipe
        real = [image for _, image in wanted]
        with torch.inference_mode():
            prompt, full = self._prompt([request.text for request, _ in wanted], real)
            latents = pipe(
                **prompt,
                height=settings.height,
                width=settings.width,
                num_inference_steps=settings.steps,
                guidance_scale=settings.guidance,
                generator=[self._generator(request) for request, _ in wanted],
                output_type="latent",
            ).images
            made = self._decoded(latents.to(pipe.vae.dtype), real)
            sound = made.isfinite().flatten(1).all(1).tolist()
            images = pipe.image_processor.postprocess(made.nan_to_num(), output_type="pil")
        return [
            Drawing(image if good else None, filled)
            for image, good, filled in zip(images, sound, full, strict=True)
        ]

    def _decoded(self, latents: Tensor, real: list[Image]) -> Tensor:
        """Latents as pixels in -1..1, [b, 3, H, W], under the real images' statistics."""
        vae, style = self._pipe.vae, self._settings.adain
        if style.space == "latents":
            encoded = vae.encode(self._pixels(real, latents)).latent_dist.mode()
            latents = adain(latents, encoded * vae.config.scaling_factor, style.weight)
        made: Tensor = vae.decode(latents / vae.config.scaling_factor, return_dict=False)[0]
        if style.space == "pixels":
            made = adain(made, self._pixels(real, made), style.weight)
        if style.space == "vgg":
            # In float32, in 0..1: what its weights were trained on.
            pair = (made.float(), self._pixels(real, made.float()))
            content, like = ((pixels / 2 + 0.5).clamp(0, 1) for pixels in pair)
            made = vgg.restyled(content, like, style.weight, *self._vgg) * 2 - 1
        return made.clamp(-1, 1)

    def _pixels(self, real: list[Image], like: Tensor) -> Tensor:
        """Real images in -1..1, squashed to the size of the made ones, [b, 3, H, W]."""
        settings, processor = self._settings, self._pipe.image_processor
        pixels: Tensor = processor.preprocess(real, settings.height, settings.width)
        return pixels.to(like.device, like.dtype)

    def _generator(self, request: ImageRequest) -> Generator:
        """Random numbers of one image, drawn on the CPU: the same on any device."""
        import torch

        seed = digest("picture", self._settings.seed, request.seed) % 2**63
        return torch.Generator().manual_seed(seed)

    def _prompt(self, texts: list[str], real: list[Image]) -> tuple[dict[str, Any], list[bool]]:
        """What the pipeline is asked with, and which prompts fill all positions."""
        if not self._settings.injection:
            return {"prompt": texts}, [False] * len(texts)
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
        full = [not padded for padded in has_padding(ids, eos).tolist()]
        return {"prompt_embeds": inject(plain, ids, image, eos)}, full

    @cached_property
    def _pipe(self) -> Any:
        return loading.load_pipeline(self._folders.pipeline, self._precision, self._device)

    @cached_property
    def _vision(self) -> tuple[Any, Any]:
        return loading.load_vision(self._folders, self._precision, self._device)

    @cached_property
    def _vgg(self) -> tuple[Sequential, Sequential]:
        encoder, decoder = loading.load_vgg(self._settings.adain)
        return encoder.to(self._device), decoder.to(self._device)

    @property
    def _precision(self) -> Any:
        import torch

        kinds = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
        return kinds[self._settings.precision]
