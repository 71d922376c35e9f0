"""Features of images that a frozen image tower computes once, before training.

Shapes: n images, P patches, D width of the joint space.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, Literal, cast

import psutil
import torch
from filelock import FileLock
from torch import Tensor
from torch.utils.data import DataLoader

from compo_pipeline.core.compute import Compute
from compo_pipeline.core.hashing import hash_of
from compo_pipeline.core.progress import track
from compo_pipeline.core.seeding import digest
from compo_pipeline.core.settings import SettingsError
from compo_pipeline.core.stores import TensorStore
from compo_pipeline.methods.contract import ImageInput, Method
from compo_pipeline.models.dense import encode_images_densely
from compo_pipeline.models.encoding import encode_images, pool_images
from compo_pipeline.models.loading import LoadedModel
from compo_pipeline.training.batches import Batches
from compo_pipeline.training.inputs import TRAINING, TrainingInputs
from compo_pipeline.training.optimisation import projection_alone
from compo_pipeline.training.preprocessing import ModelPreprocessor
from compo_pipeline.training.ranks import ALONE, Ranks

# Towers round by the number of images that they get at a time. It is always this one, so that an
# image has the same features beside any others: a resumed run ends as an uninterrupted one.
BATCH = 256

log = logging.getLogger(__name__)


@dataclass(frozen=True, eq=False)
class Features:
    """Precomputed embeddings of images, on the training device, and the row of each image."""

    rows: Mapping[str, int]
    """Row of each image, by `name_of` it."""

    values: Tensor
    """[n, D], normalised, on the training device; [n, W] where `pooled`."""

    patches: Tensor | None = None
    """[n, P, D], projected, in the precision of training; None where no loss reads them."""

    pooled: bool = False
    """Whether values are inputs of the image projection, which trains, rather than embeddings."""


def frozen_part(
    inputs: TrainingInputs, method: Method, loaded: LoadedModel
) -> Literal["tower", "trunk"] | None:
    """Part of the image tower whose outputs are computed before training, or None.

    It is frozen: the whole tower, or all of it but the projection, which trains.
    """
    settings = inputs.settings
    if not settings.cache_features:
        return None
    if "image" not in method.trains:
        return "tower"
    whole = settings.lora.rank is None and not method.uses_patches
    if whole and projection_alone(loaded.model, settings.frozen):
        return "trunk"
    text = "%s trains more than the image tower's projection: images are encoded at each step."
    log.info(text, method.name)
    return None


def features_of(
    batches: Batches, inputs: TrainingInputs, loaded: LoadedModel, pooled: bool, ranks: Ranks
) -> Features:
    """Features of all images of a training, read from the inputs' `features`, and stored there.

    The batches show them from then on.

    Args:
        batches: batches whose images are embedded.
        inputs: held-out rows, recipe and the folder of stored features.
        loaded: the model whose image tower embeds, on the device.
        pooled: whether they are what the image projection projects.
        ranks: processes that each embed a share.
    """
    patches, settings = batches.method.uses_patches, inputs.settings
    held_out = inputs.held_out.rows if settings.validation.every is not None else ()
    images = batches.images(ImageInput((row.image,)) for row in held_out)
    compute, folder = inputs.compute, None
    device = compute.device
    if inputs.features is not None:
        key = (loaded.image_fingerprint, inputs.data_hash, TRAINING, compute.precision, device.type)
        kind = ["pooled"] * pooled + ["patches"] * patches
        folder = inputs.features / f"{digest(*key, *kind):016x}"
        folder.mkdir(parents=True, exist_ok=True)
    # Several processes of one training would wait for one another.
    with FileLock(folder / "in_use.lock") if folder and ranks.world == 1 else nullcontext():
        store = TensorStore(folder, images)
        if ranks.world > 1 and len({*ranks.gather_values(hash_of([*store.rows]))}) > 1:
            store = TensorStore(folder, ())  # other hosts have other stores
        known = [*store.rows]
        tensors = {name: rows.to(device) for name, rows in store.tensors().items()}
        missing = {name: image for name, image in images.items() if name not in store.rows}
        if missing:
            if known:
                log.info("%d of %d images are embedded already.", len(known), len(images))
            # Few images are embedded by every process, many by each its share.
            sharing = ranks if len(missing) >= ranks.world else ALONE
            own = embed(
                [*missing.values()][sharing.share(len(missing))],
                loaded,
                batches.preprocessor,
                compute=compute,
                workers=settings.workers,
                patches=patches,
                pooled=pooled,
            )
            new = {name: sharing.gather(rows, len(missing)) for name, rows in own.items()}
            if ranks.first:
                store.add(missing, {name: rows.cpu() for name, rows in new.items()})
                store.save()
            if known:
                new = {name: torch.cat([tensors[name], rows]) for name, rows in new.items()}
            tensors = new
    rows = {name: row for row, name in enumerate([*known, *missing])}
    batches.preprocessor.rows = rows
    return Features(rows, **tensors, pooled=pooled)


def embed(
    images: Sequence[ImageInput],
    loaded: LoadedModel,
    preprocessor: ModelPreprocessor,
    *,
    compute: Compute,
    workers: int,
    patches: bool = False,
    pooled: bool = False,
) -> dict[str, Tensor]:
    """Embed images with a frozen tower, in evaluation mode: `values`, and `patches` if wanted.

    Args:
        images: distinct images.
        loaded: model whose image tower embeds, already on the device.
        preprocessor: reads pixels (without feature rows of its own).
        compute: device and precision of the model.
        workers: processes that read.
        patches: return the patch tokens too.
        pooled: whether to return inputs of the image projection rather than embeddings, without
            patches.

    Raises:
        SettingsError: they do not fit into memory.
    """
    loaded.model.eval()
    device, shown = compute.device, cast("Any", images)
    loader = DataLoader(shown, BATCH, collate_fn=preprocessor.images, num_workers=workers)
    found = (_compute_features(pixels, loaded, compute, patches, pooled) for pixels in loader)
    parts: list[dict[str, Tensor]] = []
    for tensors in track(found, len(loader), f"embedding {len(images)} images, batches"):
        parts.append({name: tensor.to(device) for name, tensor in tensors.items()})
        if len(parts) == 1:
            needed = sum(tensor[0].nbytes for tensor in parts[0].values())
            _check_memory(len(images), needed, device)
    return {name: torch.cat([part[name] for part in parts]) for name in parts[0]}


@torch.no_grad()
def _compute_features(
    pixels: Tensor, loaded: LoadedModel, compute: Compute, patches: bool, pooled: bool
) -> dict[str, Tensor]:
    """Features of at most `BATCH` images: `values` [m, D], and `patches` [m, P, D] if wanted."""
    with compute.autocast():
        filler = pixels.new_zeros(BATCH - len(pixels), *pixels.shape[1:])
        filled = torch.cat([pixels, filler]).to(compute.device)
        if not patches:
            encode = pool_images if pooled else encode_images
            return {"values": encode(loaded.model, filled)[: len(pixels)]}
        values, dense = encode_images_densely(loaded.model, filled, loaded.name)
    # Under autocast they had this precision before they were made float32: nothing is lost.
    tokens = dense[: len(pixels)].to(compute.dtype)
    return {"values": values[: len(pixels)], "patches": tokens}


def _check_memory(images: int, image_bytes: int, device: torch.device) -> None:
    """Raise an error if the features of all images do not fit into the device's memory."""
    cuda, needed = device.type == "cuda", images * image_bytes
    free = torch.cuda.mem_get_info(device)[0] if cuda else psutil.virtual_memory().available
    # Joining them needs the memory twice for a moment.
    if 2 * needed > free:
        raise SettingsError(
            f"training.cache_features: the features of {images} images take "
            f"{needed / 2**30:.1f} GiB, and as much again to join them; {free / 2**30:.1f} GiB are "
            "free. Set it to false: images are then encoded at each step"
        )
