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

from compo_pipeline.configuration import SettingsError, nearest
from compo_pipeline.models import checkpoints, foreign, hf_import, hub, weights
from compo_pipeline.models.checkpoints import Layout
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


@dataclass(frozen=True, slots=True)
class ModelSource:
    """Configuration, weights file and record that a model is built from.

    Attributes:
        name: name in logs, errors and exports.
        folder: that holds the model, its tokenizer too; None for an architecture of open_clip.
        model_cfg: open_clip's model configuration.
        preprocess_cfg: open_clip's preprocessing configuration, possibly partial.
        weights: the weights file, None for random weights.
        record: what `export` noted beside the weights.
        context_length: token ids of a text, where the settings or the layout state them.
        mixed_with: weights that the file is mixed with, and the file's share; None for none.
    """

    name: str
    folder: Path | None
    model_cfg: dict[str, Any]
    preprocess_cfg: dict[str, Any]
    weights: Path | None
    record: Mapping[str, Any]
    context_length: int | None = None
    mixed_with: tuple[Path, float] | None = None


def find_source(settings: ModelSettings) -> ModelSource:
    """Find a model's parts, downloading them only where a hub id or tag is configured.

    Raises:
        SettingsError: unknown name, missing files, or weights that need another activation.
    """
    name = settings.name
    if name.startswith(REGISTRY_PREFIX):
        raise SettingsError(
            f"model.name: '{name}' is a registered version, which the pipeline benchmark alone "
            f"reads; elsewhere name the exported folder of its run ({LOCAL_PREFIX}<folder>)"
        )
    if name in BASES or name.startswith((LOCAL_PREFIX, HUB_PREFIX)):
        _refuse_second_weights(settings)
    if name in BASES:
        return _of_folder(BASES[name](), name, settings)
    if name.startswith(LOCAL_PREFIX):
        folder = Path(name.removeprefix(LOCAL_PREFIX))
        return _of_folder(folder, read_record(folder).get("name", folder.name), settings)
    if name.startswith(HUB_PREFIX):
        return _of_folder(_download_repository(name.removeprefix(HUB_PREFIX)), name, settings)
    return _of_architecture(settings)


def _refuse_second_weights(settings: ModelSettings) -> None:
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
    """Warn once in a process: a run loads its base several times."""
    log.warning("model.pretrained=%s is not used: '%s' brings its own weights", tag, name)


def _of_folder(folder: Path, name: str, settings: ModelSettings) -> ModelSource:
    if settings.layout is not None:
        raise SettingsError(
            f"model.layout: '{name}' is a folder, expected null; a layout is of a weights file at "
            "model.pretrained, with model.name as its architecture"
        )
    path = folder / CONFIG_FILE
    if not path.is_file() and hf_import.is_of_transformers(folder):
        return _of_transformers(folder, name, settings.context_length)
    if not path.is_file():
        raise SettingsError(
            f"model '{name}': no {CONFIG_FILE} in {folder}; expected a folder that `export`, "
            "open_clip or transformers wrote"
        )
    if settings.context_length is not None:
        raise SettingsError(
            f"model.context_length: {path} states that of '{name}'; set model.context_length to "
            "null"
        )
    config = foreign.read_config(path)
    foreign.refuse_code(folder, f"model '{name}'")
    if "model_cfg" not in config:
        raise SettingsError(f"model '{name}': {path} has no 'model_cfg'")
    file = weights.find(folder)
    quick_gelu = _quick_gelu(config["model_cfg"])
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
        record=read_record(folder),
    )


def _of_transformers(folder: Path, name: str, context_length: int | None) -> ModelSource:
    """CLIP or SigLIP as transformers writes them; of its files, numbers and tensors are read."""
    split = hf_import.is_split(folder)
    if split and context_length is None:
        context_length = checkpoints.LAYOUTS["triplet_clip"].context_length
    config = hf_import.open_clip_config(folder, context_length)
    return ModelSource(
        name=name,
        folder=folder,
        model_cfg=config["model_cfg"],
        preprocess_cfg=config["preprocess_cfg"],
        weights=folder if split else weights.find(folder),
        record={},
        context_length=config["model_cfg"]["text_cfg"]["context_length"],
    )


def _of_architecture(settings: ModelSettings) -> ModelSource:
    name, pretrained = settings.name, settings.pretrained
    model_cfg = open_clip.get_model_config(name)
    if model_cfg is None:
        known = [*BASES, *open_clip.list_models()]
        raise SettingsError(
            f"model.name: '{name}' is unknown{nearest(name, known)} (known: {', '.join(BASES)}, "
            f"the architectures of open_clip.list_models(), {LOCAL_PREFIX}<folder>, "
            f"{HUB_PREFIX}<owner/model>)"
        )
    layout = None
    if settings.layout is not None:
        if pretrained is None or not is_file(pretrained):
            raise SettingsError(
                f"model.layout: '{settings.layout}' is of a weights file, expected its path at "
                f"model.pretrained, got {pretrained}"
            )
        layout = checkpoints.LAYOUTS[settings.layout]
        settings = replace(
            settings,
            quick_gelu=layout.quick_gelu if settings.quick_gelu is None else settings.quick_gelu,
            context_length=settings.context_length or layout.context_length,
        )
    if settings.context_length is not None:
        model_cfg["text_cfg"]["context_length"] = settings.context_length
    preprocess_cfg: dict[str, Any] = {}
    record: Mapping[str, Any] = {}
    file = None
    if pretrained is not None and is_file(pretrained):
        file = _local_file(Path(pretrained))
        _check_file_activation(settings, file, _quick_gelu(model_cfg))
        beside = file.parent / CONFIG_FILE
        if beside.is_file():
            preprocess_cfg = foreign.read_config(beside).get("preprocess_cfg", {})
        record = read_record(file.parent)
    elif pretrained is not None:
        preprocess_cfg = _tag_entry(name, pretrained)
        file = _download_tag(name, pretrained, preprocess_cfg)
    return ModelSource(
        name=name,
        folder=None,
        model_cfg=model_cfg,
        preprocess_cfg=preprocess_cfg,
        weights=file,
        record=record,
        context_length=settings.context_length,
        mixed_with=_mixture(settings, layout),
    )


def _mixture(settings: ModelSettings, layout: Layout | None) -> tuple[Path, float] | None:
    """The weights that a layout mixes its file with, and the file's share."""
    if layout is None or layout.base is None:
        if settings.mixed_with is not None:
            mixed = ", ".join(name for name, each in checkpoints.LAYOUTS.items() if each.base)
            raise SettingsError(
                f"model.mixed_with: expected null with model.layout={settings.layout or 'null'} "
                f"(layouts that are mixtures: {mixed}), got '{settings.mixed_with}'"
            )
        return None
    base = settings.mixed_with or layout.base
    if is_file(base):
        return _local_file(Path(base)), layout.share
    entry = _tag_entry(settings.name, base)
    return _download_tag(settings.name, base, entry), layout.share


def _local_file(path: Path) -> Path:
    if not path.exists():
        raise SettingsError(f"model.pretrained: there is no file or folder {path}")
    return weights.find(path) if path.is_dir() else path


def _check_file_activation(settings: ModelSettings, file: Path, quick_gelu: bool) -> None:
    recorded = weights.recorded_quick_gelu(file)
    stated = settings.quick_gelu if recorded is None else recorded
    if stated is None:
        raise SettingsError(
            f"model.pretrained: {file} does not say whether it was trained with QuickGELU; set "
            "model.quick_gelu to true (OpenAI's, DFN's and MetaCLIP's weights) or false (LAION's, "
            "DataComp's and most others)"
        )
    if stated != quick_gelu:
        raise _wrong_activation(settings.name, str(file), stated)


def _tag_entry(name: str, tag: str) -> dict[str, Any]:
    """open_clip's entry of a pretrained tag."""
    entry = pretrained_weights.get_pretrained_cfg(name, tag)
    quick_gelu = _quick_gelu(open_clip.get_model_config(name))
    if not entry:
        tags = pretrained_weights.list_pretrained_tags_by_model(name)
        sibling = _sibling(name)
        if sibling and pretrained_weights.get_pretrained_cfg(sibling, tag):
            raise _wrong_activation(name, tag, not quick_gelu)
        raise SettingsError(
            f"model.pretrained: '{tag}' is no tag of {name} and no file{nearest(tag, tags)} "
            f"(tags: {', '.join(tags) or 'none'}; null gives random weights)"
        )
    if _quick_gelu(entry) != quick_gelu:
        raise _wrong_activation(name, tag, not quick_gelu)
    return dict(entry)


def _wrong_activation(name: str, pretrained: str, trained_with: bool) -> SettingsError:
    right = _sibling(name)
    fix = f"set model.name to '{right}'" if right else "choose other weights"
    return SettingsError(
        f"model.name: '{name}' has quick_gelu={not trained_with}, but the weights "
        f"'{pretrained}' were trained with quick_gelu={trained_with}, which would change every "
        f"score; {fix}"
    )


def _sibling(name: str) -> str | None:
    """The architecture that differs from one in its activation alone."""
    model_cfg = open_clip.get_model_config(name)
    wanted = {**model_cfg, "quick_gelu": not _quick_gelu(model_cfg)}
    for other in open_clip.list_models():
        config = open_clip.get_model_config(other)
        if {**config, "quick_gelu": _quick_gelu(config)} == wanted:
            return str(other)
    return None


def _quick_gelu(config: Mapping[str, Any]) -> bool:
    return bool(config.get("quick_gelu", False))


def _download_tag(name: str, tag: str, entry: dict[str, Any]) -> Path:
    # `owner/model/`, or `owner/model/file`.
    repository, _, file = entry.get("hf_hub", "").rpartition("/")
    try:
        if repository:
            file = hub.cached_file(repository, [file] if file else weights.KNOWN_FILES)
            if file is not None:
                return file
            hub.ask(repository)
        return Path(pretrained_weights.download_pretrained(entry))
    except Exception as error:
        place = repository or entry.get("url", "")
        raise SettingsError(
            f"model.pretrained: the weights '{tag}' of {name} could not be downloaded "
            f"({type(error).__name__}: {hub.first_line(error)}). Without a network, fetch them "
            f"elsewhere ({place}) and set model.pretrained=<file>,"
            f"model.quick_gelu={str(_quick_gelu(entry)).lower()}; or name a "
            f"folder that open_clip or `export` wrote: model.name={LOCAL_PREFIX}<folder>"
        ) from error


def _download_repository(identifier: str) -> Path:
    try:
        for files_of in ("open_clip_*.safetensors", "model.safetensors */model.safetensors"):
            wanted = ["*.json", "*.txt", "*.model", *files_of.split()]
            folder = hub.cached(identifier, wanted) or hub.download(identifier, wanted)
            if (folder / CONFIG_FILE).is_file():
                break
    except Exception as error:
        raise SettingsError(
            f"model.name: {HUB_PREFIX}{identifier} could not be downloaded "
            f"({type(error).__name__}: {hub.first_line(error)}). Without a network, fetch its "
            f"folder ({CONFIG_FILE}, open_clip_model.safetensors, tokenizer files) elsewhere and "
            f"set model.name={LOCAL_PREFIX}<folder>"
        ) from error
    return folder


def preprocessing(partial: Mapping[str, Any], size: tuple[int, int]) -> dict[str, Any]:
    """open_clip's full preprocessing configuration, in the form that JSON keeps."""
    merged = merge_preprocess_dict(asdict(PreprocessCfg()), dict(partial))
    merged["size"] = list(size)
    return {k: list(v) if isinstance(v, tuple) else v for k, v in merged.items()}


def architecture(model_cfg: Mapping[str, Any]) -> dict[str, Any]:
    """A model configuration that builds without downloading a trunk's own weights."""
    config = deepcopy(dict(model_cfg))
    if "timm_model_name" in config["vision_cfg"]:
        config["vision_cfg"]["timm_model_pretrained"] = False
    if "hf_model_name" in config["text_cfg"]:
        config["text_cfg"]["hf_model_pretrained"] = False
    return config
