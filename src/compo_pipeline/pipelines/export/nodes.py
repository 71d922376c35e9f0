"""Nodes of the pipeline `export`."""

from __future__ import annotations

import logging
import shutil
from pathlib import Path

from compo_pipeline.evaluation.evaluate import Comparison
from compo_pipeline.models import hf_export, onnx_export
from compo_pipeline.models.loading import load
from compo_pipeline.models.settings import ExportSettings

log = logging.getLogger(__name__)


def export_formats(checkpoint: Path, comparison: Comparison, export: ExportSettings) -> Path:
    """Export the checkpoint to each enabled format; returns a folder with one folder each.

    Raises:
        SettingsError: a package is missing, a format cannot hold the model, or another checkpoint
            was evaluated.
    """
    if export.onnx:  # before any work: the first format may take minutes
        onnx_export.require_packages()
    comparison.require(load(checkpoint).fingerprint)
    folder = checkpoint.with_name(".exporting")
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    if export.hugging_face:
        log.info("Written: %s", hf_export.to_hugging_face(checkpoint, folder / "hugging_face"))
    if export.onnx:
        log.info("Written: %s", onnx_export.to_onnx(checkpoint, folder / "onnx"))
    return folder
