"""Signatures of model folders (sigstore's model-signing) with an elliptic-curve key, offline."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from compo_pipeline.configuration.settings import SettingsError, pip_install
from compo_pipeline.versions.settings import SigningSettings

if TYPE_CHECKING:
    from model_signing.hashing import Config as Hashing

SIGNATURE_FILE = "model.sig"
# Files of a version's folder that a signature does not cover. MLflow writes the second one into
# every copy that it downloads.
UNSIGNED_FILES = (SIGNATURE_FILE, "registered_model_meta")


class SigningError(SettingsError):
    """Exception: a key of `registration.signing` cannot be used."""


def sign(folder: Path, signing: SigningSettings) -> Path:
    """Sign all files of a folder; returns the path of the signature file.

    Raises:
        SigningError: the private key or its password cannot be used.
    """
    if signing.private_key is None:
        raise SigningError(
            "registration.signing.private_key: expected the PEM file of the key that signs, got "
            "null"
        )
    password = None
    if signing.password_variable is not None:
        if signing.password_variable not in os.environ:
            raise SigningError(
                "registration.signing.password_variable: the environment variable "
                f"'{signing.password_variable}' is not set; expected the key's password in it"
            )
        password = os.environ[signing.password_variable].encode()
    with _key_errors("private_key", signing.private_key):
        from model_signing.signing import Config

        # The library hands the password on to `cryptography`, which takes bytes alone.
        signer = Config().use_elliptic_key_signer(  # type: ignore[no-untyped-call]
            private_key=signing.private_key,
            password=password,  # type: ignore[arg-type]
        )
    signer.set_hashing_config(_signed_files()).sign(folder, folder / SIGNATURE_FILE)
    return folder / SIGNATURE_FILE


def check(folder: Path, public_key: Path) -> None:
    """Check by its signature that a folder has exactly the files that were signed.

    Raises:
        ValueError: they are not; names the files.
        SigningError: the public key cannot be used.
    """
    with _key_errors("public_key", public_key):
        from model_signing.verifying import Config

        config = Config()  # type: ignore[no-untyped-call]
        verifier = config.use_elliptic_key_verifier(public_key=public_key)
    signature = folder / SIGNATURE_FILE
    if not signature.is_file():
        raise ValueError(f"{SIGNATURE_FILE} is missing: it was registered without signing")
    try:
        verifier.set_hashing_config(_signed_files()).verify(folder, signature)
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
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "file").touch()
        try:
            if signs:
                sign(folder, signing)
            check(folder, signing.public_key)
        except SigningError as error:
            yield error.message
        except ValueError:
            if signs:
                yield (
                    f"registration.signing.public_key: '{signing.public_key}' is not the public "
                    f"key of '{signing.private_key}' (private_key)"
                )


@contextmanager
def _key_errors(name: str, file: Path) -> Iterator[None]:
    """Context manager: errors about a key become a SigningError that names its YAML key."""
    if find_spec("model_signing") is None:
        raise SigningError(
            f"registration.signing needs the package model-signing: {pip_install('signing')}"
        )
    try:
        yield
    except (OSError, TypeError, ValueError) as error:
        raise SigningError(
            f"registration.signing.{name}: cannot use '{file}' ({error}); expected the PEM file of "
            "an elliptic-curve key (secp256r1, secp384r1 or secp521r1), the private one's password "
            "in registration.signing.password_variable"
        ) from None


def _signed_files() -> Hashing:
    """Configuration of the library model-signing to hash all files but `UNSIGNED_FILES`."""
    from model_signing.hashing import Config

    config = Config()  # type: ignore[no-untyped-call]
    return config.set_ignored_paths(paths=UNSIGNED_FILES, ignore_git_paths=False)
