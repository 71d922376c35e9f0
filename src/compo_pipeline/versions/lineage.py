"""Lineage of a version: which version of which model a folder is, and what it was made from.

The file lies in the version's folder and is signed with it, so that the folder of one version
cannot stand for another one's. What the registry says of the version, in tags that anybody who
writes there can edit, must be the same. A copy by MLflow's `copy_model_version` has the lineage of
the version that it was made from, which its source names.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path

import mlflow
from mlflow.entities.model_registry import ModelVersion

from compo_pipeline.configuration.settings import parse
from compo_pipeline.storage.files import write_json
from compo_pipeline.storage.hashing import file_hash
from compo_pipeline.storage.untrusted import read_json
from compo_pipeline.versions.signing import UNSIGNED_FILES

LINEAGE_FILE = "lineage.json"
# Tag with the digest of all files.
FILES_TAG = "files"
_COPIED = re.compile(r"models:/([^/]+)/([0-9]+)")
_DIGITS = 16


@dataclass(frozen=True, slots=True)
class Lineage:
    """Identity of a registered version: model name, number, run, hashes of data, base and files.

    Attributes:
        name: the registered model.
        version: number of the version, which a registry gives once and counts upwards.
        run_id: the run that the version was registered from.
        data_hash: fingerprint of the training data; None if unknown.
        base_fingerprint: of the weights that training started from; None if unknown.
        fingerprint: of the version's weights.
        files: digest of all other files, by `files_digest`.
    """

    name: str
    version: int
    run_id: str
    data_hash: str | None
    base_fingerprint: str | None
    fingerprint: str | None
    files: str | None

    @classmethod
    def from_registry(cls, version: ModelVersion) -> Lineage:
        """The lineage of a registered version, from its fields and tags in the MLflow registry."""
        origin = _origin(version)
        return cls(
            name=origin.name,
            version=int(origin.version),
            run_id=version.run_id or "",
            data_hash=version.tags.get("data_hash"),
            base_fingerprint=version.tags.get("base_fingerprint"),
            fingerprint=version.tags.get("fingerprint"),
            files=version.tags.get(FILES_TAG),
        )


def _origin(version: ModelVersion) -> ModelVersion:
    """The version that a version is a copy of, or the version itself."""
    copied = _COPIED.fullmatch(version.source or "")
    if copied is None:
        return version
    return _origin(mlflow.MlflowClient().get_model_version(*copied.groups()))


def file_digests(folder: Path) -> dict[str, str]:
    """SHA-256 of each file of a version's folder by path, without lineage and signature files."""
    own = {LINEAGE_FILE, *UNSIGNED_FILES}
    names = {file.relative_to(folder).as_posix(): file for file in folder.rglob("*")}
    return {
        name: file_hash(file)
        for name, file in sorted(names.items())
        if file.is_file() and name not in own
    }


def files_digest(digests: Mapping[str, str]) -> str:
    """One SHA-256 over a mapping of file paths to their digests."""
    return hashlib.sha256(json.dumps(digests, sort_keys=True).encode()).hexdigest()


def write_lineage(version: ModelVersion, folder: Path) -> Path:
    """Write a version's lineage and file digests into its folder; returns the path of the file."""
    content = {**asdict(Lineage.from_registry(version)), "digests": file_digests(folder)}
    write_json(folder / LINEAGE_FILE, content)
    return folder / LINEAGE_FILE


def check_lineage(version: ModelVersion, folder: Path) -> Lineage:
    """Check a folder's lineage file against the registry's tags and the digests of its files.

    Raises:
        ValueError: it is not; names the field, or the file that was changed, added or is missing.
    """
    file = folder / LINEAGE_FILE
    if not file.is_file():
        raise ValueError(f"{LINEAGE_FILE} is missing: its registration was not finished")
    content = read_json(file)
    if not isinstance(content, dict) or not isinstance(content.get("digests"), dict):
        raise ValueError(f"{LINEAGE_FILE} has no digests")
    recorded: dict[str, str] = content.pop("digests")
    lineage, registered = parse(Lineage, content, LINEAGE_FILE), Lineage.from_registry(version)
    for each in fields(Lineage):
        ours, theirs = getattr(lineage, each.name), getattr(registered, each.name)
        if ours != theirs:
            raise ValueError(
                f"{LINEAGE_FILE} names the {each.name} {_shortened(ours)}, the registry names "
                f"{_shortened(theirs)}"
            )
    found = file_digests(folder)
    for name in sorted(recorded.keys() | found.keys()):
        if name not in recorded:
            raise ValueError(f"{name} was added")
        if name not in found:
            raise ValueError(f"{name} is missing")
        if recorded[name] != found[name]:
            raise ValueError(f"{name} was changed")
    if files_digest(found) != lineage.files:
        raise ValueError(
            f"its files have the digest {_shortened(files_digest(found))}, {LINEAGE_FILE} and the "
            f"tag `{FILES_TAG}` name {_shortened(lineage.files)}"
        )
    return lineage


def _shortened(value: object) -> str:
    """The first 16 characters of a value for an error message, or "none" if it is empty."""
    return "none" if value is None or value == "" else str(value)[:_DIGITS]
