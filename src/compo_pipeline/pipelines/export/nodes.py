"""Write the checkpoint in the formats of other programs."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

_log = logging.getLogger(__name__)


def export_formats(checkpoint: Path, export: Mapping[str, Any], folder: str) -> Path:
    """A folder for each format; one that is off is removed, as it may be of older weights.

    Raises:
        SettingsError: a package is missing, or a format cannot hold the model.
    """
    from compo_pipeline.configuration import parse
    from compo_pipeline.models import hf_export, onnx_export
    from compo_pipeline.models.settings import ExportSettings

    settings = parse(ExportSettings, export, "export")
    formats = {
        "hugging_face": (settings.hugging_face, hf_export.needs, hf_export.to_hugging_face),
        "onnx": (settings.onnx, onnx_export.needs, onnx_export.to_onnx),
    }
    # Before any work: the first format may take minutes.
    for wanted, needs, _ in formats.values():
        if wanted:
            needs()
    for name, (wanted, _, write) in formats.items():
        target = Path(folder) / name
        if wanted:
            _log.info("Written: %s", write(checkpoint, target))
        elif target.exists():
            shutil.rmtree(target)
    return Path(folder)
