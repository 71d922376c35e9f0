"""From `model` settings to the configuration and weights file of a model."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import open_clip
from open_clip import pretrained as pretrained_weights
from open_clip.transform import PreprocessCfg, merge_preprocess_dict

from compo_pipeline.core.settings import SettingsError, nearest
from compo_pipeline.models import foreign, hub, weights
from compo_pipeline.models.settings import (
    BASES,
    HUB_PREFIX,
    LOCAL_PREFIX,
    REGISTRY_PREFIX,
    ModelSettings,
    is_file,
)
from compo_pipeline.models.weights import CONFIG_FILE, read_record

log = logging.getLogger(__name__)

OPEN_CLIP_WEIGHTS = "open_clip_*.safetensors"
"""Weights that are fetched of a repository of open_clip."""


@dataclass(frozen=True, slots=True)
class ModelSource:
    """Configuration, weights file and record from which a model is built.

    Attributes:
        name: name in logs, errors and exports.
        folder: folder with the model and its tokenizer. None for an architecture of open_clip.
        model_cfg: open_clip's model configuration.
        preprocess_cfg: open_clip's preprocessing configuration, possibly partial.
        weights: the weights file, None for random weights.
        record: record that `export` wrote beside the weights.
    """

    name: str
    folder: Path | None
    model_cfg: dict[str, Any]
    preprocess_cfg: dict[str, Any]
    weights: Path | None
    record: Mapping[str, Any]


def find_source(settings: ModelSettings) -> ModelSource:
    """Find a model's configuration and files.

    Only a configured hub id or tag is downloaded.

    Raises:
        SettingsError: unknown name, missing files, weights that need another activation, or a text
            tower whose positions cannot be stretched.
    """
    plan = _source_by_name(settings)
    if settings.context_length is not None:
        _refuse_unstretchable(plan)
    return plan


def _source_by_name(settings: ModelSettings) -> ModelSource:
    """Configuration and files of a model, found by the kind of its name."""
    name = settings.name
    if name.startswith(REGISTRY_PREFIX):
        raise SettingsError(
            f"model.name: '{name}' is a registered version, which the pipeline benchmark alone "
            f"reads; elsewhere name the exported folder of its run ({LOCAL_PREFIX}<folder>)"
        )
    if name in BASES or name.startswith((LOCAL_PREFIX, HUB_PREFIX)):
        _refuse_second_weights(settings)
    if name in BASES:
        return folder_source(BASES[name](), name)
    if name.startswith(LOCAL_PREFIX):
        folder = Path(name.removeprefix(LOCAL_PREFIX))
        return folder_source(folder, _folder_name(name, folder, read_record(folder)))
    if name.startswith(HUB_PREFIX):
        folder = download_repository(name, OPEN_CLIP_WEIGHTS)
        if (folder / CONFIG_FILE).is_file():
            refuse_without_weights(name, folder, OPEN_CLIP_WEIGHTS)
        return folder_source(folder, name)
    return architecture_source(name, settings.pretrained)


def _folder_name(name: str, folder: Path, record: Mapping[str, Any]) -> str:
    """Name of the model in a folder: its own, or of a fine-tuned one the folder with its lineage.

    A fine-tuned model's own name is that of its base.
    """
    own = str(record.get("name", folder.name))
    training = record.get("training")
    if not isinstance(training, Mapping):
        return own
    data = f" on {record['dataset']}" if "dataset" in record else ""
    return f"{name} ({training.get('method', 'fine-tuned')}{data}, from {own})"


def _refuse_unstretchable(plan: ModelSource) -> None:
    """Raise an error if a text tower's positions cannot be stretched, as only CLIP's can."""
    text_cfg = plan.model_cfg["text_cfg"]
    others = [key for key in ("hf_model_name", "no_causal_mask", "embed_cls") if text_cfg.get(key)]
    if text_cfg.get("pool_type", "argmax") not in ("argmax", "eos"):
        others.append("pool_type")
    if text_cfg.get("context_length", weights.SHORT) != weights.SHORT:
        others.append("context_length")
    if others:
        raise SettingsError(
            f"model.context_length: {weights.LONG} stretches the {weights.SHORT} positions of a "
            f"causal text tower that pools at a text's end; that of '{plan.name}' has "
            f"{others[0]}={text_cfg[others[0]]}; set model.context_length to null"
        )


def with_longer_context(plan: ModelSource) -> ModelSource:
    """The same model source with 248 text positions (`weights.stretch`) in its configuration."""
    model_cfg = deepcopy(plan.model_cfg)
    model_cfg["text_cfg"]["context_length"] = weights.LONG
    # The fingerprints are of the model and the tokenizer as they were.
    return replace(plan, model_cfg=model_cfg, record={})


def _refuse_second_weights(settings: ModelSettings) -> None:
    """Raise an error if `model.pretrained` is a file, for a model with its own weights."""
    if settings.pretrained is None:
        return
    if is_file(settings.pretrained):
        raise SettingsError(
            f"model.pretrained: '{settings.name}' brings its own weights, got the file "
            f"{settings.pretrained}; set model.pretrained to null, or model.name to an open_clip "
            "architecture"
        )
    # A tag comes from an environment written for another model.name: naming a model that has
    # its own weights on the command line is clear enough.
    _report_unused(settings.pretrained, settings.name)


@cache
def _report_unused(tag: str, name: str) -> None:
    """Warn once per process that `model.pretrained` is ignored."""
    log.warning("model.pretrained=%s is not used: '%s' brings its own weights", tag, name)


def folder_source(folder: Path, name: str) -> ModelSource:
    """Configuration and files of a model in a folder that `export` or open_clip wrote.

    Raises:
        SettingsError: it is no such folder, lacks a file, or contradicts itself.
    """
    path = folder / CONFIG_FILE
    if not path.is_file():
        raise SettingsError(
            f"model '{name}': no {CONFIG_FILE} in {folder}; expected a folder that `export` or "
            "open_clip wrote (`compo-pipeline import-model` makes one of a folder of transformers)"
        )
    record = read_record(folder)
    config = foreign.read_config(path)
    foreign.refuse_code(folder, f"model '{name}'")
    if missing := {"embed_dim", "vision_cfg", "text_cfg"} - config.get("model_cfg", {}).keys():
        raise SettingsError(f"model '{name}': {path} has no model_cfg.{min(missing)}")
    file = weights.find(folder)
    quick_gelu = _has_quick_gelu(config["model_cfg"])
    recorded = weights.recorded_quick_gelu(file)
    if recorded != quick_gelu:
        raise SettingsError(
            f"model '{name}': the weights were trained with quick_gelu={recorded}, but {path} "
            f"says quick_gelu={quick_gelu}, which would change every score; restore the file"
        )
    return ModelSource(
        name=name,
        folder=folder,
        model_cfg=config["model_cfg"],
        preprocess_cfg=config.get("preprocess_cfg", {}),
        weights=file,
        record=record,
    )


def architecture_source(
    name: str, pretrained: str | None, quick_gelu: bool | None = None
) -> ModelSource:
    """Configuration and files of an open_clip architecture, with these pretrained weights.

    Args:
        name: name of the architecture.
        pretrained: a tag of open_clip, a file, a folder, or None for random weights.
        quick_gelu: whether a file that does not record it was trained with QuickGELU.

    Raises:
        SettingsError: unknown name or tag, missing file, or weights that need another activation.
    """
    model_cfg = open_clip.get_model_config(name)
    if model_cfg is None:
        known = [*BASES, *open_clip.list_models()]
        raise SettingsError(
            f"model.name: '{name}' is unknown{nearest(name, known)} (known: {', '.join(BASES)}, "
            f"the architectures of open_clip.list_models(), {LOCAL_PREFIX}<folder>, "
            f"{HUB_PREFIX}<owner/model>)"
        )
    preprocess_cfg: dict[str, Any] = {}
    record: dict[str, Any] = {}
    file = None
    if pretrained is not None and is_file(pretrained):
        file = local_file(Path(pretrained))
        _check_activation(name, file, quick_gelu)
        # The fingerprints are of the model of that folder.
        record = read_record(file.parent)
        beside = file.parent / CONFIG_FILE
        if beside.is_file():
            preprocess_cfg = foreign.read_config(beside).get("preprocess_cfg", {})
        record.pop("fingerprint", None)
    elif pretrained is not None:
        file, preprocess_cfg = tag_weights(name, pretrained)
    return ModelSource(name, None, model_cfg, preprocess_cfg, file, record)


def local_file(path: Path) -> Path:
    """Path of a weights file, given as such or as the folder that holds it."""
    if not path.exists():
        raise SettingsError(f"model.pretrained: there is no file or folder {path}")
    return weights.find(path) if path.is_dir() else path


def _check_activation(name: str, file: Path, quick_gelu: bool | None) -> None:
    """Raise an error if weights were trained with another activation than the architecture's."""
    recorded = weights.recorded_quick_gelu(file)
    trained_with = quick_gelu if recorded is None else recorded
    if trained_with is None:
        raise SettingsError(
            f"model.pretrained: {file} does not say whether it was trained with QuickGELU; use "
            f"compo-pipeline import-model {name} <folder> --weights {file} with --quick-gelu "
            "(OpenAI's, DFN's and MetaCLIP's weights) or --no-quick-gelu (LAION's, DataComp's and "
            "most others)"
        )
    if trained_with != _has_quick_gelu(open_clip.get_model_config(name)):
        raise _wrong_activation_error(name, str(file), trained_with)


def tag_weights(name: str, tag: str) -> tuple[Path, dict[str, Any]]:
    """Weights file and open_clip's entry of a pretrained tag, downloaded if it is not cached."""
    entry = _tag_entry(name, tag)
    return _download_tag(name, tag, entry), entry


def _tag_entry(name: str, tag: str) -> dict[str, Any]:
    """open_clip's entry (download address and settings) of a pretrained tag."""
    entry = pretrained_weights.get_pretrained_cfg(name, tag)
    quick_gelu = _has_quick_gelu(open_clip.get_model_config(name))
    if not entry:
        tags = pretrained_weights.list_pretrained_tags_by_model(name)
        sibling = _other_activation_name(name)
        if sibling and pretrained_weights.get_pretrained_cfg(sibling, tag):
            raise _wrong_activation_error(name, tag, not quick_gelu)
        raise SettingsError(
            f"model.pretrained: '{tag}' is no tag of {name} and no file{nearest(tag, tags)} "
            f"(tags: {', '.join(tags) or 'none'}; null gives random weights)"
        )
    if _has_quick_gelu(entry) != quick_gelu:
        raise _wrong_activation_error(name, tag, not quick_gelu)
    return dict(entry)


def _wrong_activation_error(name: str, pretrained: str, trained_with: bool) -> SettingsError:
    """The error to raise for weights that were trained with another activation than the model's."""
    right = _other_activation_name(name)
    fix = f"set model.name to '{right}'" if right else "choose other weights"
    return SettingsError(
        f"model.name: '{name}' has quick_gelu={not trained_with}, but the weights "
        f"'{pretrained}' were trained with quick_gelu={trained_with}, which would change every "
        f"score; {fix}"
    )


def _other_activation_name(name: str) -> str | None:
    """Name of the open_clip architecture that differs only in its activation, or None."""
    plain = name.removesuffix("-quickgelu")
    other = f"{name}-quickgelu" if name == plain else plain
    return other if other in open_clip.list_models() else None


def _has_quick_gelu(config: Mapping[str, Any]) -> bool:
    """Whether a model configuration has the activation QuickGELU."""
    return bool(config.get("quick_gelu", False))


def _download_tag(name: str, tag: str, entry: dict[str, Any]) -> Path:
    """Download open_clip's pretrained weights of a tag, if not cached.

    Returns the file's path.
    """
    # `owner/model/`, or `owner/model/file`.
    repository, _, file = entry.get("hf_hub", "").rpartition("/")
    try:
        if repository:
            file = hub.cached_file(repository, [file] if file else weights.KNOWN_FILES)
            if file is not None:
                return file
            hub.check_repository(repository)
        return Path(pretrained_weights.download_pretrained(entry))
    except Exception as error:
        place = repository or entry.get("url", "")
        raise SettingsError(
            f"model.pretrained: the weights '{tag}' of {name} could not be downloaded "
            f"({type(error).__name__}: {hub.first_line(error)}). Without a network, fetch them "
            f"elsewhere ({place}) and use compo-pipeline import-model {name} <folder> --weights "
            f"<file> --{'' if _has_quick_gelu(entry) else 'no-'}quick-gelu"
        ) from error


def download_repository(name: str, *patterns: str) -> Path:
    """Local folder of a hub repository with its configuration and matching weights files.

    The name is `hf-hub:<owner/model>`.
    """
    identifier = name.removeprefix(HUB_PREFIX)
    wanted = ["*.json", "*.txt", "*.model", *patterns]
    try:
        return hub.cached_folder(identifier, wanted) or hub.download(identifier, wanted)
    except Exception as error:
        raise SettingsError(
            f"model.name: {name} could not be downloaded "
            f"({type(error).__name__}: {hub.first_line(error)}). Without a network, fetch its "
            f"folder ({CONFIG_FILE}, open_clip_model.safetensors, tokenizer files) elsewhere and "
            f"set model.name={LOCAL_PREFIX}<folder>"
        ) from error


def refuse_without_weights(name: str, folder: Path, *patterns: str) -> None:
    """Raise an error if a hub repository (`hf-hub:<owner/model>`) has no weights that are read."""
    if any(any(folder.glob(pattern)) for pattern in patterns):
        return
    raise SettingsError(
        f"model.name: {name} has no weights that are fetched: expected {' or '.join(patterns)}. Of "
        f"transformers' safetensors use compo-pipeline import-model {name} <new folder>; .bin and "
        ".pt files (tensors are read, nothing is run) fetch yourself and use compo-pipeline "
        "import-model <folder with its open_clip_config.json> <new folder>, or compo-pipeline "
        "import-model <architecture> <new folder> --weights <file>"
    )


def preprocessing(partial: Mapping[str, Any], size: tuple[int, int]) -> dict[str, Any]:
    """open_clip's full preprocessing configuration, from a partial one, in a form for JSON."""
    merged = merge_preprocess_dict(asdict(PreprocessCfg()), dict(partial))
    merged["size"] = list(size)
    return {k: list(v) if isinstance(v, tuple) else v for k, v in merged.items()}


def architecture(model_cfg: Mapping[str, Any]) -> dict[str, Any]:
    """Model configuration that builds without downloading pretrained weights of a tower."""
    config = deepcopy(dict(model_cfg))
    if "timm_model_name" in config["vision_cfg"]:
        config["vision_cfg"]["timm_model_pretrained"] = False
    if "hf_model_name" in config["text_cfg"]:
        config["text_cfg"]["hf_model_pretrained"] = False
    return config
