"""Object storage: folders at fsspec URLs that are read like local ones.

A folder at a URL has a mirror, a local folder of the same layout: that of `s3://bucket/coco` is
`<remote.cache>/s3:/bucket/coco`. `refresh` lists the objects once and makes a placeholder for each,
a sparse file of the object's size that nobody may read: names and sizes are there without a
download. `open_file` puts the content in its place. The modification time of both is no time but
the object's version, a hash of its ETag, so a file whose object has changed becomes a placeholder
again. So do the least recently used ones where the cache would exceed its size.
"""

from __future__ import annotations

import errno
import logging
import os
import re
import shutil
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import lru_cache
from io import BufferedReader
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from compo_pipeline.configuration import PlainError, masked
from compo_pipeline.seeding import digest

_URL = re.compile(r"[a-z][a-z0-9+.-]+://[^/].*")
_USER = re.compile(r"[^:/]+://([^\s/]\S*)@")
_MIRROR = re.compile(r"((?:.*?/)?)([a-z][a-z0-9+.-]+):/(.+)")
# What tells one version of an object from another, by the names of fsspec's file systems.
_VERSIONS = ("ETag", "etag", "md5Hash", "content_md5", "LastModified", "mtime", "created")
LIMIT = "COMPO_PIPELINE_CACHE_BYTES"  # an environment variable: loader workers inherit it
_UNUSABLE = (errno.EEXIST, errno.ENOTDIR, errno.EISDIR, errno.ENAMETOOLONG)  # names of objects
_WORK, _NOTES = ".partial", ".notes"
_BLOCK = 2**20  # bytes of an object that are downloaded at a time where not all of it is
_ATTEMPTS = 5
_DAY = 86_400  # seconds

_one_at_a_time = threading.Lock()
_free: dict[Path, int] = {}  # bytes that this process may add to a cache before it looks again

log = logging.getLogger(__name__)


class RemoteError(PlainError):
    """Object storage that cannot be used. No error of a file: an outage quarantines no image."""

    def __init__(self, message: str) -> None:
        # Of an error in a loader's process, torch puts the traceback before the message.
        own = message.rpartition(f"{type(self).__name__}: ")[2]
        super().__init__(" ".join(own.split()))


def is_url(value: Any) -> bool:
    """Whether a value of a setting is the URL of a folder that is not local."""
    return isinstance(value, str) and _URL.fullmatch(value) is not None


def mirror(url: str, cache: Path) -> Path:
    """The local folder of a URL."""
    protocol, _, place = url.partition("://")
    return cache / f"{protocol}:" / place


def url_of(path: Path) -> str | None:
    """The URL of a mirror, or of a file in one; None of other paths."""
    text = str(path)
    found = _MIRROR.fullmatch(text) if ":/" in text else None
    return f"{found[2]}://{found[3]}" if found else None


def _cache_of(path: Path) -> Path:
    found = _MIRROR.fullmatch(str(path))
    assert found is not None, f"{path} is in no mirror"
    return Path(found[1])


def check_bucket(url: str) -> None:
    """Check that the bucket of a URL can be reached; errors as of `filesystem`."""
    with filesystem(url) as (files, path):
        if bucket := path.partition("/")[0]:
            files.info(bucket)


def refresh(folder: Path) -> None:
    """List the objects of a mirror's URL, and make placeholders of those that are new or changed.

    Raises:
        RemoteError: the storage cannot be reached, or refuses.
        FileNotFoundError: there is no object.
    """
    from filelock import FileLock

    url = url_of(folder)
    assert url is not None, f"{folder} is no mirror"
    found = _listing(url)
    log.info("%s: %d objects", masked(url), len(found))
    cache = _cache_of(folder)
    cache.mkdir(parents=True, exist_ok=True)
    with FileLock(cache / ".lock"), _work_folder(cache) as work:
        _remove_leftovers(cache)
        for place, _, names in os.walk(folder, topdown=False):
            for name in names:
                path = Path(place, name)
                if str(path.relative_to(folder)) not in found:
                    path.unlink()
            with suppress(OSError):  # not empty
                Path(place).rmdir()
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            if error.errno not in _UNUSABLE:
                raise
            raise RemoteError(
                f"{url}: remote.cache can have no folder of this name ({error.strerror}); give the "
                "objects a shorter key, or one that is no other object's"
            ) from error
        unusable = [
            name
            for name, (size, version) in found.items()
            if not _add_placeholder(folder, name, size, version, work)
        ]
    if unusable:
        log.warning(
            "%s: %d objects have names that no file can have, such as %r: they are left out",
            masked(url),
            len(unusable),
            unusable[0],
        )


def _listing(url: str) -> dict[str, tuple[int, int]]:
    """Sizes and versions of the objects below a URL, by their names relative to it."""
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


def _add_placeholder(folder: Path, name: str, size: int, version: int, work: Path) -> bool:
    """Make a placeholder of an object that is new or changed; false if no file can have its name.

    There are keys with `..`, and folders of the name of an object.
    """
    path = folder / name
    try:
        if {"", ".", ".."} & set(name.split("/")):
            return False
        status = path.stat() if path.exists() else None
        if status is None or (status.st_size, status.st_mtime_ns) != (size, version):
            path.parent.mkdir(parents=True, exist_ok=True)
            _write_placeholder(path, size, version, work)
    except OSError as error:
        if error.errno in _UNUSABLE:
            return False
        raise
    except ValueError:  # NUL
        return False
    return True


def version_of(info: Mapping[str, Any]) -> int:
    """The modification time, in ns of whole seconds, that stands for the version of an object."""
    named = next((str(info[name]) for name in _VERSIONS if info.get(name)), "")
    return digest(named) % 2**31 * 10**9


def open_file(path: Path) -> BufferedReader:
    """A file, open for reading; one of a mirror is downloaded first, unless it is there.

    Raises:
        OSError: there is no such file, or it cannot be read.
        RemoteError: the storage cannot be reached, or refuses; or the cache is too small.
    """
    if url_of(path) is None:
        return path.open("rb")
    for _ in range(_ATTEMPTS):
        # Another process may make room meanwhile: what is open counts, not what was there before.
        with suppress(PermissionError):
            file = path.open("rb")
            status = os.fstat(file.fileno())
            if not _is_placeholder(status):
                with suppress(PermissionError):  # in a cache that another user filled
                    os.utime(file.fileno(), ns=(time.time_ns(), status.st_mtime_ns))
                return file
            file.close()
        _download(path)
    raise RemoteError(f"remote.cache_gb: too small, {path} is removed before it is opened")


def read_bytes(path: Path) -> bytes:
    """The content of a file; errors as of `open_file`."""
    with open_file(path) as file:
        return file.read()


def read_range(path: Path, start: int, size: int) -> bytes:
    """Bytes of a file, fewer at its end; errors as of `open_file`.

    An object that is not in the cache is not downloaded as a whole, but a mebibyte at a time; the
    last ones are in memory.
    """
    status = path.stat()
    url = url_of(path)
    if url is None or not _is_placeholder(status):
        with open_file(path) as file:
            file.seek(start)
            return file.read(size)
    end = min(start + size, status.st_size)
    first = start // _BLOCK
    blocks = range(first, -(-end // _BLOCK))
    content = b"".join(_block(url, status.st_mtime_ns, number) for number in blocks)
    return content[start - first * _BLOCK : end - first * _BLOCK]


@lru_cache(32)
def _block(url: str, version: int, number: int) -> bytes:
    with filesystem(url) as (files, key):
        content: bytes = files.cat_file(key, start=number * _BLOCK, end=(number + 1) * _BLOCK)
        _require_version(url, version, files, key)
        return content


def _require_version(url: str, version: int, files: Any, key: str) -> None:
    """Check, after a download, that the object is still the one that was listed."""
    files.invalidate_cache(key)
    if version_of(files.info(key)) != version:
        raise RemoteError(f"{url}: the object has changed since this run listed it; run again")


def sidecar(path: Path) -> Path | None:
    """The file for what is found out about the present version of an object; None of local files.

    It is in the cache, and remains where the content is removed.
    """
    if url_of(path) is None:
        return None
    name = digest(str(path), path.stat().st_mtime_ns)
    return _cache_of(path) / _NOTES / f"{name:016x}.json"


def _is_placeholder(status: os.stat_result) -> bool:
    return status.st_mode & 0o777 == 0


def _download(path: Path) -> None:
    url, cache, expected = str(url_of(path)), _cache_of(path), path.stat()
    _make_room(cache, expected.st_size)
    with _work_folder(cache) as work:
        temporary = work / "object"
        with filesystem(url) as (files, key):
            files.get_file(key, str(temporary))
            _require_version(url, expected.st_mtime_ns, files, key)
        if temporary.stat().st_size != expected.st_size:
            raise RemoteError(f"{url}: the download is incomplete; run again")
        os.utime(temporary, ns=(time.time_ns(), expected.st_mtime_ns))
        temporary.chmod(0o444)
        temporary.replace(path)


def _write_placeholder(path: Path, size: int, version: int, work: Path) -> None:
    """Make a file a placeholder."""
    temporary = work / "placeholder"
    with temporary.open("wb") as file:
        file.truncate(size)
    os.utime(temporary, ns=(0, version))
    temporary.chmod(0o000 if size else 0o444)
    temporary.replace(path)


def _make_room(cache: Path, size: int) -> None:
    """Let a process add a file to a cache; the least recently used ones are removed for it.

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
    """Remove the least recently used files until a cache holds so many bytes at most."""
    held = []
    for place, _, names in chain.from_iterable(map(os.walk, cache.glob("*:"))):
        for name in names:
            with suppress(FileNotFoundError):
                status = Path(place, name).stat()
                if status.st_size and not _is_placeholder(status):
                    held.append((status.st_atime_ns, Path(place, name), status))
    surplus = sum(status.st_size for *_, status in held) - most
    if surplus > 0:
        held.sort(key=lambda each: each[:2])
        with _work_folder(cache) as work:
            for _, path, status in held:
                if surplus <= 0:
                    break
                _write_placeholder(path, status.st_size, status.st_mtime_ns, work)
                surplus -= status.st_size


@contextmanager
def _work_folder(cache: Path) -> Iterator[Path]:
    """Yield an empty folder on the cache's file system."""
    (cache / _WORK).mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=cache / _WORK) as folder:
        yield Path(folder)


def _remove_leftovers(cache: Path) -> None:
    """Remove what downloads left that were killed."""
    for folder in (cache / _WORK).iterdir():
        with suppress(FileNotFoundError):
            if time.time() - folder.stat().st_mtime > _DAY:
                shutil.rmtree(folder)


@contextmanager
def filesystem(url: str) -> Iterator[tuple[Any, str]]:
    """Yield the file system of a URL and the path there; its errors are one line.

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
        raise RemoteError(f"{url}: access is denied ({_told(error, url)})") from error
    except Exception as error:
        # Each storage has errors of its own: of connections, credentials, packages, bad names.
        raise RemoteError(f"{url}: {_told(error, url)} ({type(error).__name__})") from error


def _told(error: Exception, url: str) -> str:
    """What an error says, without the user and password of its URL.

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
