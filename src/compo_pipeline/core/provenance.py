"""Provenance of a result: git commit of the code and command line of the run."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from compo_pipeline.core.next_steps import kedro_run

UNKNOWN_COMMIT = "unknown"


def git_state(folder: Path) -> tuple[str, bool]:
    """Git commit of a folder, and whether files outside data/ have uncommitted changes.

    Without a repository, or without git, the commit is `unknown`.
    """

    def git(*arguments: str) -> str:
        command = ["git", "-C", str(folder), *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    try:
        changes = git("status", "--porcelain", "--", ".", ":(exclude)data")
        return git("rev-parse", "HEAD"), bool(changes)
    except (OSError, subprocess.CalledProcessError):
        return UNKNOWN_COMMIT, False


@dataclass(frozen=True)
class CommandOptions:
    """Options of the running command line (`--env`, `--params`), for commands shown to the user."""

    env: str | None = None
    """Kedro's environment. None is its default."""
    params: dict[str, Any] = field(default_factory=dict)
    """Parameters that `--params` gave."""


@dataclass(frozen=True)
class Site:
    """Paths of all HTML pages that the project writes, and the running command, for their links."""

    command: CommandOptions = field(default_factory=CommandOptions)
    """How the run was started."""
    pages: dict[str, str] = field(default_factory=dict)
    """File of each page, by catalog entry."""

    def page(self, entry: str) -> Path:
        """Path of the HTML page of a catalog entry."""
        return Path(self.pages[entry])

    def folder(self, entry: str) -> Path:
        """Folder of the HTML page of a catalog entry."""
        return self.page(entry).parent

    def run(self, pipeline: str) -> str:
        """Command line that runs a pipeline with the options of this run."""
        return kedro_run(pipeline, self.command.env, self.command.params)

    def facts(self, pipeline: str) -> dict[str, str]:
        """Date, command line and commit to show on a page."""
        commit, dirty = git_state(Path.cwd())
        changes = ", with uncommitted changes" if dirty else ""
        return {
            "date": f"{datetime.now().astimezone():%Y-%m-%d %H:%M %Z}",
            "command": self.run(pipeline),
            "commit": f"{commit[:12]}{changes}",
        }
