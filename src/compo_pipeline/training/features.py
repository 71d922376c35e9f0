"""Features of a frozen image tower: every image of a run embedded once, before training.

Shapes: n images, P patches, D width of the joint space.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from compo_pipeline.compute import Compute
from compo_pipeline.configuration import SettingsError
from compo_pipeline.methods.contract import ImageInput
from compo_pipeline.models.dense import encode_images_densely
from compo_pipeline.models.encoding import encode_images
from compo_pipeline.models.loading import LoadedModel
from compo_pipeline.progress import track
from compo_pipeline.training.reading import TensorReader

# Towers round by the number of images that they get at a time. It is always this one, so that a
# image has the same features beside any others: a resumed run ends as an uninterrupted one.
BATCH = 256


@dataclass(frozen=True, eq=False)
class Features:
    """Embeddings by image.

    Attributes:
        rows: row of each image.
        values: [n, D], normalised, on the training device.
        patches: [n, P, D], projected, in the precision of training; None where no loss reads them.
    """

    rows: dict[ImageInput, int]
    values: Tensor
    patches: Tensor | None = None

    def joined(self, more: Features) -> Features:
        """These and others of the same kind, as one table; an empty one may be of any kind."""
        if not self.rows:
            return more
        rows = {image: len(self.rows) + row for image, row in more.rows.items()}
        patches = None
        if self.patches is not None and more.patches is not None:
            patches = torch.cat([self.patches, more.patches])
        return Features({**self.rows, **rows}, torch.cat([self.values, more.values]), patches)


class _Pixels(Dataset[Tensor]):
    """Images in chunks of pixels."""

    def __init__(self, images: Sequence[ImageInput], reader: TensorReader) -> None:
        self.images, self.reader = images, reader

    def __len__(self) -> int:
        return -(-len(self.images) // BATCH)

    def __getitem__(self, index: int) -> Tensor:
        return self.reader.images(self.images[index * BATCH : (index + 1) * BATCH])


@torch.no_grad()
def embed(
    images: Sequence[ImageInput],
    loaded: LoadedModel,
    reader: TensorReader,
    *,
    compute: Compute,
    workers: int,
    patches: bool = False,
) -> Features:
    """Embed images with a frozen tower, in evaluation mode.

    Args:
        images: distinct images.
        loaded: whose image tower embeds, already on the device.
        reader: reads pixels (without feature rows of its own).
        compute: device and precision of the model.
        workers: processes that read.
        patches: keep the patch tokens too.

    Raises:
        SettingsError: they do not fit into memory.
    """
    loaded.model.eval()
    chunks = _Pixels(images, reader)
    loader = DataLoader(chunks, batch_size=None, num_workers=workers)
    pooled, tokens = [], []
    for pixels in track(loader, len(chunks), f"embedding {len(images)} images"):
        with compute.autocast():
            filler = pixels.new_zeros(BATCH - len(pixels), *pixels.shape[1:])
            filled = torch.cat([pixels, filler]).to(compute.device)
            if patches:
                embedded, dense = encode_images_densely(loaded.model, filled, loaded.name)
                # Under autocast they had this precision before they were made float32: nothing is
                # lost.
                tokens.append(dense[: len(pixels)].to(compute.dtype))
            else:
                embedded = encode_images(loaded.model, filled)
            pooled.append(embedded[: len(pixels)])
        if len(pooled) == 1:
            first = [pooled[0], *tokens]
            _refuse_too_many(len(images), sum(part[0].nbytes for part in first), compute.device)
    rows = {image: row for row, image in enumerate(images)}
    return Features(rows, torch.cat(pooled), torch.cat(tokens) if patches else None)


def _refuse_too_many(images: int, each: int, device: torch.device) -> None:
    """Refuse features of `each` bytes an image that the device's memory does not hold."""
    needed, free = images * each, _free(device)
    # Joined, they stand in memory twice for a moment.
    if 2 * needed > free:
        raise SettingsError(
            f"training.cache_features: the features of {images} images take "
            f"{needed / 2**30:.1f} GiB, and as much again to join them; {free / 2**30:.1f} GiB are "
            "free. Set it to false: images are then encoded at each step"
        )


def _free(device: torch.device) -> int:
    """Bytes that the device can still hold."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    import psutil

    return int(psutil.virtual_memory().available)
