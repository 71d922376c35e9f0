"""From `model` settings to the configuration and weights file of a model."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import open_clip
from open_clip import pretrained as pretrained_weights

from compo_pipeline.core.settings import SettingsError, leaves, nearest, with_values
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

OPEN_CLIP_WEIGHTS = ("open_clip_*.safetensors",)
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
    """Find a model's configuration and files, by the kind of its name.

    Only a configured hub id or tag is downloaded.

    Raises:
        SettingsError: unknown name, missing files, weights that need another activation, or a text
            tower whose positions cannot be stretched.
    """
    name = settings.name
    if name.startswith(REGISTRY_PREFIX):
        raise SettingsError(
            f"model.name: '{name}' is a registered version, which the pipeline benchmark alone "
            f"reads; elsewhere name the exported folder of its run ({LOCAL_PREFIX}<folder>)"
        )
    if name in BASES:
        plan = folder_source(BASES[name](), name)
    elif name.startswith(LOCAL_PREFIX):
        folder = Path(name.removeprefix(LOCAL_PREFIX))
        plan = folder_source(folder, _folder_name(name, folder, read_record(folder)))
    elif name.startswith(HUB_PREFIX):
        plan = folder_source(download_repository(name, OPEN_CLIP_WEIGHTS), name)
    else:
        plan = architecture_source(name, settings.pretrained)
    if plan.folder is not None and settings.pretrained is not None:
        _refuse_second_weights(name, settings.pretrained)
    plan = _with_changes(plan, settings.config)
    if settings.context_length is not None:
        _refuse_unstretchable(plan)
    return plan


def find_architecture(settings: ModelSettings) -> ModelSource:
    """Find a model's configuration without weights, to inspect its architecture.

    Raises:
        SettingsError: unknown name or missing files.
    """
    if settings.name.startswith(HUB_PREFIX):
        path = download_repository(settings.name, [CONFIG_FILE]) / CONFIG_FILE
        model_cfg = _read_model(path, settings.name)["model_cfg"]
        plan = ModelSource(settings.name, path.parent, model_cfg, {}, None, {})
        plan = _with_changes(plan, settings.config)
    else:
        plan = find_source(replace(settings, pretrained=None))
    if settings.context_length is not None:
        _refuse_unstretchable(plan)
        plan.model_cfg["text_cfg"]["context_length"] = settings.context_length
    return plan


def _with_changes(plan: ModelSource, changes: Mapping[str, Any]) -> ModelSource:
    """The same model source with `model.config` in its configuration."""
    if not changes:
        return plan
    foreign.check_config({"model_cfg": changes}, "model.config")
    model_cfg = with_values(plan.model_cfg, dict(leaves(changes)))
    _check_activation(plan.name, model_cfg, plan.weights, plan.model_cfg.get("quick_gelu", False))
    # The fingerprints are of the model as it was.
    return replace(plan, model_cfg=model_cfg, record={})


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
    others = [
        key
        for key in ("hf_model_name", "hf_pooler_type", "no_causal_mask", "embed_cls")
        if text_cfg.get(key)
    ]
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


@cache
def _refuse_second_weights(name: str, pretrained: str) -> None:
    """Raise an error if `model.pretrained` is a file, for a model with its own weights.

    A tag comes from an environment written for another model.name: naming a model that has its
    own weights on the command line is clear enough, and one warning in a process.
    """
    if is_file(pretrained):
        raise SettingsError(
            f"model.pretrained: '{name}' brings its own weights, got the file {pretrained}; set "
            "model.pretrained to null, or model.name to an open_clip architecture"
        )
    log.warning("model.pretrained=%s is not used: '%s' brings its own weights", pretrained, name)


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
    record, config = read_record(folder), _read_model(path, name)
    model_cfg = config["model_cfg"]
    foreign.refuse_code(folder, f"model '{name}'")
    file = weights.find(folder)
    _check_activation(name, model_cfg, file, weights.recorded_quick_gelu(file))
    return ModelSource(name, folder, model_cfg, config.get("preprocess_cfg", {}), file, record)


def _read_model(path: Path, name: str) -> dict[str, Any]:
    """Read an open_clip_config.json, and check that it describes a model."""
    config = foreign.read_config(path)
    if missing := {"embed_dim", "vision_cfg", "text_cfg"} - config.get("model_cfg", {}).keys():
        raise SettingsError(f"model '{name}': {path} has no model_cfg.{min(missing)}")
    return config


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
    if pretrained is None:
        return ModelSource(name, None, model_cfg, {}, None, {})
    if not is_file(pretrained):
        file, entry = tag_weights(name, pretrained)
        return ModelSource(name, None, model_cfg, entry, file, {})
    file = local_file(Path(pretrained))
    recorded = weights.recorded_quick_gelu(file)
    if recorded is None and quick_gelu is None:
        raise SettingsError(
            f"model.pretrained: {file} does not say whether it was trained with QuickGELU; use "
            f"compo-pipeline import-model {name} <folder> --weights {file} with --quick-gelu "
            "(OpenAI's, DFN's and MetaCLIP's weights) or --no-quick-gelu (LAION's, DataComp's and "
            "most others)"
        )
    _check_activation(name, model_cfg, file, quick_gelu if recorded is None else recorded)
    beside = file.parent / CONFIG_FILE
    preprocess_cfg = (
        foreign.read_config(beside).get("preprocess_cfg", {}) if beside.is_file() else {}
    )
    # The fingerprint is of the model of that folder.
    record = {key: each for key, each in read_record(file.parent).items() if key != "fingerprint"}
    return ModelSource(name, None, model_cfg, preprocess_cfg, file, record)


def local_file(path: Path) -> Path:
    """Path of a weights file, given as such or as the folder that holds it."""
    if not path.exists():
        raise SettingsError(f"model.pretrained: there is no file or folder {path}")
    return weights.find(path) if path.is_dir() else path


def _check_activation(
    name: str, model_cfg: Mapping[str, Any], pretrained: object, trained_with: bool | None
) -> None:
    """Raise an error if weights were trained with another activation than the model's."""
    if (own := bool(model_cfg.get("quick_gelu"))) == bool(trained_with):
        return
    known, right = open_clip.list_models(), _other_activation(name)
    fix = "" if name in known else f"restore {CONFIG_FILE}, or "
    if right in known:
        fix = f"set model.name to '{right}', or "
    raise SettingsError(
        f"model.name: '{name}' has quick_gelu={own}, but the weights '{pretrained}' were trained "
        f"with quick_gelu={trained_with}, which would change every score; {fix}choose other "
        "weights"
    )


def _other_activation(name: str) -> str:
    """Name in open_clip of the architecture that differs only in its activation, if there is one.

    Of ViT-B-32 it is ViT-B-32-quickgelu, and the other way round.
    """
    plain = name.removesuffix("-quickgelu")
    return f"{name}-quickgelu" if name == plain else plain


def tag_weights(name: str, tag: str) -> tuple[Path, dict[str, Any]]:
    """Weights file and open_clip's entry of a pretrained tag, downloaded if it is not cached."""
    entries = (
        pretrained_weights.get_pretrained_cfg(each, tag) for each in (name, _other_activation(name))
    )
    entry: dict[str, Any] = next(filter(None, entries), {})
    if not entry:
        tags = pretrained_weights.list_pretrained_tags_by_model(name)
        raise SettingsError(
            f"model.pretrained: '{tag}' is no tag of {name} and no file{nearest(tag, tags)} "
            f"(tags: {', '.join(tags) or 'none'}; null gives random weights)"
        )
    quick_gelu = bool(entry.get("quick_gelu"))
    _check_activation(name, open_clip.get_model_config(name), tag, quick_gelu)
    # `owner/model/`, or `owner/model/file`.
    repository, _, file = entry.get("hf_hub", "").rpartition("/")
    try:
        if repository:
            names = [file] if file else weights.KNOWN_FILES
            if (cached := hub.cached_file(repository, names)) is not None:
                return cached, entry
            hub.check_repository(repository)
        return Path(pretrained_weights.download_pretrained(entry)), entry
    except Exception as error:
        raise SettingsError(
            f"model.pretrained: the weights '{tag}' of {name} could not be downloaded "
            f"({hub.reason(error)}). Without a network, fetch them elsewhere "
            f"({repository or entry.get('url', '')}) and use compo-pipeline import-model {name} "
            f"<folder> --weights <file> --{'' if quick_gelu else 'no-'}quick-gelu"
        ) from error


def download_repository(name: str, *kinds: Sequence[str]) -> Path:
    """Local folder of a hub repository with its configuration, and weights of the first kind.

    Args:
        name: `hf-hub:<owner/model>`.
        kinds: patterns of weights files, tried one kind after another.

    Raises:
        SettingsError: it cannot be downloaded, or has weights of no kind.
    """
    for patterns in kinds:
        wanted = ["*.json", "*.txt", "*.model", *patterns]
        try:
            folder = hub.folder(name.removeprefix(HUB_PREFIX), wanted)
        except Exception as error:
            raise SettingsError(
                f"model.name: {name} could not be downloaded ({hub.reason(error)}). Without a "
                f"network, fetch its folder ({CONFIG_FILE}, open_clip_model.safetensors, tokenizer "
                f"files) elsewhere and set model.name={LOCAL_PREFIX}<folder>"
            ) from error
        if any(any(folder.glob(pattern)) for pattern in patterns):
            return folder
    expected = " or ".join(pattern for patterns in kinds for pattern in patterns)
    raise SettingsError(
        f"model.name: {name} has no weights that are fetched: expected {expected}. Of "
        f"transformers' safetensors use compo-pipeline import-model {name} <new folder>; .bin and "
        ".pt files (tensors are read, nothing is run) fetch yourself and use compo-pipeline "
        "import-model <folder with its configuration> <new folder>, or compo-pipeline "
        "import-model <architecture> <new folder> --weights <file>"
    )


def architecture(model_cfg: Mapping[str, Any]) -> dict[str, Any]:
    """Model configuration that builds without downloading pretrained weights of a tower."""
    config = deepcopy(dict(model_cfg))
    if "timm_model_name" in config["vision_cfg"]:
        config["vision_cfg"]["timm_model_pretrained"] = False
    if "hf_model_name" in config["text_cfg"]:
        config["text_cfg"]["hf_model_pretrained"] = False
    return config
