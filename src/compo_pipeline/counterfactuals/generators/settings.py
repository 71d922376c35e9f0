"""How images are generated (`counterfactuals.diffusion`)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

KEY = "counterfactuals.diffusion"

_SMALLEST = 16


@dataclass(frozen=True)
class AdainSettings:
    """How the real image's channel statistics are carried over.

    Attributes:
        weight: 0 leaves the image as it is, 1 gives it the real one's statistics.
        space: of the VAE's latents, of the pixels, or of VGG's relu4_1 features, which need `vgg`
            and `decoder`; `none` leaves it out.
        vgg: file of the encoder's weights; `images.vgg` says which.
        decoder: file of its decoder's.
    """

    weight: float = 0.5
    space: Literal["latents", "pixels", "vgg", "none"] = "latents"
    vgg: str | None = None
    decoder: str | None = None

    def __post_init__(self) -> None:
        """A share, and weights where they are used."""
        if not 0 <= self.weight <= 1:
            raise ValueError(f"weight must lie within 0 and 1, got {self.weight}")
        if self.space == "vgg" and not (self.vgg and self.decoder):
            raise ValueError(
                "space: vgg needs files of your own under vgg and decoder, got "
                f"{self.vgg} and {self.decoder}"
            )


@dataclass(frozen=True)
class DiffusionSettings:
    """How images are generated.

    Attributes:
        model: folder of a text-to-image pipeline as diffusers saves it, or its name on the hub
            (owner/model); safetensors only.
        vision: folder or name of a CLIP with image tower and projection, whose embeddings are as
            wide as the model's prompt; null takes the model's own `image_encoder`.
        steps: of denoising.
        guidance: scale of the guidance by the prompt; models distilled without it want 0.
        height: of the images, in pixels; a multiple of eight, as is the width.
        width: of the images, in pixels.
        precision: of weights and arithmetic.
        injection: whether the real image's features go into the prompt's padding.
        adain: the real image's statistics.
        batch: images at a time, halved where they do not fit into a GPU; an image does not
            depend on its neighbours but for rounding.
        seed: of all images, beside each request's own.
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
            if getattr(self, key) < _SMALLEST or getattr(self, key) % 8:
                raise ValueError(
                    f"{key} must be a multiple of 8, {_SMALLEST} at least, got {getattr(self, key)}"
                )
