"""What a result comes from: the commit of the code, and the command line."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from compo_pipeline.next_steps import kedro_run

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


def page_facts(command: Mapping[str, Any], pipeline: str) -> dict[str, str]:
    """Date, command line and commit of a page.

    Args:
        command: environment and parameters of the command line (`params:command`).
        pipeline: that writes the page.
    """
    commit, dirty = git_state(Path.cwd())
    changes = ", with uncommitted changes" if dirty else ""
    return {
        "date": f"{datetime.now().astimezone():%Y-%m-%d %H:%M %Z}",
        "command": kedro_run(pipeline, command["env"], command["params"]),
        "commit": f"{commit[:12]}{changes}",
    }
