"""Entry point of the command `compo-pipeline`, which adds its own commands to Kedro's."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from click import Group

# Of `compo_pipeline.project.commands`; anything else is the project's or Kedro's, in a project.
_WITHOUT_PROJECT = (["new"], ["doctor"], ["--version"])


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the `compo-pipeline` command line, within a Kedro project or without one."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    if given[:1] in _WITHOUT_PROJECT or not _in_project():
        from compo_pipeline.project.commands import commands

        commands(given, prog_name="compo-pipeline")
        return
    if not given or given == ["--help"]:
        _project_commands()(["--help"], prog_name="compo-pipeline")
    from compo_pipeline.core.removed import replacement

    if given and (hint := replacement(f"compo-pipeline {given[0]}")):
        sys.exit(f"Error: no command '{given[0]}'{hint}")
    from kedro.framework.cli.cli import main as kedro

    sys.argv[1:] = given
    kedro()


def _project_commands() -> Group:
    """All commands of `compo-pipeline` except Kedro's own, for the help text."""
    import click

    from compo_pipeline.cli import cli
    from compo_pipeline.project.commands import commands

    return click.CommandCollection(
        "compo-pipeline",
        sources=[cli, commands],
        help=commands.help,
        epilog="Kedro's commands work too; `kedro --help` lists them.",
        context_settings={"max_content_width": 120},
    )


def _in_project() -> bool:
    """Whether the working directory lies in a Kedro project."""
    from pathlib import Path

    from kedro.utils import find_kedro_project

    return find_kedro_project(Path.cwd()) is not None


if __name__ == "__main__":
    main()
