"""Licences of a version's parts: base model, data, and models that prepared the data."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import entry_points, metadata
from typing import Any, NamedTuple

from compo_pipeline.data.generators import GENERATORS
from compo_pipeline.data.settings import DataSettings
from compo_pipeline.generation.counterfactuals.settings import (
    CAPTION_EDITORS,
    IMAGE_GENERATORS,
    CounterfactualSettings,
)
from compo_pipeline.generation.recaption.settings import RecaptionSettings
from compo_pipeline.language.parsing import load_once
from compo_pipeline.methods.registry import find
from compo_pipeline.models.settings import BASES, ModelSettings

UNKNOWN = "unknown"
_PACKAGE = "compo-pipeline"
_RULES = "rules"
# Of open_clip's weights, by the beginning of their tag: openai/CLIP's LICENSE and its model card,
# mlfoundations/open_clip issue 177, the model card of timm/ViT-B-16-SigLIP.
_OF_TAGS = {
    "openai": "MIT by its repository, not stated of the weights",
    "laion": "MIT",
    "datacomp": "MIT",
    "webli": "Apache-2.0",
}


class Material(NamedTuple):
    """A model or a data set that a version was made from, with its licence."""

    part: str
    """Key of `registration.licences`."""
    label: str
    """Label of the part for readers."""
    name: str
    """Name of the model, of the data set or of the program that wrote it."""
    version: str = ""
    """Version or tag of the part. Empty if it has none."""
    licence: str | None = None
    """An SPDX expression or another name; None if it is unknown."""

    def licensed(self, licences: Mapping[Any, str | None]) -> Material:
        """The material with the licence that `registration.licences` sets for it, if any."""
        return self._replace(licence=licences.get(self.part) or self.licence)


def list_materials(
    manifest: Mapping[str, Any],
    model: ModelSettings,
    dataset: str,
    data: DataSettings,
    method: str,
    language_model: str,
    recaption: RecaptionSettings,
    counterfactuals: CounterfactualSettings,
) -> list[Material]:
    """Base model, data sets, and models that prepared the data, each with its licence."""
    tag = model.pretrained or ""
    stated = (licence for start, licence in _OF_TAGS.items() if tag.startswith(start))
    licence = _plugin_licence(BASES.group, model.name) or next(stated, None)
    found = [Material("base", "base model", model.name, tag, licence)]
    licence = _plugin_licence(GENERATORS.group, data.format)
    images = f"images ({manifest['count'] - len(manifest['files']):,})"
    found.append(Material("captions", "captions", dataset, licence=licence))
    found.append(Material("images", images, dataset, licence=licence))
    if recaption.captioner is not None:
        name = _model_name(recaption.captioner, recaption)
        found.append(Material("captioner", "captions by a model", name))
    meta = load_once(language_model).meta
    name, version, licence = (str(meta.get(key, "")) for key in ("name", "version", "license"))
    found.append(Material("parser", "parser", name, version, licence or None))
    editor, generator = counterfactuals.caption_editor, counterfactuals.image_generator
    for part, label, chosen, group in (
        ("caption_editor", "edits of captions", editor, CAPTION_EDITORS.group),
        ("image_generator", "images of edits", generator, IMAGE_GENERATORS.group),
    ):
        if chosen is not None and find(method).counterfactuals:
            own = chosen == _RULES
            licence = _licence_of(_PACKAGE) if own else _plugin_licence(group, chosen)
            name = _model_name(chosen, counterfactuals)
            found.append(Material(part, label, name, licence=licence))
    return found


def _model_name(chosen: str, settings: Any) -> str:
    """The model, folder or file in a component's settings, or else the component's own name."""
    own = getattr(settings, chosen)
    named = (getattr(own, key, None) for key in ("model", "folder", "path", "file"))
    return next(filter(None, named), chosen)


def _plugin_licence(group: str, name: str) -> str | None:
    """Licence of the installed package that provides an entry point, or None if no package does."""
    points = entry_points(group=group, name=name)
    return next((_licence_of(one.dist.name) for one in points if one.dist is not None), None)


def _licence_of(package: str) -> str | None:
    """SPDX expression of an installed package's licence, if its metadata state one."""
    return next(iter(metadata(package).get_all("License-Expression", [])), None)
