"""Counterfactual images by a text-to-image model: batch by batch, with what may go wrong."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from compo_pipeline.configuration import SettingsError
from compo_pipeline.counterfactuals.contract import GeneratedImage, ImageFailure, ImageRequest
from compo_pipeline.counterfactuals.generators import loading
from compo_pipeline.counterfactuals.generators.painting import Drawing, Painter
from compo_pipeline.counterfactuals.generators.settings import KEY, DiffusionSettings
from compo_pipeline.images import decoding
from compo_pipeline.seeding import digest
from compo_pipeline.storage import files_fingerprint

if TYPE_CHECKING:
    from PIL.Image import Image

log = logging.getLogger(__name__)

_SUFFIXES = (".json", ".txt", ".safetensors")


def local_folder(name: str, key: str) -> Path:
    """The folder of that name.

    Raises:
        SettingsError: there is none.
    """
    folder = Path(name).expanduser()
    if not folder.is_dir():
        raise SettingsError(
            f"{key}: '{name}' is no folder; expected one as save_pretrained of diffusers or "
            "transformers writes it"
        )
    return folder


class DiffusionGenerator:
    """Makes images with a text-to-image pipeline of diffusers; loads it when it is first asked.

    Pipelines of one CLIP text encoder take injected features (Stable Diffusion 1 and 2, latent
    consistency models); with `injection` off Stable Diffusion XL will do too.
    """

    name = "diffusion"

    def __init__(
        self,
        settings: DiffusionSettings,
        device: str = "cpu",
        locate: Callable[[str, str], Path] = local_folder,
    ) -> None:
        """Keep what is needed to load the model.

        Args:
            settings: how images are made.
            device: where.
            locate: the folder of a `model` or `vision`, which may fetch it from elsewhere; it is
                given the name and its YAML key.
        """
        self._settings, self._device, self._locate = settings, device, locate
        self._batch = settings.batch

    def check(self) -> None:
        """See that all parts are there and fit together; weights of the pipeline are not read.

        Raises:
            SettingsError: they are not.
        """
        log.info("Images will be drawn by %s.", self._folders.pipeline)
        if self._settings.adain.space == "vgg":
            loading.load_vgg(self._settings.adain)

    @cached_property
    def settings_fingerprint(self) -> str:
        """Of all settings but the batch, and of the models' files, wherever they lie.

        Raises:
            SettingsError: they are not there.
        """
        values = {k: v for k, v in asdict(self._settings).items() if k != "batch"}
        values["model"] = _folder_identity(self._folders.pipeline)
        tower = self._folders.tower
        values["vision"] = _folder_identity(tower) if tower else None
        style = values["adain"]
        if style["space"] == "vgg":
            files = ((name, Path(style[name]).expanduser()) for name in ("vgg", "decoder"))
            style |= {"vgg": files_fingerprint(files), "decoder": None}
        return f"{digest(self.name, json.dumps(values, sort_keys=True)):016x}"[:12]

    def generate(self, requests: Sequence[ImageRequest]) -> Iterator[GeneratedImage | ImageFailure]:
        """An image for each request, in their order; a real image that cannot be read gives
        none.

        Raises:
            SettingsError: the model cannot be loaded, its parts do not fit together, or not even
                one image fits into the GPU.
        """
        filled = start = 0
        while start < len(requests):
            some = requests[start : start + self._batch]
            start += len(some)
            pairs = [(request, _read(request.image)) for request in some]
            wanted = [(request, real) for request, real in pairs if not isinstance(real, str)]
            drawings = iter(self._drawn(wanted) if wanted else ())
            for request, real in pairs:
                if isinstance(real, str):
                    yield ImageFailure(request, real)
                    continue
                drawing = next(drawings)
                filled += drawing.full
                if drawing.image:
                    yield GeneratedImage(request, drawing.image)
                else:
                    yield ImageFailure(request, f"not finite; see {KEY}.precision")
        if filled:
            log.warning(
                "%d of %d prompts fill the text encoder and took no features of their images.",
                *(filled, len(requests)),
            )

    def _drawn(self, wanted: Sequence[tuple[ImageRequest, Image]]) -> list[Drawing]:
        """Drawings of requests with their real images, fewer at a time where the GPU is full."""
        import torch

        try:
            return self._painter.draw(wanted)
        except torch.OutOfMemoryError as error:
            if len(wanted) == 1:
                raise SettingsError(
                    f"{KEY}.batch: not even one image of {self._settings.width} x "
                    f"{self._settings.height} pixels fits into the GPU; set {KEY}.precision to "
                    f"bf16, or choose a smaller {KEY}.height and width ({error})"
                ) from error
        # Outside the handler: what it holds keeps the tensors.
        torch.cuda.empty_cache()
        self._batch = len(wanted) // 2
        log.warning(
            "The GPU is full: from now on %d images at a time (%s.batch).", self._batch, KEY
        )
        drawings: list[Drawing] = []
        while len(drawings) < len(wanted):
            drawings += self._drawn(wanted[len(drawings) :][: self._batch])
        return drawings

    @cached_property
    def _folders(self) -> loading.Folders:
        own = self._settings
        vision = None
        pipeline = self._locate(own.model, f"{KEY}.model")
        if own.injection and own.vision is not None:
            vision = self._locate(own.vision, f"{KEY}.vision")
        return loading.folders(pipeline, vision, own.injection)

    @cached_property
    def _painter(self) -> Painter:
        return Painter(self._settings, self._folders, self._device)


def _read(path: Path) -> Image | str:
    """The real image, wherever a link may lead: the path is the project's own; or why not."""
    try:
        return decoding.load(path.parent, path.name, decoding.Limits(follow_symlinks=True))
    except decoding.ImageError as error:
        return f"the real image: {error}"


def _folder_identity(folder: Path) -> str:
    """Of the configuration and weights in a folder, nothing hidden among them."""
    names = (path.relative_to(folder) for path in sorted(folder.rglob("*")))
    return files_fingerprint(
        (name.as_posix(), folder / name)
        for name in names
        if name.suffix in _SUFFIXES and not any(part.startswith(".") for part in name.parts)
    )
