"""Writing a checkpoint as two ONNX files, one for each tower, for use without torch."""

from __future__ import annotations

import logging
from collections.abc import Callable
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from compo_pipeline.core.files import atomic_folder, write_json
from compo_pipeline.core.hashing import file_hash
from compo_pipeline.core.settings import SettingsError, pip_install
from compo_pipeline.models.hf_preprocessing import fast_tokenizer
from compo_pipeline.models.loading import LoadedModel, load
from compo_pipeline.models.weights import PROBES

log = logging.getLogger(__name__)

IMAGE_FILE, TEXT_FILE, NOTES_FILE = "image.onnx", "text.onnx", "compo_onnx.json"
TOKENIZER_FILE = "tokenizer.json"
# Of any number of a normalised embedding.
TOLERANCE = 1e-3
# A protobuf file ends at 2 GiB; larger weights are in a file beside it.
_MOST_BYTES = 1_900_000_000
# Named in the notes where the ONNX folder has no tokenizer file.
_OPEN_CLIPS = "open_clip.get_tokenizer('local-dir:<folder of the checkpoint>')"
_PACKAGES = ("onnx", "onnxruntime", "onnxscript", "tokenizers")


class NormalisedTower(nn.Module):
    """Module for export: pixels [m, 3, H, W] or token ids [K, T] -> normalised embeddings.

    They are [m, D] or [K, D].
    """

    def __init__(self, model: Any, encode: Callable[[Tensor], Tensor]) -> None:
        """A tower of a model.

        Args:
            model: model of open_clip, whose weights the file holds.
            encode: method `encode_image` or `encode_text` of the model.
        """
        super().__init__()
        self.model, self.encode = model, encode

    def forward(self, rows: Tensor) -> Tensor:
        """Normalised embeddings of a batch of pixels or token ids."""
        return F.normalize(self.encode(rows), dim=-1)


def require_packages() -> None:
    """Raise an error with the command that installs the ONNX packages, unless these are installed.

    Raises:
        SettingsError: they are not; the message says how to install them.
    """
    missing = [name for name in _PACKAGES if find_spec(name) is None]
    if missing:
        raise SettingsError(f"--onnx: not installed: {', '.join(missing)}: {pip_install('onnx')}")


def to_onnx(checkpoint: Path, folder: Path) -> Path:
    """Write a checkpoint's two towers as ONNX files, with tokenizer and notes, atomically.

    A tokenizer.json is written where it gives open_clip's token ids; else the notes name
    open_clip's tokenizer.

    Args:
        checkpoint: a folder that `export` or open_clip wrote.
        folder: replaced where it exists.

    Raises:
        SettingsError: a package is missing, or a written file gives other numbers.
    """
    require_packages()
    loaded = load(checkpoint)
    size = loaded.image_size
    pixels = torch.randn(3, 3, size, size, generator=torch.Generator().manual_seed(0))
    tokens = loaded.tokenize(list(PROBES))
    with atomic_folder(folder) as new:
        model: Any = loaded.model
        _write_tower(NormalisedTower(model, model.encode_image), "pixels", pixels, new / IMAGE_FILE)
        _write_tower(NormalisedTower(model, model.encode_text), "tokens", tokens, new / TEXT_FILE)
        _write_tokenizer(loaded, tokens, new / TOKENIZER_FILE)
        write_json(new / NOTES_FILE, _description(loaded, new))
    return folder


def _write_tower(tower: nn.Module, name: str, example: Tensor, path: Path) -> None:
    """Write one tower as an ONNX file for any batch size, and compare its outputs with torch's.

    They are compared at three batch sizes.

    torch's older exporter, which traces, gives the same numbers sooner, but is deprecated.
    """
    size = sum(tensor.nbytes for tensor in tower.state_dict().values())
    torch.onnx.export(
        tower.eval(),
        (example,),
        path,
        dynamo=True,
        dynamic_shapes=({0: torch.export.Dim("batch")},),
        input_names=[name],
        output_names=["embeddings"],
        external_data=size > _MOST_BYTES,
        verbose=False,
    )
    _remove_source_paths(path)
    run = session(path)
    for rows in (example[:1], example, example.repeat(3, *[1] * (example.ndim - 1))):
        with torch.no_grad():
            apart = np.abs(run(rows.numpy()) - tower(rows).numpy()).max()
        # Written so that NaN is refused too.
        if not apart <= TOLERANCE:
            raise SettingsError(
                f"--onnx: {path.name} gives other numbers than torch for {len(rows)} {name} "
                f"(up to {apart:.1e})"
            )


def _write_tokenizer(loaded: LoadedModel, tokens: Tensor, path: Path) -> None:
    """Write a tokenizer.json if it gives the probe texts the same ids [K, T], else warn."""
    tokenizer = fast_tokenizer(loaded)
    if tokenizer is None:
        reason = "there is none of its kind"
    elif [read.ids for read in tokenizer.encode_batch(list(PROBES))] != tokens.tolist():
        reason = "it would give other token ids"
    else:
        tokenizer.save(str(path))
        return
    log.warning("No %s for %s, %s: use %s.", TOKENIZER_FILE, loaded.name, reason, _OPEN_CLIPS)


def _remove_source_paths(path: Path) -> None:
    """Remove the source locations (local paths) of all operations from an ONNX file."""
    import onnx

    graph = onnx.load(path, load_external_data=False)
    for part in (graph.graph, *graph.graph.node, *graph.functions):
        del part.metadata_props[:]
        part.doc_string = ""
    for function in graph.functions:
        for node in function.node:
            del node.metadata_props[:]
            node.doc_string = ""
    path.write_bytes(graph.SerializeToString(deterministic=True))


def session(path: Path) -> Callable[[np.ndarray[Any, Any]], np.ndarray[Any, Any]]:
    """Open an exported ONNX file with onnxruntime.

    Returns a function from inputs to embeddings.
    """
    import onnxruntime

    opened = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    name = opened.get_inputs()[0].name

    def run(rows: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        embeddings: np.ndarray[Any, Any] = opened.run(None, {name: rows})[0]
        return embeddings

    return run


def _description(loaded: LoadedModel, folder: Path) -> dict[str, Any]:
    """JSON notes on the exported files: inputs, outputs, preprocessing and logit scale."""
    bias = getattr(loaded.model, "logit_bias", None)
    scale: Any = loaded.model.logit_scale
    held = (folder / TOKENIZER_FILE).is_file()
    return {
        "name": loaded.name,
        "fingerprint": loaded.fingerprint,
        "image": {
            "file": IMAGE_FILE,
            "input": "pixels float32 [batch, 3, height, width]",
            "output": "embeddings float32 [batch, dimensions], of length 1",
            "preprocessing": loaded.config["preprocess_cfg"],
        },
        "text": {
            "file": TEXT_FILE,
            "input": "tokens int64 [batch, context_length]",
            "output": "embeddings float32 [batch, dimensions], of length 1",
            "context_length": loaded.context_length,
            "tokenizer": TOKENIZER_FILE if held else _OPEN_CLIPS,
        },
        "dimensions": loaded.config["model_cfg"]["embed_dim"],
        "logits": "logit_scale * image @ text + logit_bias",
        "logit_scale": scale.exp().item(),
        "logit_bias": 0.0 if bias is None else bias.item(),
        "sha256": {path.name: file_hash(path) for path in sorted(folder.iterdir())},
        "versions": {name: version(name) for name in ("torch", "onnx", "onnxscript")},
    }
