"""Making room for new scenes: what an earlier rendering wrote goes, and nothing else."""

from __future__ import annotations

import logging
import os
import re
from pathlib import Path

from compo_pipeline.configuration import SettingsError
from compo_pipeline.scenes.benchmark import SUGAR_CREPE

log = logging.getLogger(__name__)

# Every file that `dataset.write` makes, for any settings, below its root.
_OURS = re.compile(
    r"(?P<split>train|val|test)/(?P=split)-captions-\d{6,}\.jpg"
    r"|annotations/((captions|instances)_(train|val|test)\.json|scenes_(train|val|test)\.jsonl)"
    r"|benchmarks/(?P<held_out>val|test)/("
    r"images/(?P=held_out)-(benchmark|classification)-\d{6,}\.jpg"
    rf"|sugar_crepe(_pp)?/({'|'.join(SUGAR_CREPE)})\.json"
    r"|zero_shot/(things|colours)\.json|benchmarks\.json)"
)


def clear(root: Path) -> None:
    """Remove the scenes that lie under `root`: images of an earlier, larger or other world would
    stay beside the new ones.

    Links are not followed: one in a file's place goes, its target stays. Hidden files stay.

    Raises:
        SettingsError: anything else lies there, such as a data set of one's own; nothing was
            removed.
    """
    ours: list[Path] = []
    foreign: list[Path] = []
    for path in _visible(root):
        known = not path.is_dir() and _OURS.fullmatch(path.relative_to(root).as_posix())
        (ours if known else foreign).append(path)
    if foreign:
        shown = ", ".join(str(path.relative_to(root)) for path in sorted(foreign)[:3])
        raise SettingsError(
            f"data.root: '{root}' holds what rendering did not put there ({len(foreign)} in all: "
            f"{shown}{', ...' if len(foreign) > 3 else ''}), expected a folder for scenes alone; "
            "set data.root to another folder, or data.format to what this one holds"
        )
    for path in ours:
        path.unlink()
    if ours:
        log.info("Removed %d files of earlier scenes from %s.", len(ours), root)


def _visible(root: Path) -> list[Path]:
    """Files below a folder, and links to folders; hidden ones and what lies in them left out."""
    found = []
    for place, folders, files in os.walk(root):
        folders[:] = [name for name in folders if not name.startswith(".")]
        links = [name for name in folders if Path(place, name).is_symlink()]
        found += [Path(place, name) for name in files + links if not name.startswith(".")]
    return found
