"""The command `compo-pipeline`: Kedro's commands on the project, and those that need no project."""

from __future__ import annotations

import sys
from collections.abc import Sequence

# Of `compo_pipeline.project.commands`; anything else is Kedro's, in a project.
_WITHOUT_PROJECT = (["new"], ["doctor"], ["--version"])


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the `compo-pipeline` command line, within a Kedro project or without one."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    if given[:1] in _WITHOUT_PROJECT or not _in_project():
        from compo_pipeline.project.commands import commands

        commands(given, prog_name="compo-pipeline")
        return
    from compo_pipeline.configuration.removed import replacement

    if given and (hint := replacement(f"compo-pipeline {given[0]}")):
        sys.exit(f"Error: no command '{given[0]}'{hint}")
    from kedro.framework.cli.cli import main as kedro

    sys.argv[1:] = given
    kedro()


def _in_project() -> bool:
    """Whether the working directory lies in a Kedro project."""
    from pathlib import Path

    from kedro.utils import find_kedro_project

    return find_kedro_project(Path.cwd()) is not None


if __name__ == "__main__":
    main()
