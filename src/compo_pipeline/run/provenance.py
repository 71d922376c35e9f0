"""What a result comes from: the commit of the code, and the command line."""

from __future__ import annotations

import subprocess
from dataclasses import field
from datetime import datetime
from pathlib import Path
from typing import Any

from compo_pipeline.configuration import rehearsal
from compo_pipeline.configuration.settings import settings
from compo_pipeline.run.next_steps import kedro_run

UNKNOWN_COMMIT = "unknown"


def git_state(folder: Path) -> tuple[str, bool]:
    """Commit of the repository around a folder, and whether files outside data/ differ from it.

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


@settings
class CommandOptions:
    """The options of the command line, for commands that are shown to the user."""

    env: str | None = None
    """Kedro's environment; null is its default."""
    params: dict[str, Any] = field(default_factory=dict)
    """What `--params` gave."""


@settings
class Site:
    """All pages that the project writes, and the command that is running: for facts and links."""

    command: CommandOptions = field(default_factory=CommandOptions)
    """How the run was started."""
    pages: dict[str, str] = field(default_factory=dict)
    """File of each page, by catalog entry."""
    rehearsed: int | None = None
    """Training rows of a rehearsal; null for any other run."""

    def page(self, entry: str) -> Path:
        """File of a page."""
        return Path(self.pages[entry])

    def folder(self, entry: str) -> Path:
        """The folder of a catalog entry that is a page."""
        return self.page(entry).parent

    def run(self, pipeline: str) -> str:
        """The command that runs a pipeline with the options of this run."""
        return kedro_run(pipeline, self.command.env, self.command.params)

    def facts(self, pipeline: str) -> dict[str, str]:
        """Date, command line and commit of a page that a pipeline writes; a rehearsal's note."""
        commit, dirty = git_state(Path.cwd())
        changes = ", with uncommitted changes" if dirty else ""
        rows = self.rehearsed
        return {
            **({} if rows is None else {rehearsal.TAG: rehearsal.note(rows)}),
            "date": f"{datetime.now().astimezone():%Y-%m-%d %H:%M %Z}",
            "command": self.run(pipeline),
            "commit": f"{commit[:12]}{changes}",
        }
