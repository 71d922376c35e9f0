"""What this machine has: versions, device, precision, memory, disk, extras, network."""

from __future__ import annotations

import os
import platform
import shutil
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path

from packaging.requirements import Requirement

from compo_pipeline import __version__
from compo_pipeline.configuration.settings import pip_install
from compo_pipeline.run.compute import cores, resolve

_DISTRIBUTION = "compo-pipeline"
_LIBRARIES = (
    "torch",
    "torchvision",
    "open_clip_torch",
    "kedro",
    "mlflow",
    "dvc",
    "spacy",
    "optuna",
)
# Extras for people who change the package, not for those who use it.
_OF_DEVELOPERS = {"dev"}
_GB = 10**9
_SECONDS = 3.0


def findings(project: Path | None) -> Iterator[tuple[str, str]]:
    """Yield name and value of each fact about this machine, in the order to print.

    Args:
        project: folder of the Kedro project; None outside of one.
    """
    import psutil

    system = f"{platform.system()} {platform.release()}, {platform.machine()}"
    yield "compo-pipeline", f"{__version__} in {Path(__file__).parents[1]}"
    yield "Python", f"{platform.python_version()} on {system}"
    yield "libraries", ", ".join(f"{name} {_version(name)}" for name in _LIBRARIES)
    yield "project", "none here: `compo-pipeline new <folder>`" if project is None else str(project)
    yield "precision", f"{resolve('auto', 'auto', key='training')}, where settings say `auto`"
    yield "GPUs", _gpu_names()
    memory = psutil.virtual_memory()
    yield "cores", f"{cores()}, the physical ones that this process may use"
    yield "memory", f"{memory.available / _GB:.1f} GB available of {memory.total / _GB:.1f}"
    disk = shutil.disk_usage(project or Path.cwd())
    yield "disk", f"{disk.free / _GB:.1f} GB free of {disk.total / _GB:.1f}"
    for extra, missing in absent_extras().items():
        needed = f"needs {', '.join(missing)}: {pip_install(extra)}"
        yield f"extra {extra}", needed if missing else "installed"
    yield "model hub", _hub_status()


def absent_extras() -> dict[str, list[str]]:
    """Missing or outdated packages, by the optional extra that needs them."""
    found: dict[str, list[str]] = {}
    for text in requires(_DISTRIBUTION) or ():
        requirement = Requirement(text)
        for extra in _requiring_extras(requirement) - _OF_DEVELOPERS:
            missing = found.setdefault(extra, [])
            if not _is_installed(requirement):
                missing.append(requirement.name)
    return dict(sorted(found.items()))


def _requiring_extras(requirement: Requirement) -> set[str]:
    """Extras of this package that require a dependency on this machine."""
    marker = requirement.marker
    if marker is None or marker.evaluate({"extra": ""}):
        return set()
    names = (part.strip("\"'() ") for part in str(marker).replace("==", " ").split())
    return {name for name in names if name and marker.evaluate({"extra": name})}


def _is_installed(requirement: Requirement) -> bool:
    """Whether an installed package satisfies a requirement."""
    try:
        return requirement.specifier.contains(version(requirement.name), prereleases=True)
    except PackageNotFoundError:
        return False


def _version(name: str) -> str:
    """Installed version of a package, or `missing`."""
    try:
        return version(name)
    except PackageNotFoundError:
        return "missing"


def _gpu_names() -> str:
    """Name and memory of each GPU that torch can use, as text."""
    import torch

    if torch.cuda.is_available():
        cards = (torch.cuda.get_device_properties(k) for k in range(torch.cuda.device_count()))
        return ", ".join(f"{card.name} of {card.total_memory / _GB:.0f} GB" for card in cards)
    if torch.backends.mps.is_available():
        return "Apple's (mps)"
    built = torch.version.cuda
    return "none" if built is None else f"none that this torch for CUDA {built} can use"


def _hub_status() -> str:
    """Whether the Hugging Face hub can be reached, as text."""
    import httpx
    from huggingface_hub import constants

    if os.environ.get("HF_HUB_OFFLINE", "0") not in ("", "0"):
        return "not asked: HF_HUB_OFFLINE is set"
    try:
        httpx.head(constants.ENDPOINT, timeout=_SECONDS)
    except httpx.HTTPError as error:
        reason = f"{constants.ENDPOINT} cannot be reached ({type(error).__name__})"
        return f"{reason}: models come from local folders"
    return f"{constants.ENDPOINT} can be reached"
