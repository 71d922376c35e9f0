"""Commands that need no project."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
from rich.markup import escape

from compo_pipeline import __version__
from compo_pipeline.run import console, offline

offline.disable_telemetry()


class _ProjectlessGroup(click.Group):
    """Click group of commands outside a project; unknown commands get a hint at projects."""

    def resolve_command(self, ctx: click.Context, args: list[str]) -> Any:
        """Resolve the command that the arguments name; raise a usage error for an unknown one."""
        if self.get_command(ctx, args[0]) is None:
            raise click.UsageError(
                f"'{args[0]}' needs a project, and {Path.cwd()} is in none: `cd` into one, or "
                "`compo-pipeline new <folder>` writes one"
            )
        return super().resolve_command(ctx, args)


@click.group(name="compo-pipeline", cls=_ProjectlessGroup)
@click.version_option(__version__, prog_name="compo-pipeline")
def commands() -> None:
    """Commands for fine-tuning CLIP-like models for compositionality.

    In a project there are further commands.
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
    """Print what this machine has: versions, device, precision, disk, extras, network."""
    from kedro.utils import find_kedro_project

    from compo_pipeline.project.doctor import findings

    table = console.table()
    table.add_column("what", no_wrap=True)
    table.add_column("found", overflow="fold")
    for name, found in findings(find_kedro_project(Path.cwd())):
        table.add_row(name, escape(found))
    console.terminal().print(table)
