"""Write the checkpoint in the formats of other programs."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ExportSettings:
    """Which formats are written.

    Attributes:
        hugging_face: a folder for transformers.
        onnx: a file for each tower.
    """

    hugging_face: bool = True
    onnx: bool = True


def export_formats(checkpoint: Path, export: Mapping[str, Any], folder: str) -> Path:
    """A folder for each format; one that is switched off is removed, as it may be of older weights.

    Raises:
        SettingsError: no format is asked for, a package is missing, or a format cannot hold the
            model.
    """
    from compo_pipeline.configuration import SettingsError, parse
    from compo_pipeline.models import hf_export, onnx_export

    settings = parse(ExportSettings, export, "export")
    formats = {
        "hugging_face": (settings.hugging_face, hf_export.needs, hf_export.to_hugging_face),
        "onnx": (settings.onnx, onnx_export.needs, onnx_export.to_onnx),
    }
    if not any(asked for asked, _, _ in formats.values()):
        raise SettingsError(
            "export: no format is asked for; set export.hugging_face or export.onnx"
        )
    # Before any work: the first format may take minutes.
    for asked, needs, _ in formats.values():
        if asked:
            needs()
    for name, (asked, _, write) in formats.items():
        target = Path(folder) / name
        if asked:
            log.info("Written: %s", write(Path(checkpoint), target))
        elif target.exists():
            shutil.rmtree(target)
    return Path(folder)
