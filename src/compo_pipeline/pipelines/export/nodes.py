"""Write the checkpoint in the formats of other programs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any


def export_formats(checkpoint: Path, export: Mapping[str, Any], folder: str) -> Path:
    """The folder that holds one for each format."""
    from compo_pipeline.configuration import parse
    from compo_pipeline.models import formats

    formats.write(checkpoint, parse(formats.ExportSettings, export, "export"), Path(folder))
    return Path(folder)
