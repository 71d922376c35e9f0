"""Weights: files in all layouts, fingerprints, mixtures of two models, and stretched positions.

Files are read without running code from them. A folder written by `export` holds the fingerprints
of its model beside the weights, because the worst mistakes (weights trained with QuickGELU run
under GELU, another tokenizer, another preprocessing) change every number without an error.

Shapes: r rank of LoRA, k side of a convolution's kernel.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from textwrap import shorten
from typing import Any

import numpy as np
import torch
from numpy._core.multiarray import scalar
from open_clip.convert import convert_state_dict
from open_clip.model import convert_to_custom_text_state_dict
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from compo_pipeline.core.files import DamagedFileError
from compo_pipeline.core.hashing import file_hash, tensors_hash
from compo_pipeline.core.settings import SettingsError
from compo_pipeline.core.untrusted import check_weights_archive, listed, shown
from compo_pipeline.models import foreign, hf_import

CONFIG_FILE = "open_clip_config.json"
WEIGHTS_FILE = "open_clip_model.safetensors"
RECORD_FILE = "compo.json"

# Case, contractions, digits, emoji, other scripts and a text beyond the context length: two
# tokenizers that agree on these differ in nothing that a caption holds.
PROBES = (
    "A red cube isn't left of the two small BLUE spheres.",
    "3.5% of café-goers photographed a 🐶, 猫 & собака!",
    "one small thing after another " * 40,
)

POSITIONS = frozenset({"positional_embedding", "text.positional_embedding"})
"""Name of the text positions in open_clip's `CLIP`, and in its `CustomTextCLIP`."""
SHORT, LONG = 77, 248
"""Positions of CLIP's text towers, and of those that `stretch` makes of them."""
_KEPT, _FACTOR = 20, 4
# Batch norms count their batches, and read the count nowhere.
COUNTER = ".num_batches_tracked"
# The names that open_clip itself looks for, best first.
KNOWN_FILES = (
    WEIGHTS_FILE,
    "open_clip_pytorch_model.safetensors",
    "model.safetensors",
    "open_clip_pytorch_model.bin",
    "pytorch_model.bin",
)
# What a pickled checkpoint may hold beside tensors and plain values: settings and figures of its
# training, which are not used.
_ALLOWED: list[Any] = [
    (argparse.Namespace, "argparse.Namespace"),
    (np.dtype, "numpy.dtype"),
    (np.dtypes.Float64DType, "numpy.dtypes.Float64DType"),
    (np.dtypes.Int64DType, "numpy.dtypes.Int64DType"),
    # Before and since numpy 2.
    (scalar, "numpy.core.multiarray.scalar"),
    (scalar, "numpy._core.multiarray.scalar"),
]
_CONTAINERS = ("state_dict", "model_state_dict", "model")
_WRAPPERS = re.compile(r"^(?:module\.|_orig_mod\.|model\.)+")
_LORA = re.compile(r"(?P<layer>.+?)(?P<weight>\.lora|_lora)_A")


def find(folder: Path) -> Path:
    """Path of the weights file in a checkpoint folder.

    Raises:
        SettingsError: there is none.
    """
    for name in KNOWN_FILES:
        if (folder / name).is_file():
            return folder / name
    raise SettingsError(f"no weights in {folder}: expected one of {', '.join(KNOWN_FILES)}")


def read(path: Path) -> dict[str, Tensor]:
    """Read the tensors of a weights file in any layout that is known, by open_clip's names.

    A file of open_clip's or OpenAI's training code holds its tensors under a key, with a prefix of
    the wrapper that trained them, and LoRA's factors beside the weights that they change; one of
    transformers has names of its own. No code of a pickled file is run.

    Args:
        path: a safetensors file, a pickled checkpoint, or a folder with a folder for each tower.

    Raises:
        SettingsError: it cannot be read, holds something else, or LoRA's factors do not fit the
            weights.
    """
    if path.is_dir():
        return {
            name: each
            for part in hf_import.tower_weights_files(path)
            for name, each in read(part).items()
        }
    if path.suffix == ".safetensors":
        with _safetensors(path) as file:
            state = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    else:
        state = _read_pickle(path)
    plain = {_WRAPPERS.sub("", name): tensor for name, tensor in state.items()}
    if any("vision_model." in name or "text_model." in name for name in plain):
        try:
            return hf_import.to_open_clip_names(plain)
        except KeyError as error:
            raise SettingsError(f"{path} has no tensor {error}; get the file again") from error
    return _merge_lora(plain, path)


def _read_pickle(path: Path) -> dict[str, Tensor]:
    """Tensors of a pickled checkpoint, renamed for open_clip.

    No code of the pickle is run.

    Raises:
        SettingsError: it holds other classes than tensors, plain values and a few that are
            allowed; names them. Or it has no tensors in a known place.
    """
    try:
        check_weights_archive(path)
    except ValueError as error:
        raise SettingsError(f"{error}; get the file again") from error
    try:
        with torch.serialization.safe_globals(_ALLOWED):
            content = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:
        raise SettingsError(
            f"{path} is not a plain state dict ({_disallowed(path) or type(error).__name__}), and "
            "nothing else is unpickled here; get the file again, or use the model's safetensors "
            "file (OpenAI's weights: the timm/*_clip_*.openai models of the Hugging Face hub)"
        ) from error
    known = content if isinstance(content, Mapping) else {}
    state = next((known[key] for key in _CONTAINERS if isinstance(known.get(key), Mapping)), known)
    if not state or not all(isinstance(value, Tensor) for value in state.values()):
        raise SettingsError(
            f"{path}: expected tensors by name, there or under {', '.join(_CONTAINERS)}, got "
            f"{shown(list(known) or type(content).__name__)}"
        )
    return dict(state)


def _disallowed(path: Path) -> str:
    """Text that names the disallowed classes in a pickled checkpoint, empty if unknown."""
    try:
        found = torch.serialization.get_unsafe_globals_in_checkpoint(path)
    except (RuntimeError, ValueError, OSError):  # a TorchScript archive, or no checkpoint
        return ""
    classes = sorted(set(found) - {name for _, name in _ALLOWED})
    return f"it holds {', '.join(classes[:5])}" if classes else ""


def _merge_lora(state: dict[str, Tensor], path: Path) -> dict[str, Tensor]:
    """State dict with LoRA factors merged into their weights, W + B A alpha / r with alpha = 1.

    That is loralib's form.

    `<layer>.lora_A` [r, in] and `<layer>.lora_B` [out, r] belong to `<layer>.weight` [out, in];
    of a convolution, A is [r k, in k], B [out k, r k] and B A has the weight's shape otherwise
    ordered. `<layer>.in_proj_weight_lora_A` and `_B` belong to attention's fused input
    `<layer>.in_proj_weight` [3 W, W]. TSVLC, DAC and FSC-CLIP have alpha = 1; no file says so.
    """
    merged = dict(state)
    for name in state:
        match = _LORA.fullmatch(name)
        if match is None:
            continue
        fused = match["weight"] == "_lora"
        key = match["layer"] if fused else f"{match['layer']}.weight"
        a, b = merged.pop(name), merged.pop(f"{name[:-1]}B", None)
        weight = state.get(key)
        if weight is None or b is None or a.ndim != 2 or b.ndim != 2:
            raise SettingsError(f"{path}: {name} has no factor B or no weight that it changes")
        rank = a.shape[0] // (weight.shape[-1] if weight.ndim == 4 else 1)
        if a.shape[0] != b.shape[1] or len(a) == 0 or b.shape[0] * a.shape[1] != weight.numel():
            raise SettingsError(
                f"{path}: {name} is {list(a.shape)} and its B {list(b.shape)}, which do not make "
                f"an update of {key} {list(weight.shape)}"
            )
        update = b.float() @ a.float() / rank
        merged[key] = weight.float() + update.view(weight.shape)
    return merged


def write(state: dict[str, Tensor], path: Path, header: Mapping[str, str]) -> None:
    """Write tensors with a header as a safetensors file.

    Equal inputs give equal bytes.

    The library itself puts the header's entries in an order that changes from call to call.
    """
    save_file(state, path, metadata=dict(header))
    with path.open("r+b") as file:
        size = int.from_bytes(file.read(8), "little")
        content = json.loads(file.read(size))
        content["__metadata__"] = dict(sorted(header.items()))
        ordered = json.dumps(content, separators=(",", ":"), ensure_ascii=False).encode()
        file.seek(8)
        file.write(ordered.ljust(size))


def recorded_quick_gelu(path: Path) -> bool | None:
    """Whether weights were trained with QuickGELU, by header or record, or None if unknown."""
    if path.suffix == ".safetensors":
        with _safetensors(path) as file:
            header: dict[str, str] = file.metadata() or {}
        if "quick_gelu" in header:
            return header["quick_gelu"] == "true"
    record = read_record(path.parent)
    if "quick_gelu" in record:
        return bool(record["quick_gelu"])
    config = path.parent / CONFIG_FILE
    if config.is_file():
        return bool(foreign.read_object(config).get("model_cfg", {}).get("quick_gelu", False))
    return None


@contextmanager
def _safetensors(path: Path) -> Iterator[Any]:
    """Context manager: an open safetensors file."""
    try:
        with safe_open(path, framework="pt") as file:
            yield file
    except (SafetensorError, OSError) as error:
        raise SettingsError(
            f"{path} is not a readable safetensors file: {error}; get it again"
        ) from None


def load_into(
    model: torch.nn.Module, tensors: Mapping[str, Tensor], path: object, name: str
) -> None:
    """Copy weights into a model that has exactly these parameters and shapes.

    Nothing is resized: open_clip interpolates positions of another image size or context length
    without a word, which is another model.

    Args:
        model: model of open_clip.
        tensors: tensors by open_clip's names.
        path: path of their file, for errors.
        name: name of the model, for errors.

    Raises:
        SettingsError: the weights are of another architecture, or not finite.
    """
    state: dict[str, Any] = convert_state_dict(model, dict(tensors))
    if "positional_embedding" in state and not hasattr(model, "positional_embedding"):
        state = convert_to_custom_text_state_dict(state)
    for key, own in model.named_parameters():
        if key in ("logit_scale", "logit_bias") and key in state:
            state[key] = state[key].reshape(own.shape)
    for key, value in state.items():
        if value.is_floating_point() and not torch.isfinite(value).all():
            raise SettingsError(
                f"the weights in {path} are damaged: {key} is not finite; get the file again"
            )
    try:
        model.load_state_dict(state)
    except RuntimeError:
        wanted = model.state_dict()
        shapes = [
            f"{key} {list(state[key].shape)} for {list(each.shape)}"
            for key, each in wanted.items()
            if key in state and state[key].shape != each.shape
        ]
        kinds = {"missing": wanted.keys() - state.keys(), "surplus": state.keys() - wanted.keys()}
        problems = [
            f"{len(names)} {kind} ({listed(sorted(names))})"
            for kind, names in {**kinds, "of another shape": shapes}.items()
            if names
        ]
        raise SettingsError(
            f"the weights in {path} do not fit the model '{name}': "
            f"{shorten('; '.join(problems), 600, placeholder=' ...')}. Name the architecture that "
            "they were trained with; compo-pipeline import-model (--context-length) reads files of "
            "other context lengths"
        ) from None


def image_fingerprint(
    state: Mapping[str, Tensor], config: Mapping[str, Any], without: str | None = None
) -> str:
    """SHA-256 fingerprint of a model's image tower: equal where image embeddings are equal.

    Fine-tuning the text tower alone does not change it, so cached embeddings stay valid.

    Args:
        state: weights of the whole model.
        config: config of the model.
        without: module or weight that is left out, such as the tower's projection.
    """
    architecture = config["model_cfg"]
    part = {
        "embed_dim": architecture["embed_dim"],
        "quick_gelu": architecture.get("quick_gelu", False),
        "vision_cfg": architecture["vision_cfg"],
        "preprocess_cfg": config["preprocess_cfg"],
    }
    tower = {
        name: tensor
        for name, tensor in state.items()
        if name.startswith("visual.")
        and (without is None or not f"{name}.".startswith(f"{without}."))
    }
    return tensors_hash(tower, part)


def tokenizer_fingerprint(tokenize: Callable[[list[str]], Tensor]) -> str:
    """SHA-256 fingerprint of a tokenizer: hash of its token ids of three unusual texts."""
    return hashlib.sha256(tokenize(list(PROBES)).to(torch.int64).numpy().tobytes()).hexdigest()


def read_record(folder: Path) -> dict[str, Any]:
    """Read the record (compo.json) that `export` wrote in a model folder, empty if there is none.

    Raises:
        DamagedFileError: the content of the configuration beside it has changed since.
        SettingsError: it is no JSON object.
    """
    path = folder / RECORD_FILE
    if not path.is_file():
        return {}
    record = foreign.read_object(path)
    config = folder / CONFIG_FILE
    if config.is_file() and record.get("config_sha256", found := file_hash(config)) != found:
        raise DamagedFileError(config, f"its content does not fit the checksum in {RECORD_FILE}")
    return record


def interpolate(
    base: Mapping[str, Tensor], tuned: Mapping[str, Tensor], ratio: float
) -> dict[str, Tensor]:
    """Interpolate the weights of two models (WiSE-FT): (1 - ratio) base + ratio tuned.

    Tensor by tensor, float32.

    Source: Wortsman et al., Robust fine-tuning of zero-shot models, Eq. 1.

    Args:
        base: state of the model that training started from.
        tuned: state of the trained model, adapters merged.
        ratio: ratio of the trained model. 0 gives the base and 1 the trained model, both exactly.
            Weights that training did not change are the same at every ratio.

    Raises:
        ValueError: the states are of different models, or the ratio is outside [0, 1].
    """
    if not 0 <= ratio <= 1:
        raise ValueError(f"ratio: expected a number in [0, 1], got {ratio}")
    if base.keys() != tuned.keys():
        apart = sorted(base.keys() ^ tuned.keys())
        raise ValueError(
            f"base and tuned weights are of different models: {len(apart)} names are in one "
            f"alone ({', '.join(apart[:3])}, ...); merge adapters before interpolating"
        )
    return {name: _interpolated(name, base[name], tuned[name], ratio) for name in base}


def stretch(positions: Tensor) -> Tensor:
    """Stretch 77 position embeddings [77, W] of a text tower to 248 [248, W], as in Long-CLIP.

    The first 20 stay. Each of the other 57 comes at every fourth place, with linear interpolation
    in between; the last three continue the line of the last two.

    Source: Zhang et al., Long-CLIP (arXiv 2403.15378), Sec. 3.1; the last three as in the authors'
    code (github.com/beichenzbc/Long-CLIP, SDXL/encode_prompt.py, `kps`).
    """
    places = torch.arange(LONG - _KEPT, device=positions.device) / _FACTOR + _KEPT
    below = places.long().clamp(max=SHORT - 2)
    share = (places - below)[:, None]
    between = (1 - share) * positions[below] + share * positions[below + 1]
    return torch.cat([positions[:_KEPT], between])


def _interpolated(name: str, base: Tensor, tuned: Tensor, ratio: float) -> Tensor:
    """One weight tensor interpolated linearly: (1 - ratio) * base + ratio * tuned."""
    if base.shape != tuned.shape:
        raise ValueError(
            f"the weight {name} is {tuple(base.shape)} in the base, {tuple(tuned.shape)} in the "
            "tuned model: expected two states of one architecture"
        )
    base, tuned = base.detach(), tuned.detach().to(base.device)
    if base.equal(tuned):
        # A frozen tower stays itself, to the last bit: what is known of it holds good.
        return base.float() if base.is_floating_point() else base.clone()
    if name.endswith(COUNTER):
        return (tuned if ratio else base).clone()
    if not base.is_floating_point():
        raise ValueError(f"the integers {name} differ: there is no mixture of base and tuned")
    # The weighted sum, not torch.lerp: at both ends it gives the very weights.
    return (1 - ratio) * base.float() + ratio * tuned.float()
