"""Weights files: reading them without running code from them, and refusing the wrong ones."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from compo_pipeline.configuration import SettingsError
from compo_pipeline.models.identity import CONFIG_FILE, WEIGHTS_FILE, read_record

# The names that open_clip itself looks for, best first.
KNOWN_FILES = (
    WEIGHTS_FILE,
    "open_clip_pytorch_model.safetensors",
    "model.safetensors",
    "open_clip_pytorch_model.bin",
    "pytorch_model.bin",
)


def find(folder: Path) -> Path:
    """The weights file of a checkpoint folder."""
    for name in KNOWN_FILES:
        if (folder / name).is_file():
            return folder / name
    raise SettingsError(f"no weights in {folder}: expected one of {', '.join(KNOWN_FILES)}")


def read(path: Path) -> dict[str, torch.Tensor]:
    """Tensors of a safetensors file, or of a pickled state dict read with `weights_only`."""
    if path.suffix == ".safetensors":
        from safetensors import SafetensorError
        from safetensors.torch import load_file

        try:
            return load_file(path)
        except SafetensorError as error:
            raise SettingsError(f"{path} is not a readable safetensors file: {error}") from None
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:
        # A TorchScript archive (OpenAI's own files), or a pickle that holds more than tensors.
        raise SettingsError(
            f"{path} is not a plain state dict ({type(error).__name__}), and nothing else is "
            "unpickled here; use the model's safetensors file (OpenAI's weights: the "
            "timm/*_clip_*.openai models of the Hugging Face hub)"
        ) from error
    state = state.get("state_dict", state)
    return {name.removeprefix("module."): tensor for name, tensor in state.items()}


def write(state: dict[str, torch.Tensor], path: Path, header: Mapping[str, str]) -> None:
    """Write tensors with a header as safetensors; the same ones give the same bytes.

    The library itself puts the header's entries in an order that changes from call to call.
    """
    from safetensors.torch import save_file

    save_file(state, path, metadata=dict(header))
    with path.open("r+b") as file:
        size = int.from_bytes(file.read(8), "little")
        content = json.loads(file.read(size))
        content["__metadata__"] = dict(sorted(header.items()))
        ordered = json.dumps(content, separators=(",", ":"), ensure_ascii=False).encode()
        file.seek(8)
        file.write(ordered.ljust(size))


def recorded_quick_gelu(path: Path) -> bool | None:
    """Whether a weights file was trained with QuickGELU, by its header or the files beside it."""
    if path.suffix == ".safetensors":
        header = _header(path)
        if "quick_gelu" in header:
            return header["quick_gelu"] == "true"
    record = read_record(path.parent)
    if "quick_gelu" in record:
        return bool(record["quick_gelu"])
    config = path.parent / CONFIG_FILE
    if config.is_file():
        return bool(json.loads(config.read_text())["model_cfg"].get("quick_gelu", False))
    return None


def _header(path: Path) -> dict[str, str]:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="pt") as file:
            return dict(file.metadata() or {})
    except SafetensorError as error:
        raise SettingsError(f"{path} is not a readable safetensors file: {error}") from None


def load_into(model: torch.nn.Module, path: Path, name: str) -> None:
    """Copy a file's weights into a model that has exactly these parameters.

    Nothing is resized: open_clip interpolates positions of another image size or context length
    without a word, which is another model.

    Raises:
        SettingsError: the weights are of another architecture.
    """
    from open_clip.convert import convert_state_dict
    from open_clip.model import convert_to_custom_text_state_dict

    state: dict[str, Any] = convert_state_dict(model, read(path))
    if "positional_embedding" in state and not hasattr(model, "positional_embedding"):
        state = convert_to_custom_text_state_dict(state)
    wanted = model.state_dict()
    for scalar in ("logit_scale", "logit_bias"):
        if scalar in state and scalar in wanted:
            state[scalar] = state[scalar].reshape(wanted[scalar].shape)
    problems = _differences(
        {key: tuple(value.shape) for key, value in state.items()},
        {key: tuple(value.shape) for key, value in wanted.items()},
    )
    if problems:
        raise SettingsError(
            f"the weights in {path} are not of the architecture '{name}': {'; '.join(problems)}. "
            "Set model.name to the architecture that they were trained with"
        )
    model.load_state_dict(state)


def _differences(got: dict[str, tuple[int, ...]], wanted: dict[str, tuple[int, ...]]) -> list[str]:
    missing = [key for key in wanted if key not in got]
    unknown = [key for key in got if key not in wanted]
    shapes = [
        f"{key} is {_shape(got[key])}, expected {_shape(shape)}"
        for key, shape in wanted.items()
        if key in got and got[key] != shape
    ]
    parts = [(missing, "missing"), (unknown, "unknown"), (shapes, "of another shape")]
    return [f"{len(keys)} {what} ({_some(keys)})" for keys, what in parts if keys]


def _shape(shape: tuple[int, ...]) -> str:
    return "x".join(str(length) for length in shape) or "a scalar"


def _some(items: list[str]) -> str:
    return ", ".join(items[:2]) + (", ..." if len(items) > 2 else "")
