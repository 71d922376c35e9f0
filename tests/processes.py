"""Commands that tests run in processes of their own."""

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path


def ran(command: Sequence[str], folder: Path, **more: str) -> subprocess.CompletedProcess[str]:
    """Run a command in a folder with more variables; what it printed, and how it ended."""
    return subprocess.run(
        command,
        cwd=folder,
        env={**os.environ, **more},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
