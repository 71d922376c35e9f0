"""The formats of other programs that a checkpoint is written in."""

from __future__ import annotations

import logging
import shutil
from dataclasses import dataclass
from pathlib import Path

from compo_pipeline.models import hf_export, onnx_export

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ExportSettings:
    """The YAML key `export`: which formats are written."""

    hugging_face: bool = True
    onnx: bool = True

    def __post_init__(self) -> None:
        """Nothing to write is a mistake."""
        if not (self.hugging_face or self.onnx):
            raise ValueError("no format is asked for; set export.hugging_face or export.onnx")


def write(checkpoint: Path, settings: ExportSettings, folder: Path) -> None:
    """A folder for each format; one that is switched off is removed, as it may be of older weights.

    Args:
        checkpoint: an open_clip folder.
        settings: which formats.
        folder: for their folders.

    Raises:
        SettingsError: a package is missing, or a format cannot hold the model.
    """
    formats = {
        "hugging_face": (settings.hugging_face, hf_export.needs, hf_export.to_hugging_face),
        "onnx": (settings.onnx, onnx_export.needs, onnx_export.to_onnx),
    }
    # Before any work: the first format may take minutes.
    for asked, needs, _ in formats.values():
        if asked:
            needs()
    for name, (asked, _, export) in formats.items():
        target = folder / name
        if asked:
            log.info("Written: %s", export(checkpoint, target))
        elif target.exists():
            shutil.rmtree(target)
