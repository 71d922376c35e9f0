"""URLs in the parameters: folders of object storage, with their mirrors and credentials."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import urlsplit

from pydantic import Field

from compo_pipeline.configuration.settings import SettingsError, leaves, settings
from compo_pipeline.storage.remote import (
    LIMIT,
    RemoteError,
    is_url,
    mirror,
    refresh,
    url_of,
)

_FOLDERS = ("root", "images")  # names of settings that may be URLs
# Of S3: s3fs itself tries five times, so a server that never answers takes three minutes.
_BOUNDED = {"connect_timeout": 10, "read_timeout": 15, "retries": {"total_max_attempts": 2}}


@settings
class RemoteSettings:
    """Settings of object storage (YAML key `remote`)."""

    cache: Path = Path("data/remote")
    """Local folder for copies of the objects that are read."""
    cache_gb: Annotated[float, Field(gt=0, le=10**6)] = 50
    """Its size in 10^9 bytes; the least recently used copies are removed."""


def configure(
    parameters: Mapping[str, Any], remote: RemoteSettings, credentials: Mapping[str, Any]
) -> dict[str, Any]:
    """The parameters with URLs replaced by mirror folders; sets up access for this process.

    Args:
        parameters: the project's.
        remote: the settings of its key `remote`.
        credentials: options of fsspec's file systems by protocol, of conf/*/credentials.yml.

    Raises:
        SettingsError: a URL holds a password, or stands where a folder must be local.
    """
    # Some URLs are made of others: errors name the shortest, which was given.
    urls = [(key, str(value)) for key, value in leaves(parameters) if is_url(value)]
    for key, value in sorted(urls, key=lambda each: len(each[1])):
        local = key.startswith("paths.")
        if local or key.rpartition(".")[2] in _FOLDERS:
            _check_url(value, key, local=local)
            _set_options(value.partition("://")[0], credentials)
    os.environ[LIMIT] = str(int(remote.cache_gb * 10**9))

    def walk(values: Mapping[str, Any]) -> dict[str, Any]:
        found = dict(values)
        for name, value in values.items():
            if isinstance(value, Mapping):
                found[name] = walk(value)
            elif name in _FOLDERS and is_url(value):
                found[name] = str(mirror(value, remote.cache))
        return found

    return walk(parameters)


def _check_url(url: str, key: str, *, local: bool) -> None:
    """Refuse a URL with credentials or "..", or any URL where a folder must be local."""
    if local:
        raise SettingsError(
            f"{key}: expected a local folder, got {url}; `dvc push` stores results elsewhere"
        )
    parts = urlsplit(url)
    if parts.password or parts.query or ".." in Path(parts.path).parts:
        raise SettingsError(
            f"{key}: expected a URL without password, query and '..', got {url}; credentials "
            "belong into the environment or a credentials.yml"
        )


def _set_options(protocol: str, credentials: Mapping[str, Any]) -> None:
    """Set fsspec's options for a protocol, for this process and its child processes."""
    from fsspec.config import conf

    bounded = {"config_kwargs": _BOUNDED} if protocol == "s3" else {}
    conf[protocol] = {**bounded, **conf.get(protocol, {}), **credentials.get(protocol, {})}
    os.environ[f"FSSPEC_{protocol.upper()}"] = json.dumps(conf[protocol])


def refresh_all(parameters: Mapping[str, Any], read: set[str]) -> None:
    """List the objects at all URLs that a pipeline reads.

    Args:
        parameters: the project's, after `configure`.
        read: names of those that the pipeline reads.

    Raises:
        SettingsError: one of them is missing or cannot be reached; names its key.
    """
    folders: list[tuple[Path, str]] = []
    for key, value in leaves(parameters):
        parents = {key[:end] for end, each in enumerate(f"{key}.") if each == "."}
        if key.rpartition(".")[2] not in _FOLDERS or not parents & read:
            continue
        # A URL itself is part of the command line, for messages.
        folder = Path(value) if isinstance(value, str) and not is_url(value) else Path()
        if url_of(folder):
            folders.append((folder, key))
    # The one that holds others comes first, and is what errors name.
    listed: list[Path] = []
    for folder, key in sorted(folders, key=lambda each: len(each[0].parts)):
        if not any(folder.is_relative_to(each) for each in listed):
            with _key_in_errors(key):
                refresh(folder)
            listed.append(folder)


@contextmanager
def _key_in_errors(key: str) -> Iterator[None]:
    """Context manager: storage errors become a SettingsError that names the YAML key."""
    try:
        yield
    except RemoteError as error:
        raise SettingsError(f"{key}: {error.message}") from None
    except FileNotFoundError as error:
        raise SettingsError(f"{key}: {error.filename}: {error.strerror}") from None
