"""Models in local folders, loaded by transformers: safetensors alone, and no code of the folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from compo_pipeline.chat.settings import LocalSettings
from compo_pipeline.configuration.settings import SettingsError
from compo_pipeline.models import foreign


def check_folder(folder: Path, key: str, what: str) -> None:
    """Check that a folder holds a transformers model that runs no code from the folder.

    Args:
        folder: of the model.
        key: the YAML key of its settings.
        what: the model that is expected, such as "a causal language model".

    Raises:
        SettingsError: it does not, or does; names the key.
    """
    if not (folder / "config.json").is_file():
        raise SettingsError(
            f"{key}.folder: expected a folder with config.json, weights and tokenizer of {what}, "
            f"got '{folder}'"
        )
    foreign.refuse_code(folder, f"{key}.folder")


def load(
    settings: LocalSettings, key: str, what: str, model_class: str, reader_class: str
) -> tuple[Any, Any]:
    """Load a local transformers model on its device, and its tokenizer or processor.

    Args:
        settings: parsed.
        key: their YAML key.
        what: the model that is expected, for errors.
        model_class: an Auto class of transformers.
        reader_class: AutoTokenizer or AutoProcessor.

    Raises:
        SettingsError: transformers is not installed, or the folder holds no such model.
    """
    import torch
    from safetensors import SafetensorError

    try:
        import transformers
    except ImportError as error:
        raise SettingsError(
            f"{key}: a local model needs transformers, which is not installed "
            "(pip install transformers)"
        ) from error
    device = settings.device or ("cuda" if torch.cuda.is_available() else "cpu")
    safe = {"local_files_only": True, "trust_remote_code": False}
    try:
        reader = getattr(transformers, reader_class).from_pretrained(settings.folder, **safe)
        network = getattr(transformers, model_class).from_pretrained(
            settings.folder, use_safetensors=True, dtype=settings.dtype, **safe
        )
        return network.to(device).eval(), reader
    except (OSError, ValueError, KeyError, RuntimeError, SafetensorError) as error:
        raise SettingsError(
            f"{key}.folder: cannot load {what} from {settings.folder!r} ({error})"
        ) from error


def is_cut(tokens: list[int], most: int, ends: int | list[int] | None) -> bool:
    """Whether an answer was cut off: its tokens reach the limit without an end token.

    Args:
        tokens: of one answer.
        most: the limit.
        ends: the model's tokens that end a text.
    """
    found = {ends} if isinstance(ends, int) else set(ends or ())
    return len(tokens) == most and found.isdisjoint(tokens)
