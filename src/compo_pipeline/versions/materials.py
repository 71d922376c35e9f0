"""Materials of a version: what it was made from, each with its hash and its licence.

`bom.cdx.json` lists them for programs, as a CycloneDX bill of materials whose subject is the model
(https://cyclonedx.org/docs/1.6/json/); the model card lists them for readers.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from email.message import Message
from importlib.metadata import PackageNotFoundError, distribution, entry_points
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast
from uuid import NAMESPACE_URL, uuid5

from packaging.licenses import InvalidLicenseExpression, canonicalize_license_expression
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from compo_pipeline import __version__
from compo_pipeline.counterfactuals.settings import (
    EDITOR_GROUP,
    GENERATOR_GROUP,
    CounterfactualSettings,
)
from compo_pipeline.datasets.generators import GENERATORS
from compo_pipeline.datasets.recaption.settings import RecaptionSettings
from compo_pipeline.datasets.settings import DataSettings
from compo_pipeline.models.settings import BASES, ModelSettings
from compo_pipeline.models.weights import WEIGHTS_FILE
from compo_pipeline.storage.files import file_sha256, write_plain_json
from compo_pipeline.versions.layout import BOM_FILE

if TYPE_CHECKING:
    from compo_pipeline.evaluation.comparison import Row
    from compo_pipeline.versions.settings import Licences

Kind = Literal["machine-learning-model", "data"]

UNKNOWN = "unknown"
DATA_PARTS = ("captions", "images")
"""Parts that are the data set."""
_SPEC = "1.6"
_PACKAGE = "compo-pipeline"
# A licence's whole text stands in some packages' field for its name.
_LONGEST = 80
_MODEL = "model"
_MODEL_TYPE: Kind = "machine-learning-model"
_TASK = "image-text matching"
_RULES = "rules"
# Of open_clip's weights, by the beginning of their tag: openai/CLIP's LICENSE and its model card,
# mlfoundations/open_clip issue 177, the model card of timm/ViT-B-16-SigLIP.
_OF_TAGS = {
    "openai": "MIT by its repository, not stated of the weights",
    "laion": "MIT",
    "datacomp": "MIT",
    "webli": "Apache-2.0",
}


@dataclass(frozen=True, slots=True)
class Material:
    """A model or a data set that a version was made from, with its licence and hashes.

    Attributes:
        part: key of `registration.licences`.
        label: what it is, for readers.
        kind: type of CycloneDX's component.
        name: of the model, the data set or the program that wrote it.
        version: of it, or a fingerprint; empty where it has none.
        licence: an SPDX expression or another name; None if unknown.
        fingerprint: of data, the hash over all their files; None of anything else.
        files: sha256 by name, of those that are hashed one by one.
    """

    part: str
    label: str
    kind: Kind
    name: str
    version: str = ""
    licence: str | None = None
    fingerprint: str | None = None
    files: tuple[tuple[str, str], ...] = ()


def data_materials(
    dataset: str, data: DataSettings, manifest: Mapping[str, Any]
) -> tuple[Material, Material]:
    """Training captions and training images, each as a `Material`, with caption files' hashes."""
    licence = _plugin_licence(GENERATORS.group, data.format)
    files, digest = manifest["files"], manifest["data_hash"]
    label = f"images ({manifest['count'] - len(files):,})"
    captions, images = DATA_PARTS
    return (
        Material(captions, captions, "data", dataset, "", licence, digest, (*files.items(),)),
        Material(images, label, "data", dataset, "", licence, digest),
    )


def base_material(model: ModelSettings) -> Material:
    """The base model as a `Material`, with the licence of its package or pretrained tag."""
    tag = model.pretrained or ""
    stated = (licence for start, licence in _OF_TAGS.items() if tag.startswith(start))
    licence = _plugin_licence(BASES.group, model.name) or next(stated, None)
    return Material("base", "base model", _MODEL_TYPE, model.name, tag, licence)


def parser_material(meta: Mapping[str, Any]) -> Material:
    """The spaCy pipeline that parses captions as a `Material`, from its `meta` mapping."""
    name, version, licence = (str(meta.get(key, "")) for key in ("name", "version", "license"))
    return Material("parser", "parser", _MODEL_TYPE, name, version, licence or None)


def captioner_material(settings: RecaptionSettings) -> Iterator[Material]:
    """Yield the captioning model as a `Material`; yields nothing if none is configured."""
    if settings.captioner is not None:
        name = _model_name(settings.captioner, settings)
        yield Material("captioner", "captions by a model", _MODEL_TYPE, name)


def counterfactual_materials(settings: CounterfactualSettings) -> Iterator[Material]:
    """Yield the configured caption editor and image generator, each as a `Material`."""
    editor, generator = settings.caption_editor, settings.image_generator
    for part, label, chosen, group in (
        ("caption_editor", "edits of captions", editor, EDITOR_GROUP),
        ("image_generator", "images of edits", generator, GENERATOR_GROUP),
    ):
        if chosen is not None:
            own = chosen == _RULES
            licence = _licence_of(_PACKAGE) if own else _plugin_licence(group, chosen)
            name = _model_name(chosen, settings)
            yield Material(part, label, "data", name, "", licence)


def _model_name(chosen: str, settings: Any) -> str:
    """The model, folder or file in a component's settings, or else the component's own name."""
    own = getattr(settings, chosen)
    named = (own.get(key) for key in ("model", "folder", "path", "file"))
    return next(filter(None, named), chosen)


def with_licence(material: Material, licences: Licences) -> Material:
    """Model or data set with the licence of `registration.licences`; unchanged if none is set."""
    named = getattr(licences, material.part)
    return material if named is None else replace(material, licence=named)


def _plugin_licence(group: str, name: str) -> str | None:
    """Licence of the installed package that provides an entry point; None if no package does."""
    points = entry_points(group=group, name=name)
    return next((_licence_of(one.dist.name) for one in points if one.dist is not None), None)


def _licence_of(package: str) -> str | None:
    """Licence that the metadata of an installed package state; None if they state none."""
    return stated_licence(cast(Message, distribution(package).metadata))


def stated_licence(metadata: Message) -> str | None:
    """Licence that a package's metadata state; None where they state none.

    It is the SPDX expression, else the classifiers, else a short field.
    """
    if expression := metadata.get("License-Expression"):
        return str(expression)
    prefix = "License :: "
    classifiers = [
        each.rpartition(" :: ")[2]
        for each in metadata.get_all("Classifier", [])
        if each.startswith(prefix) and each != f"{prefix}OSI Approved"
    ]
    if classifiers:
        return " or ".join(classifiers)
    field = str(metadata.get("License") or "").strip()
    return field if 0 < len(field) <= _LONGEST and "\n" not in field else None


def installed_packages(name: str = _PACKAGE) -> dict[str, tuple[str, str | None]]:
    """Version and licence of a package and of its installed dependencies, by canonical name.

    Packages that only its extras need are left out, and those that are not installed.
    """
    found: dict[str, tuple[str, str | None]] = {}
    waiting = [canonicalize_name(name)]
    while waiting:
        one = waiting.pop()
        if one in found:
            continue
        try:
            package = distribution(one)
        except PackageNotFoundError:
            continue
        found[one] = package.version, stated_licence(cast(Message, package.metadata))
        needed = map(Requirement, package.requires or ())
        waiting += [
            canonicalize_name(each.name)
            for each in needed
            if each.marker is None or each.marker.evaluate({"extra": ""})
        ]
    return dict(sorted(found.items()))


def write_bom(
    folder: Path,
    name: str,
    licence: str | None,
    record: Mapping[str, Any],
    materials: Sequence[Material],
    figures: Iterable[Row],
    limits: Collection[str],
) -> Path:
    """Write the CycloneDX bill of materials into an exported model's folder.

    It has no date and a serial number that follows from the content, so that the same version has
    the same file.

    Args:
        folder: of the export, with its weights.
        name: of the registered model.
        licence: of the version's weights; None if it is not stated.
        record: of the export (`compo.json`).
        materials: of the version.
        figures: rows of its evaluation.
        limits: sentences of its model card.
    """
    fingerprint = record["fingerprint"]
    parts = [_material_component(one) for one in materials]
    packages = [_package_component(*one) for one in installed_packages().items()]
    model = {
        "type": _MODEL_TYPE,
        "bom-ref": _MODEL,
        "name": name,
        "version": fingerprint[:16],
        "licenses": _licences(licence),
        "hashes": [_sha256_object(file_sha256(folder / WEIGHTS_FILE))],
        "properties": _properties(_record_properties(record)),
        "modelCard": {
            "modelParameters": {
                "task": _TASK,
                "architectureFamily": "CLIP",
                "modelArchitecture": record["name"],
                "datasets": [
                    {"ref": _material_ref(one)} for one in materials if one.kind == "data"
                ],
                "inputs": [{"format": "image"}, {"format": "text"}],
                "outputs": [{"format": "cosine similarity"}],
            },
            "quantitativeAnalysis": {
                "performanceMetrics": [_performance_metric(row) for row in figures]
            },
            "considerations": {"technicalLimitations": list(limits)},
        },
    }
    components = [*parts, *packages]
    refs = [one["bom-ref"] for one in components]
    serial = uuid5(NAMESPACE_URL, "/".join((name, fingerprint, *refs)))
    bom = {
        "$schema": f"http://cyclonedx.org/schema/bom-{_SPEC}.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": _SPEC,
        "serialNumber": serial.urn,
        "version": 1,
        "metadata": {
            "tools": {
                "components": [{"type": "application", "name": _PACKAGE, "version": __version__}]
            },
            "component": model,
        },
        "components": components,
        "dependencies": [{"ref": _MODEL, "dependsOn": refs}],
    }
    write_plain_json(folder / BOM_FILE, bom)
    return folder / BOM_FILE


def _record_properties(record: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield names and values of the export record's fields that the bill of materials repeats."""
    training = record.get("training", {}).get("fingerprint", {})
    for key in ("fingerprint", "tokenizer_fingerprint", "checkpoint_sha256", "precision"):
        yield key, record.get(key)
    for key in ("method", "variant", "seed"):
        yield key, record.get(key)
    for key in ("model", "code", "views"):
        yield f"training.{key}", training.get(key)


def _material_component(material: Material) -> dict[str, Any]:
    """The CycloneDX component (a dict) of a model or data set."""
    component: dict[str, Any] = {
        "type": material.kind,
        "bom-ref": _material_ref(material),
        "name": material.name,
        "version": material.version,
        "description": material.label,
        "licenses": _licences(material.licence),
        "properties": _properties([("fingerprint", material.fingerprint)]),
    }
    if material.files:
        component["components"] = [
            {
                "type": "file",
                "bom-ref": f"{_material_ref(material)}/{name}",
                "name": name,
                "hashes": [_sha256_object(sha256)],
            }
            for name, sha256 in material.files
        ]
    return component


def _package_component(name: str, stated: tuple[str, str | None]) -> dict[str, Any]:
    """The CycloneDX component (a dict) of an installed package."""
    version, licence = stated
    url = f"pkg:pypi/{name}@{version.replace('+', '%2B')}"
    return {
        "type": "library",
        "bom-ref": url,
        "name": name,
        "version": version,
        "purl": url,
        "licenses": _licences(licence),
    }


def _material_ref(material: Material) -> str:
    """The identifier (`bom-ref`) of a material within the bill of materials."""
    return re.sub(r"[^\w.:/-]", "-", f"{material.part}/{material.name}")


def _sha256_object(digest: str) -> dict[str, str]:
    """A SHA-256 digest as a CycloneDX hash object."""
    return {"alg": "SHA-256", "content": digest}


def _licences(licence: str | None) -> list[dict[str, Any]]:
    """A licence as CycloneDX licences: an SPDX expression if it is a valid one, else a name."""
    try:
        return [{"expression": canonicalize_license_expression(licence or "")}]
    except InvalidLicenseExpression:
        return [{"license": {"name": licence or UNKNOWN}}]


def _properties(pairs: Iterable[tuple[str, Any]]) -> list[dict[str, str]]:
    """Pairs of name and value as CycloneDX properties; pairs with the value None are left out."""
    return [
        {"name": f"compo-pipeline:{name}", "value": str(value)}
        for name, value in pairs
        if value is not None
    ]


def _performance_metric(row: Row) -> dict[str, Any]:
    """A metric in per cent with its 95% interval, as a CycloneDX performance metric."""
    return {
        "type": f"{row.benchmark}/{row.metric}/{row.name}",
        "value": f"{row.estimate.value:.2f}",
        "confidenceInterval": {
            "lowerBound": f"{row.estimate.low:.2f}",
            "upperBound": f"{row.estimate.high:.2f}",
        },
    }
