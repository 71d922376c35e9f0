"""Object storage: folders at fsspec URLs that are read like local ones.

A folder at a URL has a mirror, a local folder of the same layout: that of `s3://bucket/coco` is
`<remote.cache>/s3:/bucket/coco`. `refresh` lists the objects once: the mirror gets a sparse file of
each one's size, which nobody may read. Its modification time is a hash of the object's ETag, so a
changed object shows as a changed file does. `open_file` puts the object in the place of this file.
Where the cache would exceed its size, the objects that were opened least recently become sparse
files again.
"""

from __future__ import annotations

import errno
import json
import logging
import os
import re
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from io import BufferedReader
from pathlib import Path, PurePosixPath
from random import random
from typing import Annotated, Any

from filelock import FileLock
from pydantic import Field

from compo_pipeline.core.files import size_and_time
from compo_pipeline.core.seeding import digest
from compo_pipeline.core.settings import (
    PlainError,
    SettingsError,
    leaves,
    settings,
    with_values,
)

_FOLDERS = ("root", "images")  # names of settings that may be URLs
_URL = re.compile(r"[a-z][a-z0-9+.-]+://[^/].*")
_UNFIT = re.compile(r"//[^/]*:.*@|\?|/\.\.(/|$)")  # a password, a query, or a parent folder
_MIRROR = re.compile(r"((?:.*?/)?)([a-z][a-z0-9+.-]+):/([^/].*)")
# What tells one version of an object from another, by the names of fsspec's file systems.
_VERSIONS = ("ETag", "etag", "md5Hash", "content_md5", "LastModified", "mtime", "created")
_LIMIT = "COMPO_PIPELINE_CACHE_BYTES"  # an environment variable: loader workers inherit it
_READABLE = 0o444  # mode of a file with an object's content; placeholders have none of it
# Of S3: s3fs itself tries five times, so a server that never answers takes three minutes.
_BOUNDED = {"connect_timeout": 10, "read_timeout": 15, "retries": {"total_max_attempts": 2}}

log = logging.getLogger(__name__)


class RemoteError(PlainError):
    """Exception: object storage cannot be used.

    It is not an OSError, which would quarantine the image.
    """

    def __init__(self, message: str) -> None:
        # Of an error in a loader's process, torch puts the traceback before the message.
        own = message.rpartition(f"{type(self).__name__}: ")[2]
        super().__init__(" ".join(own.split()))


@settings
class RemoteSettings:
    """Settings of object storage: the local cache and its size."""

    cache: Path = Path("data/remote")
    """Local folder for copies of the objects that are read."""
    cache_gb: Annotated[float, Field(gt=0, le=10**6)] = 50
    """Size of the cache in 10^9 bytes. The least recently used copies are removed."""


def is_url(value: Any) -> bool:
    """Whether the value of a setting is the URL of object storage, such as `s3://bucket/folder`."""
    return isinstance(value, str) and _URL.fullmatch(value) is not None


def mirror(url: str, cache: Path) -> Path:
    """Path of the folder in a cache that mirrors the objects below a URL.

    It downloads nothing.
    """
    protocol, _, place = url.partition("://")
    return cache / f"{protocol}:" / place


def cache_and_url(path: Path | str) -> tuple[Path, str] | None:
    """Cache folder and URL that a path in a mirror folder stands for, or None for other paths."""
    found = _MIRROR.fullmatch(text) if ":/" in (text := str(path)) else None
    return (Path(found[1]), f"{found[2]}://{found[3]}") if found else None


def configure(
    parameters: Mapping[str, Any], remote: RemoteSettings, credentials: Mapping[str, Any]
) -> dict[str, Any]:
    """The parameters with URLs replaced by mirror folders.

    It sets up access for this process.

    Args:
        parameters: the project's.
        remote: the settings of its key `remote`.
        credentials: options of fsspec's file systems by protocol, of conf/*/credentials.yml.

    Raises:
        SettingsError: a URL holds a password, a query or "..".
    """
    from fsspec.config import conf

    os.environ[_LIMIT] = str(int(remote.cache_gb * 10**9))
    mirrors: dict[str, str] = {}
    for key, url in leaves(parameters):
        if key.rpartition(".")[2] not in _FOLDERS or not is_url(url):
            continue
        if _UNFIT.search(url):
            raise SettingsError(
                f"{key}: expected a URL without password, query and '..', got {url}; credentials "
                "belong into the environment or a credentials.yml"
            )
        protocol = url.partition("://")[0]
        bounded = {"config_kwargs": _BOUNDED} if protocol == "s3" else {}
        conf[protocol] = {**bounded, **conf.get(protocol, {}), **credentials.get(protocol, {})}
        # This process's child processes read it.
        os.environ[f"FSSPEC_{protocol.upper()}"] = json.dumps(conf[protocol])
        mirrors[key] = str(mirror(url, remote.cache))
    return with_values(parameters, mirrors)


def refresh_all(parameters: Mapping[str, Any], read: set[str]) -> None:
    """List the objects at all URLs that a pipeline reads.

    Args:
        parameters: the project's, after `configure`.
        read: names of the entries that the pipeline reads.

    Raises:
        SettingsError: one of them is missing or cannot be reached; names its key.
    """
    keys: dict[Path, str] = {}
    for key, value in leaves(parameters):
        is_read = any(f"{key}.".startswith(f"{each}.") for each in read)
        if is_read and key.rpartition(".")[2] in _FOLDERS and cache_and_url(value):
            keys.setdefault(Path(value), key)
    for folder, key in keys.items():
        if keys.keys().isdisjoint(folder.parents):
            try:
                refresh(folder)
            except (RemoteError, OSError) as error:
                raise SettingsError(f"{key}: {error}") from None


def refresh(folder: Path) -> None:
    """List the objects below a mirror's URL, and create a placeholder file for each new object.

    Raises:
        RemoteError: the storage cannot be reached, or refuses.
        OSError: there is no object, or no file of its name can be made.
    """
    located = cache_and_url(folder)
    assert located is not None, f"{folder} is no mirror"
    cache, url = located
    with filesystem(url) as (files, root):
        found = files.find(root, detail=True)
        files.invalidate_cache()
    objects = {name.removeprefix(root).removeprefix("/"): info for name, info in found.items()}
    if not objects:
        raise FileNotFoundError(errno.ENOENT, "there is no object below this URL", url)
    if any(info["size"] is None for info in objects.values()):
        raise RemoteError(f"{url}: this storage lists no sizes")
    log.info("%s: %d objects", url, len(objects))
    folders = {str(parent) for name in objects for parent in PurePosixPath(name).parents}
    names = {name for name in objects if name not in folders and _is_file_name(name)}
    if others := objects.keys() - names:
        text = "%s: %d objects have names that no file can have, such as %r: they are left out"
        log.warning(text, url, len(others), min(others))
    folder.mkdir(parents=True, exist_ok=True)
    with FileLock(cache / ".lock"):
        for path in sorted(folder.rglob("*"), reverse=True):  # what a folder holds comes first
            if path.is_dir():
                with suppress(OSError):  # not empty
                    path.rmdir()
            elif path.relative_to(folder).as_posix() not in names:
                path.unlink()
        for name in names:
            path, listed = folder / name, (objects[name]["size"], version_of(objects[name]))
            if not path.exists() or size_and_time(path) != listed:
                _put_placeholder(cache, path, *listed)


def _is_file_name(key: str) -> bool:
    return all(
        0 < len(os.fsencode(part)) < 256 and part not in (".", "..") for part in key.split("/")
    )


def _put_placeholder(cache: Path, path: Path, size: int, version: int) -> None:
    """Put a sparse file of an object's size and version in the place of a file.

    The caller holds the cache's lock.
    """
    new = cache / ".placeholder"
    new.unlink(missing_ok=True)
    with os.fdopen(os.open(new, os.O_CREAT | os.O_WRONLY, mode=0), "wb") as file:
        file.truncate(size)
    os.utime(new, ns=(version, version))
    path.parent.mkdir(parents=True, exist_ok=True)
    new.replace(path)


def version_of(info: Mapping[str, Any]) -> int:
    """Version of an object: a hash of its ETag or the like, as a time in ns that files can have."""
    named = next((str(info[name]) for name in _VERSIONS if info.get(name)), "")
    return digest(named) % 2**31 * 10**9  # some file systems store seconds


def open_file(path: Path) -> BufferedReader:
    """Open a file for reading.

    A mirrored file is downloaded first, unless it is in the cache.

    Raises:
        OSError: there is no such file, or it cannot be read.
        RemoteError: the storage cannot be reached, or refuses.
    """
    located = cache_and_url(path)
    if located is None:
        return path.open("rb")
    while True:  # another process may remove what was downloaded
        with suppress(PermissionError):
            file = path.open("rb")
            status = os.fstat(file.fileno())
            if status.st_mode & _READABLE:  # root may open placeholders, too
                with suppress(PermissionError):  # in a cache that another user filled
                    os.utime(file.fileno(), ns=(time.time_ns(), status.st_mtime_ns))
                return file
            file.close()
        _download(*located, path)


def read_bytes(path: Path) -> bytes:
    """Read the content of a local or mirrored file.

    Raises the errors that `open_file` raises.
    """
    with open_file(path) as file:
        return file.read()


def _download(cache: Path, url: str, path: Path) -> None:
    """Put an object in the place of its placeholder, unless another process does it."""
    part = cache / f".{digest(url) % 256:02x}"
    with FileLock(f"{part}.lock"):
        if path.stat().st_mode & _READABLE:
            return
        size, version = size_and_time(path)
        _make_room(cache, size)
        try:
            with filesystem(url) as (files, key):
                files.get_file(key, str(part))
                files.invalidate_cache(key)
                if (part.stat().st_size, version_of(files.info(key))) != (size, version):
                    raise RemoteError(f"{url}: it has changed since this run listed it; run again")
            os.utime(part, ns=(time.time_ns(), version))
            part.replace(path)
        finally:
            part.unlink(missing_ok=True)


def _make_room(cache: Path, size: int) -> None:
    """Free space for an object in a cache by removing those that were opened least recently.

    A process looks about 30 times while it downloads as much as the limit, so it may be exceeded a
    little.
    """
    limit = int(os.environ.get(_LIMIT, 50 * 10**9))
    if random() * limit > 30 * size:
        return
    with FileLock(cache / ".lock"):
        every = ((file, file.stat()) for file in cache.glob("*:/**/*") if file.is_file())
        held = [each for each in every if each[1].st_mode & _READABLE]
        surplus = sum(status.st_size for _, status in held) + size - limit
        for file, status in sorted(held, key=lambda each: each[1].st_atime_ns):
            if surplus > 0:
                _put_placeholder(cache, file, status.st_size, status.st_mtime_ns)
                surplus -= status.st_size


@contextmanager
def filesystem(url: str) -> Iterator[tuple[Any, str]]:
    """Yield the fsspec file system of a URL and the path in it.

    Errors become one-line messages.

    Raises:
        FileNotFoundError: there is no such object or bucket.
        RemoteError: anything else.
    """
    from fsspec.core import url_to_fs

    try:
        yield url_to_fs(url)
    except FileNotFoundError as error:
        reason = error.strerror or "there is no such object or bucket"
        raise FileNotFoundError(errno.ENOENT, reason, url) from error
    except PlainError:
        raise
    except Exception as error:
        # Each storage has errors of its own: of connections, credentials, packages, bad names.
        raise RemoteError(f"{url}: {error} ({type(error).__name__})") from error
