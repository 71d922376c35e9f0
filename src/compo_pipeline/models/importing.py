"""Models of other programs as folders of open_clip: `compo-pipeline import-model`.

A model is read by the rules of its program once, and by open_clip's ever after.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from importlib.metadata import version
from pathlib import Path

import open_clip
from torch import Tensor

from compo_pipeline.core.files import atomic_folder
from compo_pipeline.core.hashing import file_hash
from compo_pipeline.core.settings import SettingsError, nearest
from compo_pipeline.models import hf_import, sources, weights
from compo_pipeline.models.loading import LoadedModel, build, load, write
from compo_pipeline.models.settings import (
    HUB_PREFIX,
    LAYOUTS,
    LOCAL_PREFIX,
    UNKNOWN,
    Layout,
    is_file,
)
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
    layout: str | None = None
    mixed_with: str | None = None
    quick_gelu: bool | None = None
    context_length: int | None = None
    tokenizer: str | None = None
    seed: int | None = None


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
        parts, layout, base = _find_parts(request, folder.name)
        files = {"weights": parts.weights, "mixed_with": base}
        packages = ("compo-pipeline", "open_clip_torch", "torch")
        described = {
            **asdict(request),
            "sha256": {n: file_hash(file) for n, file in files.items() if file and file.is_file()},
            "versions": {name: version(name) for name in packages},
        }
        taken = folder.exists() and (not folder.is_dir() or any(folder.iterdir()))
        if taken and not (folder.is_dir() and "imported" in weights.read_record(folder)):
            raise SettingsError(f"FOLDER: {folder} is there and of no import; name a new one")
        if request.tokenizer is not None:
            parts = with_tokenizer(parts, Path(request.tokenizer))
        loaded = _build_model(parts, layout, base, request.seed or 0)
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


def _find_parts(request: ImportRequest, name: str) -> tuple[ModelSource, Layout, Path | None]:
    """The model to import, the layout of its file, and the file that it is mixed with."""
    source = request.source
    prefixed = source.startswith((HUB_PREFIX, LOCAL_PREFIX))
    if not prefixed and (source in open_clip.list_models() or not Path(source).is_dir()):
        return _architecture_parts(request, name)
    for option in _OF_FILES:
        if getattr(request, option) is not None:
            raise SettingsError(
                f"--{option.replace('_', '-')}: expected an architecture of open_clip as SOURCE, "
                f"got '{source}', which has weights of its own; leave the option out"
            )
    if source.startswith(HUB_PREFIX):
        kinds = sources.OPEN_CLIP_WEIGHTS, ("model.safetensors", "*/model.safetensors")
        folder = sources.download_repository(source, *kinds)
    else:
        folder = Path(source.removeprefix(LOCAL_PREFIX))
    path = folder / weights.CONFIG_FILE
    if path.is_file() or not hf_import.is_transformers_folder(folder):
        if request.context_length is not None:
            raise SettingsError(f"--context-length: {path} states it; leave the option out")
        return sources.folder_source(folder, name), UNKNOWN, None
    split = hf_import.has_tower_folders(folder)
    length = request.context_length
    if split and length is None:
        length = LAYOUTS["triplet_clip"].context_length
    config = hf_import.open_clip_config(folder, length)
    file = folder if split else weights.find(folder)
    parts = ModelSource(name, folder, config["model_cfg"], config["preprocess_cfg"], file, {})
    length = config["model_cfg"]["text_cfg"]["context_length"]
    return parts, replace(UNKNOWN, context_length=length), None


def _architecture_parts(
    request: ImportRequest, name: str
) -> tuple[ModelSource, Layout, Path | None]:
    """An open_clip architecture with the given or random weights, as `_find_parts` returns it."""
    given, layout = request.weights, LAYOUTS[request.layout] if request.layout else UNKNOWN
    if request.layout and not (given and is_file(given)):
        raise SettingsError(
            f"--layout: '{request.layout}' is of a weights file, expected its path at --weights, "
            f"got {given}"
        )
    if request.source not in (known := open_clip.list_models()):
        raise SettingsError(
            f"SOURCE: '{request.source}' is no folder and no architecture of open_clip"
            f"{nearest(request.source, known)}"
        )
    if (given is None) == (request.seed is None):
        raise SettingsError(
            f"--weights: expected a file or a tag of {request.source}, or --seed=<number> for "
            f"random weights, got {'none' if given is None else 'both'}"
        )
    quick_gelu = layout.quick_gelu if request.quick_gelu is None else request.quick_gelu
    parts = replace(sources.architecture_source(request.source, given, quick_gelu), name=name)
    if length := request.context_length or layout.context_length:
        layout = replace(layout, context_length=length)
        parts.model_cfg["text_cfg"]["context_length"] = length
    if layout.base is None and request.mixed_with is not None:
        mixed = ", ".join(each for each, known in LAYOUTS.items() if known.base)
        raise SettingsError(
            f"--mixed-with: expected --layout with a mixture ({mixed}), got "
            f"{request.layout or 'none'}"
        )
    if (base := request.mixed_with or layout.base) is None:
        return parts, layout, None
    with _renaming_in_errors({"model.pretrained": "--mixed-with"}):
        if is_file(base):
            return parts, layout, sources.local_file(Path(base))
        return parts, layout, sources.tag_weights(request.source, base)[0]


def with_tokenizer(parts: ModelSource, folder: Path) -> ModelSource:
    """The model source with the tokenizer of a folder."""
    if not folder.is_dir():
        raise SettingsError(f"--tokenizer: there is no folder {folder} (seen from {Path.cwd()})")
    text_cfg = parts.model_cfg["text_cfg"]
    # An open_clip configuration without this entry means CLIP's own tokenizer.
    text_cfg["hf_tokenizer_name"] = text_cfg.get("hf_tokenizer_name") or folder.resolve().name
    record = {key: value for key, value in parts.record.items() if key != "fingerprint"}
    return replace(parts, folder=folder, record=record)


def _build_model(parts: ModelSource, layout: Layout, base: Path | None, seed: int) -> LoadedModel:
    """Build the model to import, mixed with the weights of a second file if there is one."""

    def read(file: Path) -> dict[str, Tensor]:
        """A file's tensors; positions beyond the context length change no text that fits."""
        state = weights.read(file)
        for key in state.keys() & weights.POSITIONS if layout.context_length else ():
            state[key] = state[key][: layout.context_length]
        return state

    state = read(parts.weights) if parts.weights else None
    if state is not None and "logit_bias" in state:  # trained with a sigmoid loss
        parts.model_cfg.setdefault("init_logit_bias", 0.0)
    own = build(parts, state, seed)
    if base is None:
        return own
    other = build(replace(parts, weights=base), read(base))
    states = other.model.state_dict(), own.model.state_dict()
    return build(parts, weights.interpolate(*states, layout.share))
