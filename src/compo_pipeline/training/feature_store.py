"""Features of frozen image towers on disk: embedded once, whichever run or process comes first.

A part is one safetensors file of the images that some run lacked; parts only come, none changes.
Deleting the folder is always safe.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock
from safetensors import safe_open
from safetensors.torch import save_file

from compo_pipeline.methods.contract import ImageInput
from compo_pipeline.seeding import digest
from compo_pipeline.training.features import Features


class FeatureStore:
    """Features of one image tower over one set of data, in one precision.

    Args:
        folder: of the parts of all towers.
        decides: all that decides an image's features: tower and preprocessing, data, precision
            and kind of device.
        patches: whether patch tokens are kept too.
        device: where features go.
    """

    def __init__(
        self, folder: Path, decides: Sequence[str], *, patches: bool, device: torch.device
    ) -> None:
        self.folder = folder / f"{digest(*decides, patches):016x}"
        self.patches, self.device = patches, device

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Nobody else embeds meanwhile: who waits finds the images of who came first."""
        self.folder.mkdir(parents=True, exist_ok=True)
        with FileLock(self.folder / "in_use.lock"):
            yield

    def read(self) -> Features:
        """All that is there, on the device."""
        found = Features({}, torch.empty(0, device=self.device))
        for file in sorted(self.folder.glob("*.safetensors")):
            with safe_open(file, framework="pt", device=str(self.device)) as part:
                images = [_image(row) for row in json.loads(part.metadata()["images"])]
                rows = {image: row for row, image in enumerate(images)}
                patches = part.get_tensor("patches") if self.patches else None
                found = found.joined(Features(rows, part.get_tensor("values"), patches))
        return found

    def add(self, features: Features) -> None:
        """Keep features of images that were not there; a kill leaves the part whole or away."""
        images = json.dumps([[list(p.paths), p.axis, p.made] for p in features.rows])
        tensors = {"values": features.values}
        if features.patches is not None:
            tensors["patches"] = features.patches
        self.folder.mkdir(parents=True, exist_ok=True)
        number = len(list(self.folder.glob("*.safetensors")))
        file = self.folder / f"{number:04d}.safetensors"
        partial = file.with_suffix(".partial")
        save_file(tensors, partial, metadata={"images": images})
        partial.replace(file)


def _image(row: list[Any]) -> ImageInput:
    paths, axis, made = row
    return ImageInput(tuple(paths), axis, made)
