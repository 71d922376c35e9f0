"""Loading models: the shipped base, open_clip's, one's own; and their export as folders."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import asdict, dataclass, replace
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

import torch
from open_clip.coca_model import CoCa
from open_clip.model import CLIP, CustomTextCLIP
from open_clip.transform import PreprocessCfg, image_transform_v2, merge_preprocess_dict
from PIL.Image import Image
from torch import nn

from compo_pipeline.core.files import DamagedFileError, atomic_folder, write_json
from compo_pipeline.core.hashing import file_hash, tensors_hash
from compo_pipeline.core.settings import SettingsError
from compo_pipeline.models import hub, sources, tokenizing, weights
from compo_pipeline.models.cost import ModelCost, cost_of, millions
from compo_pipeline.models.settings import LOCAL_PREFIX, ModelSettings
from compo_pipeline.models.sources import ModelSource

log = logging.getLogger(__name__)

Precision = Literal["fp32", "fp16"]


@dataclass(frozen=True, eq=False)
class LoadedModel:
    """An open_clip model with its preprocessing, tokenizer, configuration and fingerprints.

    Attributes:
        name: name in logs and reports.
        model: open_clip's module, float32, in evaluation mode; has encode_image, encode_text,
            logit_scale.
        preprocess: PIL image -> [3, H, W], the evaluation transform.
        tokenize: n texts -> [n, context_length] token ids.
        image_size: side of the square input, in pixels.
        mean: means of `preprocess`, per channel.
        std: standard deviations of `preprocess`, per channel.
        context_length: token ids of one text.
        quick_gelu: the activation the weights were trained with.
        image_fingerprint: fingerprint of the image tower and preprocessing as loaded.
        fingerprint: fingerprint of the whole model as loaded.
        config: `model_cfg` and `preprocess_cfg` as open_clip_config.json holds them.
    """

    name: str
    model: torch.nn.Module
    preprocess: Callable[[Image], torch.Tensor]
    tokenize: Callable[[list[str]], torch.Tensor]
    image_size: int
    mean: tuple[float, float, float]
    std: tuple[float, float, float]
    context_length: int
    quick_gelu: bool
    image_fingerprint: str
    fingerprint: str
    config: Mapping[str, Any]

    @property
    def device(self) -> torch.device:
        """Device of the model's weights."""
        return next(self.model.parameters()).device

    @property
    def cost(self) -> ModelCost:
        """Parameters, and operations of an image and of a text."""
        if not self.config:  # not open_clip's
            return ModelCost((0.0, millions(self.model)))
        return cost_of(skeleton(self.name, self.config["model_cfg"]), self.context_length)

    def to(self, device: str | torch.device) -> LoadedModel:
        """Move the model's weights to a device, and return the same object."""
        self.model.to(device)
        return self


def load(source: ModelSettings | Path, device: str | torch.device = "cpu") -> LoadedModel:
    """Load a model with its preprocessing and tokenizer, from settings or a checkpoint folder.

    Args:
        source: the `model` settings, or the folder of a checkpoint.
        device: device where the weights go.

    Raises:
        SettingsError: the model is unknown, its files are missing or do not fit together; the
            message names the key to change.
        DamagedFileError: an exported folder does not hold the model that was exported.
    """
    settings = ModelSettings(name=f"{LOCAL_PREFIX}{source}") if isinstance(source, Path) else source
    plan = sources.find_source(settings)
    if isinstance(source, Path):  # a checkpoint has the name of the model that it began as
        plan = replace(plan, name=plan.record.get("name", source.name))
    loaded = build(plan)
    if settings.context_length is not None:
        loaded = _stretch(loaded, plan)
    return loaded.to(device)


def _stretch(loaded: LoadedModel, plan: ModelSource) -> LoadedModel:
    """Build the model again with its 77 text positions stretched to 248.

    Mask and tokenizer are made to match.
    """
    state = dict(loaded.model.state_dict())
    (name,) = state.keys() & weights.POSITIONS
    state[name] = weights.stretch(state[name])
    model_cfg = sources.architecture(plan.model_cfg)
    model_cfg["text_cfg"]["context_length"] = weights.LONG
    # The fingerprints are of the model and the tokenizer as they were.
    return build(replace(plan, model_cfg=model_cfg, record={}), state)


def build(
    plan: ModelSource, state: Mapping[str, torch.Tensor] | None = None, seed: int = 0
) -> LoadedModel:
    """Build a model from its configuration, weights, tokenizer and preprocessing.

    Args:
        plan: the parts.
        state: tensors by open_clip's names. None reads the plan's weights file.
        seed: seed of random weights, for a plan without a file.

    Raises:
        SettingsError: the parts do not fit together.
        DamagedFileError: the model is not the one that its record is of.
    """
    model_cfg = sources.architecture(plan.model_cfg)
    tokenize = tokenizing.tokenizer(plan, model_cfg["text_cfg"])
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = _build_module(plan.name, model_cfg)
    if state is None and plan.weights is not None:
        state = weights.read(plan.weights)
    if state is not None:
        weights.load_into(model, state, plan.weights, plan.name)
    size = _square_size(plan.name, model)
    with _configuration_errors(plan.name):
        given = merge_preprocess_dict(PreprocessCfg(), plan.preprocess_cfg)
        transform = PreprocessCfg(**{**given, "size": (size, size)})
        preprocess = image_transform_v2(transform, is_train=False)
    preprocess_cfg = {
        key: list(each) if isinstance(each, tuple) else each
        for key, each in asdict(transform).items()
    }
    config = {"model_cfg": model_cfg, "preprocess_cfg": preprocess_cfg}
    found = tensors_hash(model.state_dict(), config)
    if plan.record.get("fingerprint", found) != found:
        raise DamagedFileError(
            Path(str(plan.weights)),
            f"its fingerprint is not the one that {weights.RECORD_FILE} beside it records",
        )
    return LoadedModel(
        name=plan.name,
        image_fingerprint=weights.image_fingerprint(model.state_dict(), config),
        fingerprint=found,
        model=model.eval(),
        preprocess=preprocess,
        tokenize=tokenize,
        image_size=size,
        mean=tuple(preprocess_cfg["mean"]),
        std=tuple(preprocess_cfg["std"]),
        context_length=int(model_cfg["text_cfg"].get("context_length", 77)),
        quick_gelu=bool(model_cfg.get("quick_gelu", False)),
        config=config,
    )


def _build_module(name: str, model_cfg: Mapping[str, Any]) -> torch.nn.Module:
    """open_clip's module for a model configuration, with freshly initialised weights.

    Raises:
        SettingsError: there is no such module, or a text tower's configuration cannot be fetched.
    """
    if (bert := model_cfg["text_cfg"].get("hf_model_config")) is not None:
        with TemporaryDirectory() as folder:  # open_clip reads it from a folder, or the hub
            write_json(Path(folder) / "config.json", {**bert, "model_type": "bert"})
            text_cfg = {**model_cfg["text_cfg"], "hf_model_name": folder}
            del text_cfg["hf_model_config"]
            return _build_module(name, sources.architecture({**model_cfg, "text_cfg": text_cfg}))
    arguments = dict(model_cfg)
    custom = arguments.pop("custom_text", False) or "hf_model_name" in arguments["text_cfg"]
    kind = CoCa if "multimodal_cfg" in arguments else CustomTextCLIP if custom else CLIP
    with _configuration_errors(name):
        model: torch.nn.Module = kind(**arguments)
    return model


@contextmanager
def _configuration_errors(name: str) -> Iterator[None]:
    """Context manager: errors of open_clip, timm, transformers and torch become a SettingsError."""
    try:
        yield
    except Exception as error:
        raise SettingsError(
            f"model.name: '{name}' cannot be built as its configuration says "
            f"({hub.reason(error)}); get its files again"
        ) from error


def skeleton(name: str, model_cfg: Mapping[str, Any]) -> torch.nn.Module:
    """A model's module on the meta device, without weights, to inspect its parts and names.

    Raises:
        SettingsError: there is no such module, or a text tower's configuration cannot be fetched.
    """
    with torch.device("meta"):
        return _build_module(name, sources.architecture(model_cfg)).eval().requires_grad_(False)


def _square_size(name: str, model: torch.nn.Module) -> int:
    """Side of a model's square input image in pixels.

    Raises an error for another shape.
    """
    size = getattr(model.visual, "image_size", None)
    height, width = size if isinstance(size, tuple) else (size, size)
    if height is None or height != width:
        raise SettingsError(f"model '{name}': its input must be a square image, got {size}")
    return int(height)


def give_bias(loaded: LoadedModel, start: float) -> LoadedModel:
    """Give a model a logit_bias with this start value, unless it has one already.

    A softmax leaves any bias undetermined. Scale and bias decide what a pair is taken for before
    training: at a scale of 100, -30 puts pairs of a cosine of .3 between match and mismatch.

    Args:
        loaded: changed in place where it has no bias; its configuration is not.
        start: initial value of the bias.

    Returns:
        The same model, under a configuration that builds it with a bias.
    """
    model = loaded.model
    if getattr(model, "logit_bias", None) is not None:
        return loaded
    scale: torch.Tensor = model.logit_scale  # type: ignore[assignment]
    model.logit_bias = nn.Parameter(torch.full_like(scale, start))
    shown = scale.exp().item()
    log.info("%s: logit_bias starts at %g, at a scale of %.1f.", loaded.name, start, shown)
    config = deepcopy(dict(loaded.config))
    config["model_cfg"]["init_logit_bias"] = start
    return replace(loaded, config=config)


def export(
    loaded: LoadedModel,
    folder: Path,
    *,
    precision: Precision = "fp32",
    metadata: Mapping[str, Any] | None = None,
) -> Path:
    """Write a model as a folder for open_clip, atomically.

    An existing folder is replaced.

    Arguments and errors are those of `write`.
    """
    with atomic_folder(folder) as new:
        write(loaded, new, precision=precision, metadata=metadata)
    return folder


def write(
    loaded: LoadedModel,
    folder: Path,
    *,
    precision: Precision = "fp32",
    metadata: Mapping[str, Any] | None = None,
) -> None:
    """Write configuration, weights, tokenizer and record of a model into a folder.

    Args:
        loaded: the model; its weights may have changed since it was loaded.
        folder: an empty one.
        precision: precision of the weights file. open_clip loads either as float32.
        metadata: further fields of the record (compo.json): method, base fingerprint, commit. The
            fingerprints are always those of the written model.

    Raises:
        ValueError: a weight is not finite, or too large for fp16.
    """
    state = _weights_in_precision(loaded.model, precision)
    # The header travels with the file where someone copies the weights alone.
    header = {"format": "pt", "quick_gelu": str(loaded.quick_gelu).lower(), "name": loaded.name}
    record = {
        **(metadata or {}),
        "precision": precision,
        "name": loaded.name,
        "quick_gelu": loaded.quick_gelu,
        "fingerprint": tensors_hash(state, loaded.config),
        "image_fingerprint": weights.image_fingerprint(state, loaded.config),
        "tokenizer_fingerprint": weights.tokenizer_fingerprint(loaded.tokenize),
        "open_clip": version("open_clip_torch"),
    }
    weights.write(state, folder / weights.WEIGHTS_FILE, header)
    if hasattr(loaded.tokenize, "save_pretrained"):
        loaded.tokenize.save_pretrained(str(folder))
    write_json(folder / weights.CONFIG_FILE, loaded.config)
    record["config_sha256"] = file_hash(folder / weights.CONFIG_FILE)
    write_json(folder / weights.RECORD_FILE, record)


def _weights_in_precision(model: torch.nn.Module, precision: Precision) -> dict[str, torch.Tensor]:
    """State dict on the CPU in a precision.

    Raises an error if a weight is not finite in it.
    """
    kind = {"fp32": torch.float32, "fp16": torch.float16}[precision]
    state = {}
    for name, tensor in model.state_dict().items():
        plain = tensor.detach().cpu()
        if plain.is_floating_point():
            plain = plain.to(kind)
            if not torch.isfinite(plain).all():
                raise ValueError(
                    f"the weight {name} is not finite in {precision}; nothing was written"
                )
        # A copy: safetensors refuses tensors that share memory.
        state[name] = plain.clone(memory_format=torch.contiguous_format)
    return state
