"""Signatures of model folders (sigstore's model-signing) with an elliptic-curve key, offline."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from compo_pipeline.configuration.settings import SettingsError, pip_install
from compo_pipeline.versions.settings import SigningSettings

if TYPE_CHECKING:
    from model_signing.hashing import Config as Hashing
    from model_signing.signing import Config as Signer
    from model_signing.verifying import Config as Verifier

SIGNATURE_FILE = "model.sig"
# MLflow writes it into every copy that it downloads.
_DOWNLOAD_RECORD = "registered_model_meta"
# Files of a version's folder that a signature does not cover.
UNSIGNED_FILES = (SIGNATURE_FILE, _DOWNLOAD_RECORD)
_CURVES = "an elliptic-curve key (secp256r1, secp384r1 or secp521r1)"


def sign(folder: Path, signing: SigningSettings) -> Path:
    """Sign all files of a folder; returns the path of the signature file.

    Raises:
        SettingsError: the private key cannot be used.
    """
    signature = folder / SIGNATURE_FILE
    signer(signing).set_hashing_config(_hashing_config()).sign(folder, signature)
    return signature


def check(folder: Path, verifier: Verifier) -> None:
    """Check by its signature that a folder has exactly the files that were signed.

    Raises:
        ValueError: they are not; names the files.
    """
    signature = folder / SIGNATURE_FILE
    if not signature.is_file():
        raise ValueError(f"{SIGNATURE_FILE} is missing: it was registered without signing")
    try:
        verifier.set_hashing_config(_hashing_config()).verify(folder, signature)
    except Exception as error:
        # A damaged file raises errors of several libraries, some of them without a message.
        reason = str(error) or "of another key, or damaged"
        raise ValueError(f"{SIGNATURE_FILE}: {reason}") from error


def key_problems(signing: SigningSettings, *, signs: bool) -> Iterator[str]:
    """Yield problems of the configured signing keys, one line each; none if no key is configured.

    Args:
        signing: the keys.
        signs: whether the private key is needed.
    """
    if signing.public_key is None:
        return
    try:
        public = verifier(signing.public_key)
        if not signs:
            return
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "file").touch()
            sign(Path(folder), signing)
            check(Path(folder), public)
    except SettingsError as error:
        yield error.message
    except ValueError:
        yield (
            f"registration.signing.public_key: '{signing.public_key}' is not the public key of "
            f"'{signing.private_key}' (private_key)"
        )


def signer(signing: SigningSettings) -> Signer:
    """Configuration of the library model-signing to sign with the configured private key.

    Raises:
        SettingsError: the private key or its password cannot be used.
    """
    key = "registration.signing.private_key"
    if signing.private_key is None:
        raise SettingsError(f"{key}: expected the PEM file of the key that signs, got null")
    password = None
    if signing.password_variable is not None:
        if signing.password_variable not in os.environ:
            raise SettingsError(
                "registration.signing.password_variable: the environment variable "
                f"'{signing.password_variable}' is not set; expected the key's password in it"
            )
        password = os.environ[signing.password_variable].encode()
    _require_library()
    from model_signing.signing import Config

    try:
        # The library hands the password on to `cryptography`, which takes bytes alone.
        config = Config()  # type: ignore[no-untyped-call]
        return config.use_elliptic_key_signer(
            private_key=signing.private_key,
            password=password,  # type: ignore[arg-type]
        )
    except OSError as error:
        raise SettingsError(
            f"{key}: cannot read '{signing.private_key}': {error.strerror}"
        ) from None
    except (TypeError, ValueError) as error:
        raise SettingsError(
            f"{key}: cannot use '{signing.private_key}' ({error}); expected the PEM file of "
            f"{_CURVES}, its password in registration.signing.password_variable"
        ) from None


def verifier(public_key: Path) -> Verifier:
    """Configuration of the library model-signing to verify signatures by a public key.

    Raises:
        SettingsError: the public key cannot be used.
    """
    _require_library()
    from model_signing.verifying import Config

    key = "registration.signing.public_key"
    try:
        config = Config()  # type: ignore[no-untyped-call]
        return config.use_elliptic_key_verifier(public_key=public_key)
    except OSError as error:
        raise SettingsError(f"{key}: cannot read '{public_key}': {error.strerror}") from None
    except ValueError as error:
        raise SettingsError(
            f"{key}: cannot use '{public_key}' ({error}); expected the PEM file of the "
            f"public key of {_CURVES}"
        ) from None


def _hashing_config() -> Hashing:
    """Configuration of the library model-signing to hash all files but `UNSIGNED_FILES`."""
    from model_signing.hashing import Config

    config = Config()  # type: ignore[no-untyped-call]
    return config.set_ignored_paths(paths=UNSIGNED_FILES, ignore_git_paths=False)


def _require_library() -> None:
    """Raise an error if the package model-signing is not installed."""
    if find_spec("model_signing") is None:
        raise SettingsError(
            f"registration.signing needs the package model-signing: {pip_install('signing')}"
        )
