"""Verify the files of a registered version by hashes and probe embeddings, and load its model.

Whatever opens a version does so through `verified`. Nothing of its folder is imported or unpickled
there, so that a folder may come from a store that others write.

P probe images, T probe texts, D width of the joint space.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TypeVar

import mlflow
import numpy as np
import torch
from mlflow.entities.model_registry import ModelVersion
from PIL import Image

import compo_decoding
from compo_pipeline.core.compute import choose_device
from compo_pipeline.core.settings import PlainError, SettingsError
from compo_pipeline.core.untrusted import read_json
from compo_pipeline.evaluation.scorers import Scorer, load_scorer
from compo_pipeline.evaluation.settings import ListedModel
from compo_pipeline.models.encoding import embed
from compo_pipeline.models.loading import LoadedModel, load
from compo_pipeline.models.settings import REGISTRY_PREFIX, ModelSettings
from compo_pipeline.models.weights import CONFIG_FILE, PROBES
from compo_pipeline.registry.evidence import Evidence, read_evidence
from compo_pipeline.registry.lineage import LINEAGE_FILE, Lineage, check_lineage, read_public_key
from compo_pipeline.registry.settings import SigningSettings
from compo_pipeline.registry.versions import version_of

# The code that MLflow runs for a version (models from code), and the file that it imports.
SERVED_CODE, DECODER = Path(__file__).with_name("model.py"), Path(compo_decoding.__file__)
_CODE = {Path(SERVED_CODE.name): SERVED_CODE, Path("code", DECODER.name): DECODER}
PROBES_FILE = "probes.json"
# Largest difference of a coordinate of a probe's embedding, of length 1, in float32 on a CPU.
TOLERANCE = 1e-4
# Endings of a version's files. None is a pickle's, and code is in `_CODE` alone.
_ENDINGS = {"", ".json", ".md", ".model", ".parquet", ".safetensors", ".sig", ".txt", ".yaml"}
_DIGITS = 16
_Read = TypeVar("_Read")


class VersionError(PlainError, ValueError):
    """Exception: a version's files are not the registered ones.

    It names version and file.
    """


@dataclass(frozen=True, slots=True)
class VerifiedFiles:
    """Local copy of a version's files, checked to be the registered ones.

    Attributes:
        folder: MLflow's model folder, with MLmodel.
        export: the open_clip folder in it.
        lineage: origin of the version.
        evidence: evidence of the version.
    """

    folder: Path
    export: Path
    lineage: Lineage
    evidence: Evidence

    def load(self) -> LoadedModel:
        """Load the model on the CPU, and check its fingerprint and its probe embeddings.

        Raises:
            VersionError: it is not the model that was registered.
        """
        return self.read(partial(load_checked, registered=self.lineage.fingerprint))

    def read(self, reader: Callable[[Path], _Read]) -> _Read:
        """Apply a reading function, such as `read_tables`, to the exported folder.

        Raises:
            VersionError: it cannot be read.
        """
        with _version_errors(self.lineage.name, self.lineage.version, self.folder):
            return reader(self.export)


def verified(version: ModelVersion, folder: Path, signing: SigningSettings) -> VerifiedFiles:
    """Download a version's files and check them against the registry.

    It loads no model.

    Checks the signature, if a key is configured, that there is no code and no pickle, and the
    lineage and the digests of all files against the registry.

    Args:
        version: version of the registry.
        folder: folder of the copy, empty or missing.
        signing: the configured keys, if any.

    Raises:
        VersionError: a file is missing, changed, added or cannot be read; names version and file.
        SettingsError: the public key cannot be used.
    """
    key = read_public_key(signing)
    with _version_errors(version.name, version.version, folder):
        files = download(f"models:/{version.name}/{version.version}", folder)
        refuse_code(files, signed=key is not None)
        lineage = check_lineage(version, files, key)
        export = exported_folder(files)
        return VerifiedFiles(files, export, lineage, read_evidence(export))


def download(uri: str, folder: Path) -> Path:
    """Download MLflow's model folder at a URI, without Python's bytecode, and return its copy."""
    folder.mkdir(parents=True, exist_ok=True)
    files = Path(mlflow.artifacts.download_artifacts(uri, dst_path=str(folder)))
    # Python writes it where MLflow runs a version from a store that is a folder.
    for code in _CODE:
        shutil.rmtree(files / code.with_name("__pycache__"), ignore_errors=True)
    return files


def refuse_code(files: Path, *, signed: bool) -> None:
    """Refuse a folder with a pickle or with other code than the served model's.

    Args:
        files: MLflow's model folder.
        signed: whether its files are signed; they may then have the code of another release.

    Raises:
        ValueError: there is such a file; names it.
    """
    for path in sorted(files.rglob("*")):
        name = path.relative_to(files)
        if path.is_file() and name not in _CODE and path.suffix not in _ENDINGS:
            raise ValueError(f"{name} is a {path.suffix} file, which no version has")
    for name, own in _CODE.items():
        code = files / name
        if not signed and code.is_file() and code.read_bytes() != own.read_bytes():
            raise ValueError(f"{name} is not this program's code, and is not signed")


def exported_folder(files: Path) -> Path:
    """Path of the exported open_clip folder within a version's MLflow model folder.

    Raises:
        ValueError: there is none, or there are several.
    """
    found = [path.parent for path in sorted(files.glob(f"artifacts/*/{CONFIG_FILE}"))]
    if len(found) != 1:
        raise ValueError(f"artifacts has {len(found)} folders with {CONFIG_FILE}, expected one")
    return found[0]


@contextmanager
def _version_errors(name: str, number: int | str, folder: Path) -> Iterator[None]:
    """Context manager: errors about a version's files become a VersionError that names it."""
    try:
        yield
    except Exception as error:
        # Damaged files raise errors of several libraries.
        reason = error.message if isinstance(error, PlainError) else str(error)
        reason = reason.replace(f"{folder}/", "")
        raise VersionError(
            f"registration.name: {name} version {number} is not the model that was registered and "
            f"scored: {reason}. `kedro run --pipeline=registration` registers its checkpoint as a "
            "new version"
        ) from error


def load_model(
    model: ModelSettings, device: str | torch.device, signing: SigningSettings
) -> LoadedModel:
    """Load the model of the `model` settings, whose name may be the URI of a registered version.

    Raises:
        SettingsError: there is no such model.
        VersionError: the version's files are not those that were registered.
    """
    if not model.name.startswith(REGISTRY_PREFIX):
        return load(model, device)
    version = version_of(model.name, "model.name")
    with tempfile.TemporaryDirectory() as folder:
        loaded = verified(version, Path(folder), signing).load().to(device)
    return replace(loaded, name=f"{version.name} version {version.version}")


def open_models(
    models: Mapping[str, ListedModel], device: str, signing: SigningSettings, store: Path
) -> dict[str, Callable[[], LoadedModel | Scorer]]:
    """Functions that load models and scorers, by name.

    `device` is that of `evaluation.device`, `store` a folder for the answers of servers.
    """
    place = choose_device(device, key="evaluation.device")
    return {
        name: partial(load_scorer, each, name, place, store)
        if each.scorer
        else partial(load_model, each, place, signing)
        for name, each in models.items()
    }


def load_base(lineage: Lineage, base: ModelSettings, device: str) -> LoadedModel:
    """Load a base model and check that the version was fine-tuned from it.

    Args:
        lineage: lineage of the version.
        base: the base's settings.
        device: device where the weights go.

    Raises:
        SettingsError: `model` names another one.
    """
    loaded = load(base, device)
    if lineage.base_fingerprint != loaded.fingerprint:
        raise SettingsError(
            f"model: version {lineage.version} was fine-tuned from another model than "
            f"'{loaded.name}', or does not say from which (base_fingerprint of {LINEAGE_FILE}); "
            "set model.name, model.pretrained, model.context_length and model.config as in its "
            "training"
        )
    return loaded


def write_probes(export: Path) -> None:
    """Write the embeddings of fixed probe images and texts into an exported model's folder."""
    embeddings = embed(load(export), _probe_images(), PROBES)
    content = dict(zip(("images", "texts"), (each.tolist() for each in embeddings), strict=True))
    (export / PROBES_FILE).write_text(json.dumps(content), encoding="utf-8")


def load_checked(export: Path, registered: str | None) -> LoadedModel:
    """Load an exported model, and check its weights' fingerprint and its probe embeddings.

    Raises:
        ValueError: they are others than the registered ones.
    """
    model = load(export)
    if model.fingerprint != registered:
        expected = "none" if registered is None else registered[:_DIGITS]
        raise ValueError(
            f"its weights have the fingerprint {model.fingerprint[:_DIGITS]}, {LINEAGE_FILE} names "
            f"{expected}"
        )
    stored = read_json(export / PROBES_FILE)
    embeddings = embed(model, _probe_images(), PROBES)
    for kind, computed in zip(("images", "texts"), embeddings, strict=True):
        difference = (computed - torch.tensor(stored[kind])).abs().max().item()
        # A difference that is not a number is above it too.
        if not difference <= TOLERANCE:
            raise ValueError(
                f"an embedding of the probe {kind} differs from {PROBES_FILE} by {difference:.2g}, "
                f"at most {TOLERANCE:g} is allowed"
            )
    return model


def _probe_images() -> Iterator[Image.Image]:
    """Yield the probe images: a wide, a tall and a square one with generated patterns."""
    for height, width in ((48, 96), (96, 48), (80, 80)):
        y, x = np.mgrid[:height, :width]
        yield Image.fromarray(np.stack([5 * x, 3 * y, x * y], axis=2).astype(np.uint8))
