"""A version's files: probes that are stored with them, the one check before they are used, loading.

Promotion, rollback, copies, the page and the server open a version through `verified`. Nothing of
its folder is imported or unpickled there, so that a folder may come from a store that others write.

P probe images, T probe texts, D width of the joint space.
"""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mlflow
import numpy as np
import torch
import yaml
from click import ClickException
from mlflow.entities.model_registry import ModelVersion
from PIL import Image
from torch import Tensor

from compo_pipeline.configuration import SettingsError
from compo_pipeline.models.encoding import encode_images, encode_texts
from compo_pipeline.models.loading import LoadedModel, load
from compo_pipeline.models.settings import REGISTRY_PREFIX, ModelSettings
from compo_pipeline.models.weights import PROBES, read_record
from compo_pipeline.registry import signing as signing_keys
from compo_pipeline.registry.settings import SigningSettings
from compo_pipeline.registry.versions import version_of

# The code that MLflow runs for a version (models from code).
SERVED_CODE = Path(__file__).with_name("model.py")
# Packages that it imports. MLflow's own inference would load the model in a new process and look
# packages up.
SERVING_PACKAGES = (
    "mlflow",
    "numpy",
    "open_clip_torch",
    "pandas",
    "pillow",
    "safetensors",
    "timm",
    "torch",
    "torchvision",
)
# Of models with a tokenizer of Hugging Face.
TOKENIZER_PACKAGE = "transformers"
# Name of the exported folder among the logged model's artefacts.
ARTEFACT = "model"
PROBES_FILE = "probes.json"
# Largest difference of a coordinate of a probe's embedding, of length 1, in float32 on a CPU.
TOLERANCE = 1e-4
_LOADER = "mlflow.pyfunc.loaders.code_model"
_FLAVOR = "python_function"
# What MLflow writes about a model from code; other keys name further code or a pickled model.
_FLAVOR_KEYS = {
    "artifacts",
    "cloudpickle_version",
    "env",
    "loader_module",
    "model_code_path",
    "python_version",
    "streamable",
}
_ENVIRONMENT_PACKAGES = {"pip", "python", "setuptools", "wheel"}
_REQUIREMENT = re.compile(r"([\w.-]+)(?:[=<]=?[\w.!]+)?")
_DIGITS = 16


class VersionError(ClickException, ValueError):
    """A version whose files are not those that were registered; names version and file."""


@dataclass(frozen=True, slots=True)
class VerifiedVersion:
    """Local files of a version that passed all checks.

    Attributes:
        folder: MLflow's model folder, with MLmodel.
        export: the open_clip folder in it.
        model: loaded from `export`, on the CPU.
    """

    folder: Path
    export: Path
    model: LoadedModel

    @property
    def scores(self) -> Mapping[str, str]:
        """sha256 of the tables of scores at registration, by their path in the run's artefacts."""
        digests: Mapping[str, str] = read_record(self.export).get("scores", {})
        return digests


def verified(
    version: ModelVersion, folder: Path, signing: SigningSettings, store: str | None = None
) -> VerifiedVersion:
    """Copy a version's files and check that they are the model that was scored.

    In this order: the signature or, without signing, that MLflow would run this program's code
    alone; the fingerprint of the weights, against the version's tag; the embeddings of the probes.

    Args:
        version: of the registry.
        folder: of the copy, empty or missing.
        signing: the configured keys, if any.
        store: URI of the version's registry; None is the configured one.

    Raises:
        VersionError: a file is missing, changed, added or cannot be read; names version and file.
        SettingsError: the public key cannot be used.
    """
    public_key = signing.public_key
    verifier = None if public_key is None else signing_keys.verifier(public_key)
    name = f"{version.name} version {version.version}"
    uri = f"models:/{version.name}/{version.version}"
    folder.mkdir(parents=True, exist_ok=True)
    try:
        files = Path(
            mlflow.artifacts.download_artifacts(
                uri, dst_path=str(folder), tracking_uri=store, registry_uri=store
            )
        )
        if verifier is None:
            _check_code(files)
        else:
            signing_keys.check(files, verifier)
        export = _exported(files)
        model = _loaded(export, version.tags.get("fingerprint"))
    except Exception as error:
        # Damaged files raise errors of several libraries.
        reason = error.message if isinstance(error, ClickException) else str(error)
        reason = reason.replace(f"{folder}/", "")
        raise VersionError(
            f"registration.name: {name} is not the model that was registered and scored: {reason}. "
            "`kedro run --pipeline=registration` registers its checkpoint as a new version"
        ) from error
    return VerifiedVersion(files, export, model)


def load_model(
    model: ModelSettings, device: str | torch.device, signing: SigningSettings
) -> LoadedModel:
    """Load the model of the `model` settings, which may be the URI of a registered version.

    Raises:
        SettingsError: there is no such model.
        VersionError: the version's files are not those that were registered.
    """
    if not model.name.startswith(REGISTRY_PREFIX):
        return load(model, device)
    version = version_of(model.name, "model.name")
    with tempfile.TemporaryDirectory() as folder:
        return verified(version, Path(folder), signing).model.to(device)


def load_base(version: ModelVersion, base: ModelSettings, device: str) -> LoadedModel:
    """Load the base that a version was fine-tuned from.

    Raises:
        SettingsError: `model` names another one.
    """
    loaded = load(base, device)
    if version.tags.get("base_fingerprint") != loaded.fingerprint:
        raise SettingsError(
            f"model: version {version.version} was fine-tuned from another model than "
            f"'{loaded.name}', or does not say from which (tag base_fingerprint); set model.name "
            "and model.pretrained as they were in its training"
        )
    return loaded


def write_probes(export: Path) -> None:
    """Store the embeddings of the probes by the model of an exported folder, in that folder."""
    embeddings = _probe_embeddings(load(export))
    content = {kind: values.tolist() for kind, values in embeddings.items()}
    (export / PROBES_FILE).write_text(json.dumps(content), encoding="utf-8")


def sign(folder: Path, fingerprint: str, signing: SigningSettings) -> Path:
    """Sign MLflow's model folder, copied back from the store, and return the signature's file.

    Args:
        folder: all of its files are signed, if it is the model that was logged.
        fingerprint: of the model that was logged.
        signing: the keys.

    Raises:
        SettingsError: the private key cannot be used.
        ValueError: the folder is not what was logged.
    """
    _check_code(folder)
    _loaded(_exported(folder), fingerprint)
    return signing_keys.sign(folder, signing)


def _exported(files: Path) -> Path:
    """The exported folder that the served model loads."""
    artefacts = _flavors(files)[_FLAVOR].get("artifacts") or {}
    if set(artefacts) != {ARTEFACT}:
        raise ValueError(f"MLmodel names the artefacts {sorted(artefacts)}, not '{ARTEFACT}' alone")
    export = files / str(artefacts[ARTEFACT]["path"])
    if not export.resolve().is_relative_to(files.resolve()) or not export.is_dir():
        raise ValueError(f"MLmodel names the folder '{artefacts[ARTEFACT]['path']}'; there is none")
    return export


def _flavors(files: Path) -> dict[str, Any]:
    flavors: dict[str, Any] = yaml.safe_load((files / "MLmodel").read_text("utf-8"))["flavors"]
    if _FLAVOR not in flavors:
        raise ValueError(f"MLmodel has no flavor {_FLAVOR}")
    return flavors


def _check_code(files: Path) -> None:
    """Check that MLflow would run this program's code alone, in the packages that it needs."""
    flavors = _flavors(files)
    flavor = {key: value for key, value in flavors[_FLAVOR].items() if value is not None}
    foreign = sorted({*(set(flavors) - {_FLAVOR}), *(set(flavor) - _FLAVOR_KEYS)})
    if foreign:
        raise ValueError(f"MLmodel has {', '.join(foreign)}, which this program does not write")
    if flavor["loader_module"] != _LOADER:
        raise ValueError(f"MLmodel: loader_module is {flavor['loader_module']}, not {_LOADER}")
    code = Path(flavor["model_code_path"]).name
    if (files / code).read_bytes() != SERVED_CODE.read_bytes():
        raise ValueError(f"{code} is not the code of this program's version, and is not signed")
    allowed = {*SERVING_PACKAGES, TOKENIZER_PACKAGE, *_ENVIRONMENT_PACKAGES}
    for file, line in _requirements(files):
        found = _REQUIREMENT.fullmatch(line.strip())
        if found is None or found[1] not in allowed:
            raise ValueError(f"{file} requires '{line}', which the served model does not need")


def _requirements(files: Path) -> Iterator[tuple[str, str]]:
    """File and line of every requirement of the environments that MLflow can build."""
    pip, conda, virtualenv = "requirements.txt", "conda.yaml", "python_env.yaml"
    for line in (files / pip).read_text("utf-8").splitlines():
        yield pip, line
    environment = yaml.safe_load((files / conda).read_text("utf-8"))
    for entry in environment["dependencies"]:
        for line in entry["pip"] if isinstance(entry, Mapping) else [entry]:
            yield conda, line
    environment = yaml.safe_load((files / virtualenv).read_text("utf-8"))
    for line in (*environment["build_dependencies"], *environment["dependencies"]):
        if line != f"-r {pip}":
            yield virtualenv, line


def _loaded(export: Path, scored: str | None) -> LoadedModel:
    """Load an exported model and compare it with what was scored and with its probes."""
    model = load(export)
    if model.fingerprint != scored:
        expected = "no fingerprint" if scored is None else f"the fingerprint {scored[:_DIGITS]}"
        raise ValueError(
            f"its weights have the fingerprint {model.fingerprint[:_DIGITS]}, its tag "
            f"`fingerprint` names {expected}"
        )
    file = export / PROBES_FILE
    if not file.is_file():
        raise ValueError(f"{PROBES_FILE} is missing")
    stored = json.loads(file.read_text(encoding="utf-8"))
    for kind, computed in _probe_embeddings(model).items():
        expected_values = torch.tensor(stored[kind])
        if expected_values.shape != computed.shape:
            raise ValueError(
                f"{PROBES_FILE}: {kind} are {list(expected_values.shape)}, expected "
                f"{list(computed.shape)}"
            )
        difference = (computed - expected_values).abs().amax(dim=1)
        # A difference that is not a number is above it too.
        above = (~(difference <= TOLERANCE)).nonzero().flatten().tolist()
        if above:
            raise ValueError(
                f"the embedding of probe {above[0]} of the {kind} differs from {PROBES_FILE} by "
                f"{difference[above[0]]:.2g}, at most {TOLERANCE:g} is allowed"
            )
    return model


@torch.inference_mode()
def _probe_embeddings(model: LoadedModel) -> dict[str, Tensor]:
    """Embeddings of generated images [P, D] and of awkward texts [T, D]."""
    pixels = torch.stack([model.preprocess(image) for image in _probe_images()])
    return {
        "images": encode_images(model.model, pixels),
        "texts": encode_texts(model.model, model.tokenize(list(PROBES))),
    }


def _probe_images() -> Iterator[Image.Image]:
    """A wide, a tall and a square image of three different patterns."""
    for height, width in ((48, 96), (96, 48), (80, 80)):
        y, x = np.mgrid[:height, :width]
        yield Image.fromarray(np.stack([5 * x, 3 * y, x * y], axis=2).astype(np.uint8))
