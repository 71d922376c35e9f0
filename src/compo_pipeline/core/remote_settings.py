"""URLs in the parameters: folders of object storage, with their mirrors and credentials."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import urlsplit

from pydantic import Field

from compo_pipeline.core.remote import (
    LIMIT,
    RemoteError,
    cache_and_url,
    is_url,
    mirror,
    refresh,
)
from compo_pipeline.core.settings import SettingsError, leaves, settings

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
        local = key == "ingest.journal"
        if local or key.rpartition(".")[2] in _FOLDERS:
            _check_url(value, key, local=local)
            _set_options(value.partition("://")[0], credentials)
    os.environ[LIMIT] = str(int(remote.cache_gb * 10**9))
    return _with_mirrors(parameters, remote.cache)


def _with_mirrors(values: Mapping[str, Any], cache: Path) -> dict[str, Any]:
    found = dict(values)
    for name, value in values.items():
        if isinstance(value, Mapping):
            found[name] = _with_mirrors(value, cache)
        elif name in _FOLDERS and is_url(value):
            found[name] = str(mirror(value, cache))
    return found


def _check_url(url: str, key: str, *, local: bool) -> None:
    """Refuse a URL with credentials or "..", or any URL where a folder must be local."""
    if local:
        raise SettingsError(
            f"{key}: expected a local folder, got {url}; `dvc push` stores results elsewhere"
        )
    parts = urlsplit(url)
    try:
        secret = parts.password or parts.query or (parts.port and "@" in parts.path)
    except ValueError:  # the start of a password with a slash is no port
        secret = True
    if secret or ".." in Path(parts.path).parts:
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
    folders: dict[Path, str] = {}
    for key, value in leaves(parameters):
        parents = {key[:end] for end, each in enumerate(f"{key}.") if each == "."}
        # A URL itself is part of the command line, for messages.
        if key.rpartition(".")[2] in _FOLDERS and parents & read and not is_url(value):
            folders.setdefault(Path(str(value)), key)
    # The one that holds others comes first, and is what errors name.
    listed: list[Path] = []
    for folder in sorted(filter(cache_and_url, folders), key=lambda each: len(each.parts)):
        if not any(folder.is_relative_to(each) for each in listed):
            try:
                refresh(folder)
            except RemoteError as error:
                raise SettingsError(f"{folders[folder]}: {error.message}") from None
            except OSError as error:
                raise SettingsError(
                    f"{folders[folder]}: {error.filename}: {error.strerror}"
                ) from None
            listed.append(folder)
