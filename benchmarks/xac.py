"""The cross-attended concept loss in chunks of images, against a loop over the concepts.

    python benchmarks/xac.py

The loop is the loss as the paper prints it (Eq. 6 and 7), one concept after the other. Both give
the loss and its gradients in float32, on one core, and take turns; times are of the processor, the
ratio is the median of the rounds'. Memory is the peak that a fresh process reaches above what it
holds before the loss (VmHWM and VmRSS of Linux), the gradients included. Takes a quarter of an
hour; writes benchmarks/results/xac.json.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import platform
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from rich.console import Console
from torch import Tensor

from compo_pipeline.losses.concept import match_mask, xac

RESULTS = Path(__file__).parent / "results" / "xac.json"
ROUNDS = {"256 x 512": 3, "64 x 150": 15}
CHUNK = 16
CHUNKS = (1, 4, 16, 64, 256)


class Size(NamedTuple):
    """Of a batch: m images, K concepts, P patches, D width of the joint space."""

    images: int
    concepts: int
    patches: int
    width: int


# Of a ViT-B/16's patches and width; of the demo's base and batch.
SIZES = {"256 x 512": Size(256, 512, 196, 768), "64 x 150": Size(64, 150, 64, 192)}


class Inputs(NamedTuple):
    """What the loss is of; all but the owners take a gradient."""

    patches: Tensor  # [m, P, D]
    concepts: Tensor  # [K, D], normalised
    scale: Tensor
    bias: Tensor
    owners: Tensor  # [K]


Loss = Callable[[Inputs], Tensor]


def drawn(size: Size) -> Inputs:
    """Random patches and concepts, a trained model's scale and bias."""
    chance = torch.Generator().manual_seed(0)
    patches = torch.randn(size.images, size.patches, size.width, generator=chance)
    concepts = torch.randn(size.concepts, size.width, generator=chance)
    owners = torch.arange(size.concepts) * size.images // size.concepts
    # Each concept shows in a patch of its image, else all cosines would be near 0.
    patches[owners, torch.arange(size.concepts) % size.patches] += 2 * concepts
    return Inputs(
        patches=patches.requires_grad_(),
        concepts=F.normalize(concepts, dim=-1).requires_grad_(),
        scale=torch.tensor(100.0, requires_grad=True),
        bias=torch.tensor(-30.0, requires_grad=True),
        owners=owners,
    )


def looped(inputs: Inputs) -> Tensor:
    """Eq. 6 and 7, concept by concept."""
    values = F.normalize(inputs.patches, dim=-1)
    images = torch.arange(len(values))
    total = torch.zeros(())
    for concept, owner in zip(inputs.concepts, inputs.owners, strict=True):
        weights = (values @ concept).softmax(dim=-1)
        attended = F.normalize(torch.einsum("mp,mpd->md", weights, values), dim=-1)
        logits = inputs.scale * (attended @ concept) + inputs.bias
        signs = torch.where(images == owner, 1.0, -1.0)
        total = total - F.logsigmoid(signs * logits).sum()
    return total / len(inputs.concepts)


def chunked(inputs: Inputs, chunk: int = CHUNK) -> Tensor:
    """The package's loss."""
    matches = match_mask(inputs.owners, len(inputs.patches))
    return xac(inputs.patches, inputs.concepts, matches, inputs.scale, inputs.bias, chunk)


WAYS: dict[str, Loss] = {"loop": looped, "chunks": chunked}


def worked(loss: Loss, inputs: Inputs) -> tuple[Tensor, dict[str, Tensor]]:
    """The loss and its gradients by name of the input."""
    taking = inputs._asdict()
    del taking["owners"]
    value = loss(inputs)
    gradients = torch.autograd.grad(value, [*taking.values()])
    return value.detach(), dict(zip(taking, gradients, strict=True))


def ready() -> None:
    """One thread, and whatever loads on first use is loaded."""
    torch.set_num_threads(1)
    for loss in WAYS.values():
        worked(loss, drawn(Size(2, 2, 2, 2)))


def timed(inputs: Inputs, rounds: int) -> dict[str, list[float]]:
    """Seconds of every round of both ways."""
    seconds: dict[str, list[float]] = {name: [] for name in WAYS}
    for _ in range(rounds):
        for name, loss in WAYS.items():
            started = time.process_time()
            worked(loss, inputs)
            seconds[name].append(time.process_time() - started)
    return seconds


def apart(inputs: Inputs) -> dict[str, Any]:
    """Largest differences of the two ways, and of what size the values are."""
    (loss, theirs), (ours_loss, ours) = (worked(way, inputs) for way in WAYS.values())
    return {
        "loss": {"value": loss.item(), "difference": (ours_loss - loss).abs().item()},
        "gradients": {
            name: {
                "largest": of_loop.abs().max().item(),
                "difference": (ours[name] - of_loop).abs().max().item(),
            }
            for name, of_loop in theirs.items()
        },
    }


def _status(key: str) -> float:
    """A line of this process's status, in MB; unlike ru_maxrss not inherited from the parent."""
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(key)) * 1024 / 1e6


def peak(loss: Loss, size: Size) -> float:
    """MB that the loss and its gradients take on top of the inputs; asks for a fresh process."""
    ready()
    inputs = drawn(size)
    before = _status("VmRSS:")
    kept = worked(loss, inputs)
    assert kept[0].isfinite()
    return round(_status("VmHWM:") - before, 1)


def memory(size: Size) -> dict[str, float]:
    """Peaks of the loop and of several chunk sizes, each in a process of its own."""
    ways: Mapping[str, Loss] = {
        "loop": looped,
        **{f"chunks of {chunk}": partial(chunked, chunk=chunk) for chunk in CHUNKS},
    }
    fresh = multiprocessing.get_context("spawn")
    peaks = {}
    for name, loss in ways.items():
        with ProcessPoolExecutor(1, mp_context=fresh) as pool:
            peaks[name] = pool.submit(peak, loss, size).result()
    return peaks


def measured(name: str) -> dict[str, Any]:
    """All there is to say of one size."""
    size = SIZES[name]
    inputs = drawn(size)
    seconds = timed(inputs, ROUNDS[name])
    ratios = [a / b for a, b in zip(seconds["loop"], seconds["chunks"], strict=True)]
    return {
        **size._asdict(),
        "seconds": {way: [round(value, 4) for value in of] for way, of in seconds.items()},
        "ratio": round(median(ratios), 1),
        "ratios": [round(min(ratios), 1), round(max(ratios), 1)],
        "apart": apart(inputs),
        "memory_mb": memory(size),
    }


def main() -> None:
    """Measure, print, write."""
    ready()
    told = {
        "torch": torch.__version__,
        "python": platform.python_version(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "chunk": CHUNK,
        "sizes": {name: measured(name) for name in SIZES},
    }
    Console().print(told)
    RESULTS.write_text(json.dumps(told, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
