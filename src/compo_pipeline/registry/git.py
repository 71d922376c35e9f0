"""Which code made a result."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path

UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class GitState:
    """A commit, and whether the working tree differs from it in more than what runs write."""

    commit: str
    dirty: bool


def git_state(folder: Path) -> GitState:
    """The state of the repository around a folder; `unknown` where there is none (or no git)."""
    commit = _git(folder, "rev-parse", "HEAD")
    if commit is None:
        return GitState(UNKNOWN, dirty=False)
    changes = _git(folder, "status", "--porcelain", "--", ".", ":(exclude)data")
    return GitState(commit, dirty=bool(changes))


def _git(folder: Path, *arguments: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), *arguments],
            capture_output=True,
            text=True,
            check=True,
        )
    except (OSError, subprocess.CalledProcessError):
        return None
    return done.stdout.strip()
