"""Device, precision, attention kernel and processor cores: resolved here for every pipeline.

What `auto` means on which machine is in docs/reference/compute.md. torch is imported by the
functions that need it: `cores` is asked before the number of its threads is set.
"""

from __future__ import annotations

import logging
import os
import platform
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import cache
from itertools import islice
from typing import TYPE_CHECKING, Any, Literal, TypeVar, cast

from compo_pipeline.core.settings import SettingsError

if TYPE_CHECKING:
    import torch

Precision = Literal["fp32", "bf16", "fp16"]
Partition = TypeVar("Partition")
Result = TypeVar("Result")

_DTYPES = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}
# Apple's GPUs (mps) are untried, and only used when they are named.
_DEVICES = ("cpu", "cuda", "mps")

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Compute:
    """A torch device, and the precision of matrix products on it.

    Weights, losses and the optimiser stay in float32 whatever the precision.
    """

    device: torch.device
    precision: Precision

    @property
    def dtype(self) -> torch.dtype:
        """Dtype of a tower's outputs under `autocast`."""
        import torch

        dtype: torch.dtype = getattr(torch, _DTYPES[self.precision])
        return dtype

    @contextmanager
    def autocast(self) -> Iterator[None]:
        """Context manager: matrix products in this precision, attention by the device's kernel."""
        import torch

        low = self.precision != "fp32"
        with (
            torch.autocast(self.device.type, self.dtype if low else None, enabled=low),
            self.attention() if torch.is_grad_enabled() else nullcontext(),
        ):
            yield

    @contextmanager
    def attention(self) -> Iterator[None]:
        """Context manager: run attention by the kernel that trains fastest on the device.

        That is torch's own choice, the fused kernel, except for gradients in bf16 on a CPU: its
        backward pass takes two to five times as long as plain matrix products on 20 to 50 tokens.
        The backward pass needs this too, where it computes checkpointed layers again.
        """
        from torch.nn.attention import SDPBackend, sdpa_kernel

        plain = self.precision != "fp32" and self.device.type == "cpu"
        with sdpa_kernel(SDPBackend.MATH) if plain else nullcontext():
            yield

    def facts(self) -> dict[str, str | int]:
        """Kind and name of the device, precision and number of threads, for the record of a run."""
        import torch

        return {
            "device": self.device.type,
            "hardware": _hardware(self.device),
            "precision": self.precision,
            "threads": torch.get_num_threads(),
        }

    def __str__(self) -> str:
        import torch

        threads = torch.get_num_threads()
        return (
            f"{self.precision} on {self.device} "
            f"({_hardware(self.device)}, {threads} CPU thread{'s' if threads > 1 else ''})"
        )


def resolve(
    device: str,
    precision: str,
    *,
    key: str,
) -> Compute:
    """Device and precision to use on this machine.

    Either may be configured as `auto`.

    Args:
        device: auto, cpu, cuda, cuda:<n> or mps.
        precision: auto, fp32, bf16 or fp16.
        key: the YAML key above both (`training`), for errors.

    Raises:
        SettingsError: there is no such device here, or it does not compute in this precision.
    """
    place = choose_device(device, key=f"{key}.device")
    offered = _precisions(place)
    if precision != "auto" and precision not in offered:
        raise SettingsError(
            f"{key}.precision: '{precision}' is not supported on {place} "
            f"({_hardware(place)}); allowed here: {', '.join(offered)}"
        )
    return Compute(place, offered[0] if precision == "auto" else cast("Precision", precision))


def choose_device(name: str, *, key: str) -> torch.device:
    """The torch device of a configured name.

    `auto` is CUDA where there is a GPU, else the CPU.

    Args:
        name: auto, cpu, cuda, cuda:<n> or mps.
        key: the YAML key, for the error.

    Raises:
        SettingsError: there is no such device here.
    """
    import torch

    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    reason = "no such kind of device"
    try:
        device = torch.device(name)
        if device.type in _DEVICES:
            return torch.empty(0, device=device).device
    except (RuntimeError, AssertionError) as error:
        reason = (str(error).splitlines() or ["no reason given"])[0]
    raise SettingsError(
        f"{key}: '{name}' cannot be used here ({reason}); allowed here: "
        f"{', '.join(_devices_here())}"
    )


def report(key: str, compute: Compute) -> None:
    """Log the resolved device and precision of a YAML key, and warn if another choice is better."""
    log.info("%s: %s", key, compute)
    if compute.precision == "bf16" and not multiplies_bf16(compute.device):
        log.warning("%s: this processor emulates bf16, more slowly than it computes in fp32.", key)
    if compute.device.type == "mps":
        log.warning("%s: mps has not been tried.", key)


def moved(batch: Any, device: torch.device) -> Any:
    """Copy of a NamedTuple of tensors on a device."""
    return type(batch)(*[tensor.to(device, non_blocking=True) for tensor in batch])


def multiplies_bf16(device: torch.device) -> bool:
    """Whether a device has instructions for bf16.

    Where it is emulated, fp32 is faster.
    """
    import torch

    if device.type == "cuda":
        with torch.cuda.device(device):
            return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    if device.type == "cpu":
        has = torch.cpu.get_capabilities()
        return bool(has.get("amx_bf16") or has.get("avx512_bf16"))
    return False


def _precisions(device: torch.device) -> tuple[Precision, ...]:
    """Precisions that may be configured for a device; `auto` stands for the first, the fastest.

    A CPU that emulates bf16 is allowed it, so that a run that was started in bf16 elsewhere can be
    resumed.
    """
    if device.type == "cuda":
        return ("bf16", "fp32", "fp16") if multiplies_bf16(device) else ("fp16", "fp32")
    if device.type == "cpu":
        return ("bf16", "fp32") if multiplies_bf16(device) else ("fp32", "bf16")
    return ("fp32",)


def _devices_here() -> list[str]:
    """Names of the devices on this machine that a configuration may name, with `auto`."""
    import torch

    cards = [f"cuda:{number}" for number in range(torch.cuda.device_count())]
    apple = ["mps"] if torch.backends.mps.is_available() else []
    return ["auto", "cpu", *(["cuda", *cards] if cards else []), *apple]


def _hardware(device: torch.device) -> str:
    """Name of the GPU, or of the processor."""
    import torch

    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    name = torch.cpu.get_capabilities().get("cpu_name")
    return str(name or platform.processor() or platform.machine())


def environment(device: torch.device) -> str:
    """Line with the versions of Python and libraries and the hardware behind a measurement."""
    from importlib.metadata import version

    libraries = ", ".join(f"{name} {version(name)}" for name in ("torch", "open_clip_torch"))
    system = f"Python {platform.python_version()} on {platform.system()} {platform.machine()}"
    return f"{system}, {libraries}, {device.type} ({_hardware(device)})"


@cache
def cores() -> int:
    """Number of physical cores that this process may use.

    Affinity and the CPU quota of its container (cgroup v1 and v2) count; a second hardware thread
    of a core does not: matrix products gain nothing from it.
    """
    import joblib
    import psutil

    allowed: int = joblib.cpu_count()
    return min(allowed, psutil.cpu_count(logical=False) or allowed)


def use_cores(processes: int = 1) -> None:
    """Set torch's threads to this process's share of the cores if `processes` run at once.

    OMP_NUM_THREADS, where the user has set it, is left as it is.
    """
    import torch

    if "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(_cores_per_process(processes))


def use_one_core() -> None:
    """Set torch to one thread, in this thread and in threads that use torch later.

    torch has a number of threads for each thread; a new one begins with the number set last.
    """
    import torch

    torch.set_num_threads(1)


def use_cores_later(processes: int) -> None:
    """Limit a process's threads as `use_cores` does, but without importing torch."""
    if "torch" in sys.modules:
        use_cores(processes)
    else:
        os.environ.setdefault("OMP_NUM_THREADS", str(_cores_per_process(processes)))


def _cores_per_process(processes: int) -> int:
    """Number of cores for each of several processes that run at once, at least one."""
    return max(1, cores() // processes)


def in_order(
    pool: Executor,
    function: Callable[[Partition], Result],
    partitions: Iterable[Partition],
    ahead: int,
) -> Iterator[Result]:
    """Yield results of a function that a pool calls, in order, with at most `ahead` under way.

    The pool is shut down at the end.
    """
    try:
        rest = iter(partitions)
        waiting = deque(pool.submit(function, each) for each in islice(rest, ahead))
        while waiting:
            yield waiting.popleft().result()
            waiting.extend(pool.submit(function, each) for each in islice(rest, 1))
    finally:
        pool.shutdown(cancel_futures=True)
