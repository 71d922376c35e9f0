"""What a GPU makes of the training steps: losses, throughput, memory, several processes.

    make gpu-check                    # or: python benchmarks/speed/gpu_check.py [--steps 20]
    python benchmarks/speed/gpu_check.py --models ViT-B-32-quickgelu --methods sparcl c2lip

CLIC and FSC-CLIP take steps on rendered scenes with open_clip's ViT-B-16 and ViT-L-14 of random
weights, both towers trained, eager and compiled, beside plain CLIP by open_clip's own model, loss
and torch's AdamW in the same process. The batches are the same in each precision, and lie on the
device: a step is forward, backward and optimiser. The losses of the first step are compared with
the one in fp32, of plain CLIP with open_clip's. FLOPs are those of torch's counter for one step of
the way; the share of the peak (MFU) is given for GPUs whose dense peak is known here. With --runs,
1,000 steps of the demo's recipe run as a user would run them and, where there are two GPUs, 20
steps by one process and by two.

No method is started after --minutes: the check without --runs is to end within 12 minutes on one
GPU. What that leaves out is listed as not run; options choose other models, methods and
precisions. Without a GPU, the shipped base takes a few steps on the processor, and the rest is
listed as not run. Writes gpu_check.json and gpu_check.md.
"""

from __future__ import annotations

import argparse
import copy
import gc
import json
import math
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import open_clip
import torch
from torch.utils.flop_counter import FlopCounterMode

from compo_pipeline.core.compute import Compute, environment, moved
from compo_pipeline.methods.contract import Method
from compo_pipeline.methods.registry import build
from compo_pipeline.methods.views import write
from compo_pipeline.models.loading import LoadedModel, give_bias, load
from compo_pipeline.models.settings import ModelSettings
from compo_pipeline.training.batches import Batches
from compo_pipeline.training.encoder import ModelEncoder
from compo_pipeline.training.optimisation import AmpOptimizer, adamw, freeze, speed_up
from compo_pipeline.training.preprocessing import ModelPreprocessor
from compo_pipeline.training.settings import OptimizerSettings, TrainingSettings
from training_speed import Data

METHODS = ("clip", "clic", "fsc_clip", "sparcl", "c2lip")
# Architecture and the batch that fits 40 GB with both towers trained in bf16.
ON_GPU = {"ViT-B-32-quickgelu": 256, "ViT-B-16-quickgelu": 128, "ViT-L-14-quickgelu": 48}
ON_CPU = {"scenes-base": 16}
# Of dense products in bf16 and fp16 with accumulation in fp32, by NVIDIA's data sheets.
PEAK_TFLOPS = {
    "A100": 312,
    "H100": 989,
    "H200": 989,
    "L4": 121,
    "L40": 181,
    "A10": 125,
    "V100": 125,
}
FIRST, PAPER = "open_clip", "CLIP by open_clip's own step"
RATE = 1e-5
OPTIMIZER = OptimizerSettings(RATE, RATE, RATE)
NOT_RUN = "not run"
COMPILED = "bf16, compiled"
# Losses of one step in a lower precision: from those in fp32, relative where these are above 1.
TOLERANCE = {"bf16": 0.02, "fp16": 0.01, COMPILED: 0.02}


class Step:
    """Training steps of one way, on batches that lie on the device.

    Args:
        loaded: the model, on the device.
        losses: a batch to the loss of a step.
        batches: for the steps, in turn.
        compute: device and precision.
    """

    def __init__(
        self,
        loaded: LoadedModel,
        losses: Callable[[Any], Any],
        batches: list[Any],
        compute: Compute,
    ) -> None:
        self.optimizer = AmpOptimizer(adamw(loaded.model, OPTIMIZER), compute, 1.0)
        self.losses, self.batches, self.compute = losses, batches, compute

    def __call__(self, number: int) -> float:
        """Take a step; its loss, for which the device is waited for."""
        loss = self.losses(self.batches[number % len(self.batches)])
        self.optimizer.backward(loss)
        self.optimizer.step(RATE)
        return float(loss.detach())


@cache
def base(architecture: str) -> LoadedModel:
    """The shipped base, or random weights of an architecture, which take long to draw."""
    return load(ModelSettings(architecture))


def loaded_for(architecture: str, method: Method, device: torch.device) -> LoadedModel:
    """A copy of the base with what the method adds."""
    loaded = copy.deepcopy(base(architecture))
    if method.bias is not None:
        loaded = give_bias(loaded, method.bias)
    return loaded.to(device)


def ours(
    architecture: str, method: Method, compute: Compute, batches: list[Any], *, compiled: bool
) -> Step:
    """The package's step."""
    loaded = loaded_for(architecture, method, compute.device)
    loaded.model.train()
    freeze(loaded.model, method.trains, scale=True, frozen=())
    recipe_of_step = TrainingSettings(1, 2, OPTIMIZER, compile=compiled)
    speed_up(loaded.model, recipe_of_step, compute.device)
    encoder = ModelEncoder(loaded.model, loaded.name, None, True, compute)

    def loss(batch: Any) -> Any:
        terms = method.loss(encoder, batch)
        return torch.stack([weight * value for value, weight in terms.values()]).sum()

    return Step(loaded, loss, batches, compute)


def plain(architecture: str, method: Method, compute: Compute, batches: list[Any]) -> Step:
    """CLIP's step with open_clip's forward pass and loss, on the images and texts of plain CLIP."""
    loaded = loaded_for(architecture, method, compute.device)
    loaded.model.train()
    own = open_clip.ClipLoss()

    def loss(batch: Any) -> Any:
        with compute.autocast():
            images, texts, scale = loaded.model(batch.images, batch.texts)[:3]
            return own(images, texts, scale)

    return Step(loaded, loss, batches, compute)


def batches_of(
    architecture: str, method: Method, data: Data, folder: Path, batch: int, device: torch.device
) -> list[Any]:
    """A few batches of a method, on the device."""
    views = folder / method.name
    if not views.exists():
        write(method, data.captions, data.context, 1, views)
    reader = ModelPreprocessor(
        loaded_for(architecture, method, torch.device("cpu")),
        data.root,
        None,
        counterfactual_images=data.counterfactual_images,
    )
    recipe = TrainingSettings(2, batch, OPTIMIZER, max_steps=2)
    made = Batches(data.captions, views, method, reader, recipe, 0)
    return [moved(made[number][0].batch, device) for number in range(len(made))]


def counted(step: Step) -> int:
    """FLOPs of a step, by torch's counter; under it, nothing that is compiled runs as such."""
    with FlopCounterMode(display=False) as counter:
        step(0)
    return int(counter.get_total_flops())


def timed(step: Step, flops: int, steps: int, batch: int, device: torch.device) -> dict[str, Any]:
    """Images a second, memory and FLOP/s of a way's steps; the first two steps warm up."""
    cuda = device.type == "cuda"
    if cuda:
        torch.cuda.reset_peak_memory_stats(device)
    for number in range(2):
        step(number)
    started = time.perf_counter()
    losses = [step(number) for number in range(steps)]
    seconds = (time.perf_counter() - started) / steps
    name = torch.cuda.get_device_name(device) if cuda else ""
    peak = next((value for key, value in PEAK_TFLOPS.items() if key in name.split("-")[0]), None)
    low = step.compute.precision != "fp32"
    return {
        "rows a second": batch / seconds,
        "seconds a step": seconds,
        "TFLOP a step": flops / 1e12,
        "TFLOP/s": flops / seconds / 1e12,
        "MFU": flops / seconds / 1e12 / peak if peak and low else None,
        "memory GB": torch.cuda.max_memory_allocated(device) / 1e9 if cuda else None,
        "finite": all(map(math.isfinite, losses)),
    }


def check(
    architecture: str,
    batch: int,
    name: str,
    data: Data,
    folder: Path,
    device: torch.device,
    steps: int,
    ways: Sequence[str],
) -> Iterator[dict[str, Any]]:
    """Losses and speed of a method in each precision, fp32 first."""
    method = build(name, {}, {"trains": ["image", "text"]})
    batches = batches_of(architecture, method, data, folder, batch, device)
    # Of the first way in fp32: plain CLIP's is open_clip's own.
    reference: float | None = None
    flops: dict[str, int] = {}
    for way in ways:
        precision, _, compiled = way.partition(", ")
        compute = Compute(device, precision)  # type: ignore[arg-type]
        row = {"model": architecture, "method": name, "precision": way, "batch": batch}
        for kind in (FIRST, "ours") if name == "clip" and not compiled else ("ours",):
            try:
                step = (
                    plain(architecture, method, compute, batches)
                    if kind == FIRST
                    else ours(architecture, method, compute, batches, compiled=bool(compiled))
                )
                # The loss of the untrained weights, and the steps from there on.
                loss = step(0)
                reference = loss if reference is None else reference
                apart = abs(loss - reference) / max(abs(reference), 1.0)
                if kind not in flops:
                    flops[kind] = counted(step)
                found: dict[str, Any] = {"loss": loss, "loss apart": apart}
                found |= timed(step, flops[kind], steps, batch, device)
            except Exception as error:  # noqa: BLE001 - a row of the table; the others are measured
                message = (str(error).strip() or "no message").splitlines()[0]
                found = {"error": f"{type(error).__name__}: {message[:200]}"}
            yield row | {"step": kind} | found
            step = None  # type: ignore[assignment]
            gc.collect()
            if device.type == "cuda":
                torch.cuda.empty_cache()
                torch._dynamo.reset()


def recipe(steps: int, params: str = "") -> dict[str, Any]:
    """Steps of the demo's recipe as a user runs them, images decoded and encoded at each step."""
    given = f"training.max_steps={steps},training.cache_features=false,evaluation.control=false"
    given += f",training.overwrite=true{params}"
    started = time.perf_counter()
    command = [sys.executable, "-m", "kedro", "run", "--pipelines=ingest,validation,foils,"]
    command[-1] += "counterfactuals,views,training"
    done = subprocess.run(
        [*command, f"--params={given}"], capture_output=True, text=True, check=False
    )
    lines = [line for line in done.stdout.splitlines() if "loss" in line or "Error" in line]
    return {
        "steps": steps,
        "status": done.returncode,
        "seconds": time.perf_counter() - started,
        "last line": lines[-1] if lines else done.stderr[-500:],
    }


def markdown(found: dict[str, Any]) -> str:
    """One table, and what was not run."""
    lines = [
        f"`python benchmarks/speed/gpu_check.py`: {found['machine']}.",
        "",
        "| model | method | precision | step | loss apart from fp32 | rows a second | ratio to "
        "open_clip's | TFLOP/s | MFU | memory, GB |",
        f"|{' --- |' * 10}",
    ]
    reference = {
        (row["model"], row["precision"].partition(",")[0]): row.get("rows a second")
        for row in found["steps"]
        if row["step"] == FIRST
    }
    for row in found["steps"]:
        if "error" in row:
            cells = [row["error"], *[""] * 5]
        else:
            other = reference.get((row["model"], row["precision"].partition(",")[0]))
            apart = f"{row['loss apart']:.1e}{'' if row['within tolerance'] else ' (too far)'}"
            ratio = f"{row['rows a second'] / other:.2f}" if other else ""
            mfu = "unknown" if row["MFU"] is None else f"{row['MFU']:.0%}"
            memory = "unknown" if row["memory GB"] is None else f"{row['memory GB']:.1f}"
            speed = [f"{row['rows a second']:.1f}", ratio, f"{row['TFLOP/s']:.2f}"]
            cells = [apart, *speed, mfu, memory]
        step = PAPER if row["step"] == FIRST else "the package's"
        own = [row["model"], row["method"], row["precision"], step, *cells]
        lines.append(f"| {' | '.join(own)} |")
    lines += ["", "| check | result |", "| --- | --- |"]
    lines += [
        f"| {name} | {value if isinstance(value, str) else json.dumps(value)} |"
        for name, value in found["runs"].items()
    ]
    return "\n".join([*lines, ""])


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, and write the table; the number of rows that failed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--out", type=Path, default=Path("build/gpu_check"))
    parser.add_argument("--minutes", type=float, default=9, help="after which no method starts")
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=METHODS[:3])
    parser.add_argument("--compiled", nargs="*", choices=METHODS, default=METHODS[1:3])
    parser.add_argument("--models", nargs="*", choices=ON_GPU, default=[*ON_GPU][1:])
    parser.add_argument("--fp16", action="store_true")
    parser.add_argument("--runs", action="store_true")
    options = parser.parse_args(arguments)
    cuda = torch.cuda.is_available()
    device = torch.device("cuda" if cuda else "cpu")
    chosen = {name: batch for name, batch in ON_GPU.items() if name in options.models}
    models, steps = (chosen, options.steps) if cuda else (ON_CPU, 3)
    end = time.monotonic() + 60 * options.minutes
    found: dict[str, Any] = {"machine": environment(device), "steps": [], "runs": {}}
    options.out.mkdir(parents=True, exist_ok=True)

    def save() -> None:
        (options.out / "gpu_check.json").write_text(json.dumps(found, indent=1) + "\n")
        (options.out / "gpu_check.md").write_text(markdown(found))

    with tempfile.TemporaryDirectory() as name:
        data = Data(Path(name))
        for architecture, batch in models.items():
            folder = Path(name) / architecture
            folder.mkdir()
            for method in options.methods:
                if time.monotonic() > end:
                    late = f"{NOT_RUN}: {options.minutes:g} minutes were over"
                    found["runs"][f"{architecture}, {method}"] = late
                    continue
                ways = ["fp32", "bf16"]
                if cuda:
                    ways += ["fp16"] * options.fp16 + [COMPILED] * (method in options.compiled)
                for row in check(architecture, batch, method, data, folder, device, steps, ways):
                    limit = TOLERANCE.get(row["precision"], 1e-4)
                    row["within tolerance"] = row.get("loss apart", math.inf) <= limit
                    found["steps"].append(row)
                    print(json.dumps(row), flush=True)
                    save()
    for architecture in [] if cuda else ON_GPU:
        found["runs"][f"{architecture}, every method and precision"] = f"{NOT_RUN}: no GPU"
    recipes: dict[str, Callable[[], dict[str, Any]]] = {
        "1,000 steps of CLIC's recipe on rendered scenes": lambda: recipe(1000),
        "20 steps by two processes (NCCL)": lambda: recipe(
            20, ",training.distributed.nproc_per_node=2,seed=1"
        ),
    }
    for place, (what, run) in enumerate(recipes.items()):
        lacks = "one GPU" if cuda else "no GPU"
        if torch.cuda.device_count() > place:
            lacks = "" if options.runs else "--runs runs it"
        found["runs"][what] = f"{NOT_RUN}: {lacks}" if lacks else run()
        save()
    print(markdown(found))
    failed = [row for row in found["steps"] if not row["within tolerance"]]
    failed += [one for one in found["runs"].values() if isinstance(one, dict) and one["status"]]
    return len(failed)


if __name__ == "__main__":
    sys.exit(main())
