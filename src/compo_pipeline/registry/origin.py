"""When, how and from which code a page was made."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from compo_pipeline.next_steps import kedro_run
from compo_pipeline.registry.git import git_state


def origin(command: Mapping[str, Any], pipeline: str) -> dict[str, str]:
    """Date, command line and commit, as a page shows them.

    Args:
        command: environment and parameters as they were typed (`params:command`).
        pipeline: that makes the page and all that it is made of.
    """
    state = git_state(Path.cwd())
    changes = ", with uncommitted changes" if state.dirty else ""
    return {
        "date": f"{datetime.now().astimezone():%Y-%m-%d %H:%M %Z}",
        "command": kedro_run(pipeline, command["env"], command["params"]),
        "commit": f"{state.commit[:12]}{changes}",
    }
