"""Command-line commands that run outside of a Kedro project, such as `new` and `doctor`."""

from __future__ import annotations

import platform
import re
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path
from typing import Any

import click
from packaging.requirements import Requirement
from rich.markup import escape

from compo_pipeline import __version__
from compo_pipeline.core import console, offline

_LIBRARIES = ("torch", "open_clip_torch", "kedro", "mlflow", "dvc", "spacy", "optuna")
_GB = 10**9

offline.disable_telemetry()


class _ProjectlessGroup(click.Group):
    """Click group of commands outside a project.

    Unknown commands get a hint at projects.
    """

    def resolve_command(self, ctx: click.Context, args: list[str]) -> Any:
        """Resolve the command that the arguments name.

        Raises a usage error for an unknown one.
        """
        if self.get_command(ctx, args[0]) is None:
            raise click.UsageError(
                f"'{args[0]}' needs a project, and {Path.cwd()} is in none: `cd` into one, or "
                "`compo-pipeline new <folder>` writes one"
            )
        return super().resolve_command(ctx, args)


@click.group(name="compo-pipeline", cls=_ProjectlessGroup)
@click.version_option(__version__, prog_name="compo-pipeline")
def commands() -> None:
    """Fine-tune CLIP-like models for compositionality, evaluate, register and serve them.

    Most commands need a project, which `compo-pipeline new` writes.
    """


@commands.command()
@click.argument("folder", type=click.Path(path_type=Path))
def new(folder: Path) -> None:
    """Write a new project to FOLDER, with configuration, DVC stages and an example method."""
    from compo_pipeline.project.creation import create

    created = create(folder)
    click.echo(f"Written: {created}. Next:\n\n  cd {created}\n  kedro run --pipeline=train_eval")


@commands.command()
def doctor() -> None:
    """Print what this machine has: versions, device, precision, memory, disk, missing extras."""
    from kedro.utils import find_kedro_project

    table = console.table()
    table.add_column("what", no_wrap=True)
    table.add_column("found", overflow="fold")
    for name, found in findings(find_kedro_project(Path.cwd())):
        table.add_row(name, escape(found))
    console.terminal().print(table)


def findings(project: Path | None) -> Iterator[tuple[str, str]]:
    """Yield name and value of each fact about this machine, in the order to print.

    Args:
        project: folder of the Kedro project, or None outside of a project.
    """
    import psutil
    import torch

    from compo_pipeline.core.compute import cores, resolve
    from compo_pipeline.core.settings import pip_install

    yield "compo-pipeline", f"{__version__} in {Path(__file__).parents[1]}"
    yield "Python", f"{platform.python_version()} on {platform.platform()}"
    yield "libraries", ", ".join(f"{name} {version(name)}" for name in _LIBRARIES)
    yield "project", "none here: `compo-pipeline new <folder>`" if project is None else str(project)
    yield "precision", f"{resolve('auto', 'auto', key='training')}, where settings say `auto`"
    gpus = (torch.cuda.get_device_properties(n) for n in range(torch.cuda.device_count()))
    shown = ", ".join(f"{gpu.name} of {gpu.total_memory / _GB:.0f} GB" for gpu in gpus)
    yield "GPUs", shown or f"none that this torch can use (CUDA {torch.version.cuda})"
    memory, disk = psutil.virtual_memory(), psutil.disk_usage(str(project or Path.cwd()))
    yield "cores", f"{cores()}, the physical ones that this process may use"
    yield "memory", f"{memory.available / _GB:.1f} GB available of {memory.total / _GB:.1f}"
    yield "disk", f"{disk.free / _GB:.1f} GB free of {disk.total / _GB:.1f}"
    for extra, missing in missing_packages().items():
        yield f"extra {extra}", f"needs {', '.join(missing)}: {pip_install(extra)}"


def missing_packages() -> dict[str, list[str]]:
    """Missing or outdated packages, by the optional extra that needs them."""
    found: dict[str, list[str]] = {}
    for needed in map(Requirement, requires("compo-pipeline") or ()):
        marker = needed.marker
        extra = re.search(r"extra == .([\w-]+)", str(marker))
        if not (marker and extra and extra[1] != "dev" and marker.evaluate({"extra": extra[1]})):
            continue
        try:
            there = needed.specifier.contains(version(needed.name), prereleases=True)
        except PackageNotFoundError:
            there = False
        if not there:
            found.setdefault(extra[1], []).append(needed.name)
    return found
