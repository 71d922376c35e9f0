"""Manifest of a version: its identity, its origin, and the hash of each file.

`lineage.json` lies in the version's folder, so that the folder of one version cannot stand for
another one's. What the registry says of the version, in tags that anybody who writes there can
edit, must be the same. With keys, `model.sig` is the file's signature (ECDSA over SHA-256), and
thereby the whole folder's. A copy by MLflow's `copy_model_version` has the lineage of the version
that it was made from, which its source names.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import mlflow
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import load_pem_private_key, load_pem_public_key
from mlflow.entities.model_registry import ModelVersion

from compo_pipeline.core.files import write_json
from compo_pipeline.core.hashing import file_hash
from compo_pipeline.core.settings import SettingsError, parse
from compo_pipeline.core.untrusted import read_json
from compo_pipeline.registry.settings import SigningSettings

LINEAGE_FILE, SIGNATURE_FILE = "lineage.json", "model.sig"
# MLflow writes the third into every copy that it downloads.
_UNLISTED = {LINEAGE_FILE, SIGNATURE_FILE, "registered_model_meta"}
# Tag with the digest of all files.
FILES_TAG = "files"
_COPIED = re.compile(r"models:/([^/]+)/([0-9]+)")
_ALGORITHM = ec.ECDSA(SHA256())
_DIGITS = 16


@dataclass(frozen=True, slots=True)
class Lineage:
    """Identity of a registered version: model name, number, run, hashes of data, base and files.

    Attributes:
        name: the registered model.
        version: number of the version, which a registry gives once and counts upwards.
        run_id: the run that the version was registered from.
        data_hash: fingerprint of the training data; None if unknown.
        base_fingerprint: fingerprint of the weights that training started from. None if unknown.
        fingerprint: fingerprint of the version's weights.
        files: digest of all other files, by `file_digests`.
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


def file_digests(folder: Path) -> tuple[dict[str, str], str]:
    """SHA-256 of each file of a version's folder by path, and one over all of these.

    Lineage and signature files are left out.
    """
    names = {file.relative_to(folder).as_posix(): file for file in folder.rglob("*")}
    found = {
        name: file_hash(file)
        for name, file in sorted(names.items())
        if file.is_file() and name not in _UNLISTED
    }
    return found, hashlib.sha256(json.dumps(found, sort_keys=True).encode()).hexdigest()


def write_lineage(version: ModelVersion, folder: Path, keys: SigningSettings) -> list[Path]:
    """Write a version's lineage with file digests and, with keys, its signature.

    Returns the files.

    Raises:
        SettingsError: the private key cannot be used.
    """
    content = {**asdict(Lineage.from_registry(version)), "digests": file_digests(folder)[0]}
    file, signature = folder / LINEAGE_FILE, folder / SIGNATURE_FILE
    write_json(file, content)
    if keys.public_key is None:
        return [file]
    signature.write_bytes(_private_key(keys).sign(file.read_bytes(), _ALGORITHM))
    return [file, signature]


def check_lineage(
    version: ModelVersion, folder: Path, key: ec.EllipticCurvePublicKey | None
) -> Lineage:
    """Check a folder's lineage file by its signature, the folder's files and the registry's tags.

    Raises:
        ValueError: one of them differs; names the field, or the file that was changed, added or is
            missing.
    """
    file, signature = folder / LINEAGE_FILE, folder / SIGNATURE_FILE
    if not file.is_file():
        raise ValueError(f"{LINEAGE_FILE} is missing: its registration was not finished")
    if key is not None:
        if not signature.is_file():
            raise ValueError(f"{SIGNATURE_FILE} is missing: it was registered without signing")
        try:
            key.verify(signature.read_bytes(), file.read_bytes(), _ALGORITHM)
        except InvalidSignature:
            raise ValueError(
                f"{SIGNATURE_FILE} is of another key, or {LINEAGE_FILE} was changed"
            ) from None
    content = read_json(file)
    if not isinstance(content, dict) or not isinstance(content.get("digests"), dict):
        raise ValueError(f"{LINEAGE_FILE} has no digests")
    recorded, (found, files) = content.pop("digests"), file_digests(folder)
    for name in sorted(recorded.keys() | found.keys()):
        if recorded.get(name) != found.get(name):
            what = "changed" if name in recorded else "added"
            raise ValueError(f"{name} {f'was {what}' if name in found else 'is missing'}")
    ours = asdict(parse(Lineage, {**content, "files": files}, LINEAGE_FILE))
    for name, theirs in asdict(registered := Lineage.from_registry(version)).items():
        if ours[name] != theirs:
            raise ValueError(
                f"{LINEAGE_FILE} names the {name} {_shortened(ours[name])}, the registry names "
                f"{_shortened(theirs)}"
            )
    return registered


def read_public_key(signing: SigningSettings) -> ec.EllipticCurvePublicKey | None:
    """The key that verifies, or None if none is configured.

    Raises:
        SettingsError: it cannot be used.
    """
    if signing.public_key is None:
        return None
    with _key_errors("public_key", signing.public_key):
        key = load_pem_public_key(signing.public_key.read_bytes())
        if not isinstance(key, ec.EllipticCurvePublicKey):
            raise TypeError("it is of another kind")
        return key


def check_keys(signing: SigningSettings, *, signs: bool) -> None:
    """Check the configured keys, the private one only if it `signs`.

    Raises:
        SettingsError: one cannot be used, or they are no pair.
    """
    public = read_public_key(signing)
    if public is not None and signs and _private_key(signing).public_key() != public:
        raise SettingsError(
            f"registration.signing.public_key: '{signing.public_key}' is not the public key of "
            f"'{signing.private_key}' (private_key)"
        )


def _private_key(signing: SigningSettings) -> ec.EllipticCurvePrivateKey:
    """The key that signs."""
    file = signing.private_key
    if file is None:
        raise SettingsError(
            "registration.signing.private_key: expected the PEM file of the key that signs, got "
            "null"
        )
    with _key_errors("private_key", file):
        key = load_pem_private_key(file.read_bytes(), password=None)
        if not isinstance(key, ec.EllipticCurvePrivateKey):
            raise TypeError("it is of another kind")
        return key


@contextmanager
def _key_errors(name: str, file: Path) -> Iterator[None]:
    """Context manager: errors about a key become a SettingsError that names its YAML key."""
    try:
        yield
    except (OSError, TypeError, ValueError, UnsupportedAlgorithm) as error:
        raise SettingsError(
            f"registration.signing.{name}: cannot use '{file}' ({error}); expected the PEM file of "
            "an elliptic-curve key without a password (openssl pkey -in <file> removes one)"
        ) from None


def _shortened(value: object) -> str:
    """The first 16 characters of a value for an error message, or "none" if it is empty."""
    return "none" if value is None or value == "" else str(value)[:_DIGITS]
