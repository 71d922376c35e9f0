"""Object storage: folders at fsspec URLs that are read like local ones.

A folder at a URL has a mirror, a local folder of the same layout: that of `s3://bucket/coco` is
`<remote.cache>/s3:/bucket/coco`. `refresh` lists the objects once: the mirror gets a sparse file of
each one's size, which nobody may read, and the cache's index, a SQLite file, its version, a hash of
its ETag. `open_file` downloads an object into a file that is named after URL, size and version and
appears when it is complete, so none is read that is half or of another version. Where the cache
would exceed its size, the least recently used of these files are removed.
"""

from __future__ import annotations

import errno
import logging
import os
import re
import shutil
import sqlite3
import threading
import time
from collections.abc import Container, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from functools import lru_cache
from io import BufferedReader
from pathlib import Path
from typing import Any, NamedTuple

from compo_pipeline.configuration.settings import PlainError, masked, pip_install
from compo_pipeline.run.seeding import digest

_URL = re.compile(r"[a-z][a-z0-9+.-]+://[^/].*")
_USER = re.compile(r"[^:/]+://([^\s/]\S*)@")
_MIRROR = re.compile(r"((?:.*?/)?)([a-z][a-z0-9+.-]+):/(.+)")
# What tells one version of an object from another, by the names of fsspec's file systems.
_VERSIONS = ("ETag", "etag", "md5Hash", "content_md5", "LastModified", "mtime", "created")
LIMIT = "COMPO_PIPELINE_CACHE_BYTES"  # an environment variable: loader workers inherit it
_EXTRAS = {"s3": "s3", "s3a": "s3", "gs": "gcs", "gcs": "gcs"}  # by the URL's protocol
_UNUSABLE = (errno.EEXIST, errno.ENOTDIR, errno.EISDIR, errno.ENAMETOOLONG)  # names of objects
_INDEX, _CONTENTS, _NOTES = ".index.sqlite", ".contents", ".notes"
_PARTIAL, _LOCKS = ".partial", ".locks"  # of downloads
_LOCK_TIMEOUT = 60.0  # seconds to wait for another process that writes the index
_BLOCK = 2**20  # bytes of an object that are downloaded at a time where not all of it is
_ATTEMPTS = 5
_KNOWN = 4096  # objects whose versions are in memory
_DAY = 86_400  # seconds

_one_at_a_time = threading.Lock()
_free: dict[Path, int] = {}  # bytes that this process may add to a cache before it looks again

log = logging.getLogger(__name__)


class RemoteError(PlainError):
    """Exception: object storage cannot be used; no OSError, which would quarantine the image."""

    def __init__(self, message: str) -> None:
        # Of an error in a loader's process, torch puts the traceback before the message.
        own = message.rpartition(f"{type(self).__name__}: ")[2]
        super().__init__(" ".join(own.split()))


def is_url(value: Any) -> bool:
    """Whether the value of a setting is the URL of object storage, such as `s3://bucket/folder`."""
    return isinstance(value, str) and _URL.fullmatch(value) is not None


def mirror(url: str, cache: Path) -> Path:
    """Path of the folder in a cache that mirrors the objects below a URL; downloads nothing."""
    protocol, _, place = url.partition("://")
    return cache / f"{protocol}:" / place


def url_of(path: Path) -> str | None:
    """The URL that a path in a mirror folder stands for; None for other paths."""
    found = _cache_and_url(path)
    return found[1] if found else None


def _cache_and_url(path: Path) -> tuple[Path, str] | None:
    """Cache folder and URL that a path in a mirror folder stands for; None for other paths."""
    text = str(path)
    found = _MIRROR.fullmatch(text) if ":/" in text else None
    return (Path(found[1]), f"{found[2]}://{found[3]}") if found else None


def check_bucket(url: str) -> None:
    """Check that the bucket of a URL can be reached; raises the errors that `filesystem` raises."""
    with filesystem(url) as (files, path):
        if bucket := path.partition("/")[0]:
            files.info(bucket)


def refresh(folder: Path) -> None:
    """List the objects below a mirror's URL, and create a placeholder file for each object.

    Raises:
        RemoteError: the storage cannot be reached, or refuses.
        FileNotFoundError: there is no object.
    """
    from filelock import FileLock

    located = _cache_and_url(folder)
    assert located is not None, f"{folder} is no mirror"
    cache, url = located
    found = _list_objects(url)
    log.info("%s: %d objects", masked(url), len(found))
    cache.mkdir(parents=True, exist_ok=True)
    with FileLock(cache / ".lock"):
        _remove_leftovers(cache)
        _remove_unlisted(folder, found)
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            if error.errno not in _UNUSABLE:
                raise
            raise RemoteError(
                f"{url}: remote.cache can have no folder of this name ({error.strerror}); give the "
                "objects a shorter key, or one that is no other object's"
            ) from error
        unusable = [name for name in found if not _add_placeholder(folder, name, found[name][0])]
        with _index(cache) as index:
            below = (f"{url}/", f"{url}0")  # a zero follows the slash
            index.execute("DELETE FROM objects WHERE url >= ? AND url < ?", below)
            rows = ((f"{url}/{name}", version) for name, (_, version) in found.items())
            index.executemany("INSERT INTO objects VALUES (?, ?)", rows)
        _version.cache_clear()
    if unusable:
        log.warning(
            "%s: %d objects have names that no file can have, such as %r: they are left out",
            masked(url),
            len(unusable),
            unusable[0],
        )


def _list_objects(url: str) -> dict[str, tuple[int, int]]:
    """List the objects below a URL: size and version by relative name."""
    with filesystem(url) as (files, root):
        files.invalidate_cache()
        infos = files.find(root, detail=True)
        files.invalidate_cache()
    if not infos:
        check_bucket(url)
        raise FileNotFoundError(errno.ENOENT, "there is no object below this URL", url)
    found = {
        name.removeprefix(root).removeprefix("/"): (info["size"], version_of(info))
        for name, info in sorted(infos.items())
        if info["type"] == "file" and not name.endswith("/")
    }
    if any(size is None for size, _ in found.values()):
        raise RemoteError(f"{url}: this storage lists no sizes")
    return found


def _remove_unlisted(folder: Path, names: Container[str]) -> None:
    """Remove a mirror's files that are not among the given names, and empty folders."""
    for place, _, files in os.walk(folder, topdown=False):
        for file in files:
            path = Path(place, file)
            if str(path.relative_to(folder)) not in names:
                path.unlink()
        with suppress(OSError):  # not empty
            Path(place).rmdir()


def _add_placeholder(folder: Path, name: str, size: int) -> bool:
    """Create a sparse file with an object's name and size; false if no file can have the name.

    There are keys with `..`, and folders of the name of an object.
    """
    path = folder / name
    try:
        if {"", ".", ".."} & set(name.split("/")) or path.is_dir():
            return False
        if not path.exists() or path.stat().st_size != size:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.unlink(missing_ok=True)
            descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, mode=0)
            with os.fdopen(descriptor, "wb") as file:
                file.truncate(size)
    except OSError as error:
        if error.errno in _UNUSABLE:
            return False
        raise
    except ValueError:  # NUL
        return False
    return True


@contextmanager
def _index(cache: Path) -> Iterator[sqlite3.Connection]:
    """Yield a SQLite connection to a cache's index of object versions, in one transaction.

    Raises:
        RemoteError: it cannot be used.
    """
    path = cache / _INDEX
    try:
        with closing(sqlite3.connect(path, timeout=_LOCK_TIMEOUT)) as index, index:
            index.execute(
                "CREATE TABLE IF NOT EXISTS objects (url TEXT PRIMARY KEY, version INTEGER)"
            )
            yield index
    except sqlite3.Error as error:
        raise RemoteError(f"{path}: {error}; if it is damaged, delete it and run again") from error


@lru_cache(_KNOWN)
def _version(cache: Path, url: str) -> int:
    """Version of an object when it was listed, from the cache's index; -1 if it was not listed."""
    with _index(cache) as index:
        found = index.execute("SELECT version FROM objects WHERE url = ?", [url]).fetchone()
    return int(found[0]) if found else -1


def version_of(info: Mapping[str, Any]) -> int:
    """Version of an object: a 63-bit hash of its ETag or another field of its metadata."""
    named = next((str(info[name]) for name in _VERSIONS if info.get(name)), "")
    return digest(named) % 2**63


def size_and_version(path: Path) -> tuple[int, int]:
    """Size and version of a local or mirrored file; they change when its content does.

    The version is the modification time in ns, in a mirror that of the object as it was listed.

    Raises:
        OSError: there is no such file.
    """
    located, status = _cache_and_url(path), path.stat()
    return status.st_size, _version(*located) if located else status.st_mtime_ns


class _Object(NamedTuple):
    """A listed object of object storage: cache folder, URL, size and version."""

    cache: Path
    url: str
    size: int
    version: int

    @property
    def name(self) -> str:
        """Stem of the names of all cache files of this version of the object."""
        return f"{digest(self.url, self.size, self.version):016x}"

    @property
    def content(self) -> Path:
        """Path of the object's copy in the cache; it exists only if the download is complete."""
        return self.cache / _CONTENTS / self.name


def _mirrored_object(path: Path) -> _Object | None:
    """The object that a placeholder file of a mirror stands for; None for other paths."""
    located = _cache_and_url(path)
    return _Object(*located, *size_and_version(path)) if located else None


def open_file(path: Path) -> BufferedReader:
    """Open a file for reading; a mirrored file is downloaded first, unless it is in the cache.

    Raises:
        OSError: there is no such file, or it cannot be read.
        RemoteError: the storage cannot be reached, or refuses; or the cache is too small.
    """
    wanted = _mirrored_object(path)
    if wanted is None:
        return path.open("rb")
    for _ in range(_ATTEMPTS):
        # Another process may make room meanwhile: what is open counts, not what was there before.
        with suppress(FileNotFoundError):
            file = wanted.content.open("rb")
            with suppress(PermissionError):  # in a cache that another user filled
                now = time.time_ns()  # the system's own clock is coarser
                os.utime(file.fileno(), ns=(now, now))
            return file
        _download(wanted)
    raise RemoteError(f"remote.cache_gb: too small, {path} is removed before it is opened")


def read_bytes(path: Path) -> bytes:
    """Read the content of a local or mirrored file; raises the errors that `open_file` raises."""
    with open_file(path) as file:
        return file.read()


def read_range(path: Path, start: int, size: int) -> bytes:
    """Read bytes of a local or mirrored file from an offset on; raises the errors of `open_file`.

    An object that is not in the cache is not downloaded as a whole, but a mebibyte at a time; the
    last ones are in memory.
    """
    wanted = _mirrored_object(path)
    if wanted is None or wanted.content.exists():
        with open_file(path) as file:
            file.seek(start)
            return file.read(size)
    end = min(start + size, wanted.size)
    first = start // _BLOCK
    blocks = range(first, -(-end // _BLOCK))
    content = b"".join(_download_block(wanted.url, wanted.version, number) for number in blocks)
    return content[start - first * _BLOCK : end - first * _BLOCK]


@lru_cache(32)
def _download_block(url: str, version: int, number: int) -> bytes:
    """Download one block of an object, in the version that was listed."""
    with filesystem(url) as (files, key):
        content: bytes = files.cat_file(key, start=number * _BLOCK, end=(number + 1) * _BLOCK)
        _require_version(url, version, files, key)
        return content


def _require_version(url: str, version: int, files: Any, key: str) -> None:
    """Raise an error if a downloaded object is not the version that was listed."""
    files.invalidate_cache(key)
    if version_of(files.info(key)) != version:
        raise RemoteError(f"{url}: the object has changed since this run listed it; run again")


def sidecar(path: Path) -> Path | None:
    """Path of a cache file for notes on a mirrored object's version; None for local files.

    It is in the cache, and remains where the content is removed.
    """
    found = _mirrored_object(path)
    return found.cache / _NOTES / f"{found.name}.json" if found else None


def _download(wanted: _Object) -> None:
    """Download an object into the cache, unless another process does it meanwhile."""
    from filelock import FileLock

    temporary = wanted.cache / _PARTIAL / wanted.name
    lock = wanted.cache / _LOCKS / wanted.name[:3]  # of one in 4096 objects
    for file in (lock, temporary, wanted.content):
        file.parent.mkdir(exist_ok=True)
    with FileLock(lock):
        if wanted.content.exists():
            return
        _make_room(wanted.cache, wanted.size)
        try:
            with filesystem(wanted.url) as (files, key):
                files.get_file(key, str(temporary))
                _require_version(wanted.url, wanted.version, files, key)
            if temporary.stat().st_size != wanted.size:
                raise RemoteError(f"{wanted.url}: the download is incomplete; run again")
            temporary.replace(wanted.content)
        finally:
            temporary.unlink(missing_ok=True)


def _make_room(cache: Path, size: int) -> None:
    """Free space for a file in a cache by removing the least recently used files.

    Each process looks again after a thirtieth of the limit, so several may exceed it by as much.
    """
    limit = int(os.environ.get(LIMIT, 50 * 10**9))
    if size > limit:
        raise RemoteError(
            f"remote.cache_gb: expected at least {size / 10**9:.3g}, the size of an object, got "
            f"{limit / 10**9:.3g}"
        )
    with _one_at_a_time:
        free = _free.get(cache, 0)
        if free < size:
            free = max(size, limit // 30)
            _evict(cache, limit - free)
        _free[cache] = free - size


def _evict(cache: Path, most: int) -> None:
    """Remove the least recently used copies of a cache until it has at most `most` bytes."""
    held = []
    for content in (cache / _CONTENTS).glob("*"):
        with suppress(FileNotFoundError):
            status = content.stat()
            held.append((status.st_atime_ns, status.st_size, content))
    surplus = sum(size for _, size, _ in held) - most
    for _, size, content in sorted(held):
        if surplus <= 0:
            break
        content.unlink(missing_ok=True)
        surplus -= size


def _remove_leftovers(cache: Path) -> None:
    """Remove partial files of killed downloads, and a cache of an earlier format without index."""
    if not (cache / _INDEX).exists():
        for folder in (*cache.glob("*:"), cache / _PARTIAL):
            shutil.rmtree(folder, ignore_errors=True)
    for file in (cache / _PARTIAL).glob("*"):
        with suppress(FileNotFoundError):
            if time.time() - file.stat().st_mtime > _DAY:
                file.unlink()


@contextmanager
def filesystem(url: str) -> Iterator[tuple[Any, str]]:
    """Yield the fsspec file system of a URL and the path in it; errors become one-line messages.

    Raises:
        FileNotFoundError: there is no such object or bucket.
        RemoteError: anything else.
    """
    from fsspec.core import url_to_fs

    try:
        yield url_to_fs(url)
    except FileNotFoundError as error:
        reason = error.strerror or "there is no such object or bucket"
        raise FileNotFoundError(errno.ENOENT, reason, masked(url)) from error
    except PlainError:
        raise
    except PermissionError as error:
        raise RemoteError(f"{url}: access is denied ({_error_text(error, url)})") from error
    except ImportError as error:
        extra = _EXTRAS.get(url.partition("://")[0])
        raise RemoteError(f"{url}: {pip_install(extra) if extra else error}") from error
    except Exception as error:
        # Each storage has errors of its own: of connections, credentials, packages, bad names.
        raise RemoteError(f"{url}: {_error_text(error, url)} ({type(error).__name__})") from error


def _error_text(error: Exception, url: str) -> str:
    """The message of an error without the user and password in the URL.

    S3 takes them for a part of the bucket's name, and quotes it.
    """
    text, found = str(error), _USER.match(url)
    if found:
        user = found[1]
        text = text.replace(f"{user}@", "***@")
        # A password with a slash: what precedes it is the bucket.
        start = user.partition("/")[0]
        text = text.replace(start, "***") if ":" in start else text
    return text
