"""Models of other programs as folders of open_clip: `compo-pipeline import-model`.

A model is read by the rules of its program once, and by open_clip's ever after.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import open_clip
from torch import Tensor

from compo_pipeline.core.files import atomic_folder
from compo_pipeline.core.hashing import file_hash
from compo_pipeline.core.settings import SettingsError, nearest
from compo_pipeline.models import checkpoints, hf_import, sources, weights
from compo_pipeline.models.export import write
from compo_pipeline.models.loading import LoadedModel, build, load
from compo_pipeline.models.settings import HUB_PREFIX, LOCAL_PREFIX, PublishedLayout, is_file
from compo_pipeline.models.sources import ModelSource

# Options of weights files, which a folder has none of.
_OF_FILES = ("weights", "layout", "mixed_with", "quick_gelu", "seed")
# Names of settings in messages of code that loads models for runs, too.
_OPTIONS = {"model.name": "SOURCE", "model.pretrained": "--weights"}


@dataclass(frozen=True, slots=True)
class ImportRequest:
    """Arguments of `compo-pipeline import-model`: the source and how its files are read.

    Attributes:
        source: an architecture of open_clip, a folder of transformers or open_clip, or
            `hf-hub:<owner/model>`.
        weights: weights of an architecture: a file, or a tag of open_clip.
        layout: authors' layout that the file has.
        mixed_with: a tag or file that the layout mixes the file with, instead of its own.
        quick_gelu: whether a file that does not record it was trained with QuickGELU.
        context_length: token ids of a text; positions beyond are cut off. None is the source's.
        tokenizer: folder of a Hugging Face tokenizer; None is the source's.
        seed: seed of random weights of an architecture, instead of `weights`.
    """

    source: str
    weights: str | None = None
    layout: PublishedLayout | None = None
    mixed_with: str | None = None
    quick_gelu: bool | None = None
    context_length: int | None = None
    tokenizer: str | None = None
    seed: int | None = None


@dataclass(frozen=True, slots=True)
class _Conversion:
    """Plan of an import: model source, context length, and weights to mix in."""

    parts: ModelSource
    context_length: int | None = None
    mixed_with: Path | None = None
    share: float = 1.0


def import_model(request: ImportRequest, folder: Path) -> None:
    """Import a model as a folder for `local-dir:`, atomically.

    The folder's record (compo.json) says under `imported` where it came from.

    Args:
        request: request to fulfil.
        folder: new, empty, or of an import, which is replaced.

    Raises:
        SettingsError: the source cannot be converted, or the folder holds something else.
    """
    with _renaming_in_errors(_OPTIONS):
        conversion = _conversion(request, folder.name)
        described = _import_record(request, conversion)
        taken = folder.exists() and (not folder.is_dir() or any(folder.iterdir()))
        if taken and not (folder.is_dir() and "imported" in weights.read_record(folder)):
            raise SettingsError(f"FOLDER: {folder} is there and of no import; name a new one")
        if request.tokenizer is not None:
            parts = with_tokenizer(conversion.parts, Path(request.tokenizer))
            conversion = replace(conversion, parts=parts)
        loaded = _build_model(conversion, request.seed or 0)
        with atomic_folder(folder) as new:
            write(loaded, new, metadata={"imported": described})
            load(new)  # which compares weights, configuration and tokenizer with the record


@contextmanager
def _renaming_in_errors(names: Mapping[str, str]) -> Iterator[None]:
    """Context manager that replaces names in the messages of settings errors."""
    try:
        yield
    except SettingsError as error:
        message = error.message
        for old, new in names.items():
            message = message.replace(old, new)
        raise SettingsError(message) from error


def _conversion(request: ImportRequest, name: str) -> _Conversion:
    """Import plan for the requested source: an open_clip architecture or a folder."""
    source = request.source
    prefixed = source.startswith((HUB_PREFIX, LOCAL_PREFIX))
    if not prefixed and (source in open_clip.list_models() or not Path(source).is_dir()):
        return _architecture_conversion(request, name)
    for option in _OF_FILES:
        if getattr(request, option) is not None:
            raise SettingsError(
                f"--{option.replace('_', '-')}: expected an architecture of open_clip as SOURCE, "
                f"got '{source}', which has weights of its own; leave the option out"
            )
    hub = source.startswith(HUB_PREFIX)
    folder = _download(source) if hub else Path(source.removeprefix(LOCAL_PREFIX))
    return _folder_conversion(folder, name, request.context_length)


def _download(name: str) -> Path:
    """Download a repository's weights, open_clip's or else safetensors, and return the folder."""
    wanted: tuple[str, ...] = (sources.OPEN_CLIP_WEIGHTS,)
    folder = sources.download_repository(name, *wanted)
    if not (folder / weights.CONFIG_FILE).is_file():
        wanted = ("model.safetensors", "*/model.safetensors")
        folder = sources.download_repository(name, *wanted)
    sources.refuse_without_weights(name, folder, *wanted)
    return folder


def _folder_conversion(folder: Path, name: str, context_length: int | None) -> _Conversion:
    """Import plan for a local folder of open_clip or transformers."""
    path = folder / weights.CONFIG_FILE
    if path.is_file() or not hf_import.is_transformers_folder(folder):
        if context_length is not None:
            raise SettingsError(f"--context-length: {path} states it; leave the option out")
        return _Conversion(sources.folder_source(folder, name))
    split = hf_import.has_tower_folders(folder)
    length = context_length or (
        checkpoints.LAYOUTS["triplet_clip"].context_length if split else None
    )
    config = hf_import.open_clip_config(folder, length)
    file = folder if split else weights.find(folder)
    parts = ModelSource(name, folder, config["model_cfg"], config["preprocess_cfg"], file, {})
    return _Conversion(parts, config["model_cfg"]["text_cfg"]["context_length"])


def _architecture_conversion(request: ImportRequest, name: str) -> _Conversion:
    """Import plan for an open_clip architecture with the given or random weights."""
    given, quick_gelu, length = request.weights, request.quick_gelu, request.context_length
    if open_clip.get_model_config(request.source) is None:
        hint = nearest(request.source, open_clip.list_models())
        raise SettingsError(
            f"SOURCE: '{request.source}' is no folder and no architecture of open_clip{hint}"
        )
    if (given is None) == (request.seed is None):
        raise SettingsError(
            f"--weights: expected a file or a tag of {request.source}, or --seed=<number> for "
            f"random weights, got {'none' if given is None else 'both'}"
        )
    layout = None
    if request.layout is not None:
        if given is None or not is_file(given):
            raise SettingsError(
                f"--layout: '{request.layout}' is of a weights file, expected its path at "
                f"--weights, got {given}"
            )
        layout = checkpoints.LAYOUTS[request.layout]
        quick_gelu = layout.quick_gelu if quick_gelu is None else quick_gelu
        length = length or layout.context_length
    parts = replace(sources.architecture_source(request.source, given, quick_gelu), name=name)
    if length is not None:
        parts.model_cfg["text_cfg"]["context_length"] = length
    if layout is None or layout.base is None:
        if request.mixed_with is not None:
            mixed = ", ".join(each for each, known in checkpoints.LAYOUTS.items() if known.base)
            raise SettingsError(
                f"--mixed-with: expected --layout with a mixture ({mixed}), got "
                f"{request.layout or 'none'}"
            )
        return _Conversion(parts, length)
    base = request.mixed_with or layout.base
    with _renaming_in_errors({"model.pretrained": "--mixed-with"}):
        file = (
            sources.local_file(Path(base))
            if is_file(base)
            else sources.tag_weights(request.source, base)[0]
        )
    return _Conversion(parts, length, file, layout.share)


def _import_record(request: ImportRequest, conversion: _Conversion) -> dict[str, Any]:
    """Record of an import: the request, hashes of the weights files, and package versions."""
    files = {"weights": conversion.parts.weights, "mixed_with": conversion.mixed_with}
    packages = ("compo-pipeline", "open_clip_torch", "torch")
    return {
        **asdict(request),
        "sha256": {
            name: file_hash(file) for name, file in files.items() if file and file.is_file()
        },
        "versions": {name: version(name) for name in packages},
    }


def with_tokenizer(parts: ModelSource, folder: Path) -> ModelSource:
    """The model source with the tokenizer of a folder."""
    if not folder.is_dir():
        raise SettingsError(f"--tokenizer: there is no folder {folder} (seen from {Path.cwd()})")
    text_cfg = parts.model_cfg["text_cfg"]
    # An open_clip configuration without this entry means CLIP's own tokenizer.
    text_cfg["hf_tokenizer_name"] = text_cfg.get("hf_tokenizer_name") or folder.resolve().name
    record = {key: value for key, value in parts.record.items() if key != "fingerprint"}
    return replace(parts, folder=folder, record=record)


def _build_model(conversion: _Conversion, seed: int) -> LoadedModel:
    """Build the model to import, mixed with the weights of a second model if there are any."""
    parts, base = conversion.parts, conversion.mixed_with
    read = partial(_read_tensors, context_length=conversion.context_length)
    own = build(parts, seed, read)
    if base is None:
        return own
    other = build(replace(parts, weights=base), seed, read)
    states = other.model.state_dict(), own.model.state_dict()
    mixed = weights.interpolate(*states, conversion.share)
    return build(parts, seed, lambda _: mixed)


def _read_tensors(path: Path, context_length: int | None) -> dict[str, Tensor]:
    """Read a file's tensors under open_clip's names, with text positions cut to a length.

    Positions beyond the context length are cut off, which changes no text that fits.
    """
    state = checkpoints.read(path)
    for key in state.keys() & weights.POSITIONS if context_length else ():
        state[key] = state[key][:context_length]
    return state
