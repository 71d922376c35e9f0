"""Files and folders that are on object storage besides the local ones."""

from __future__ import annotations

import errno
import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import pydantic

from compo_pipeline.configuration.settings import masked
from compo_pipeline.storage.files import (
    atomic_file,
    atomic_folder,
    file_sha256,
    read_json_or_none,
    write_json,
)
from compo_pipeline.storage.remote import RemoteError, filesystem, version_of
from compo_pipeline.storage.untrusted import parse_json, path_below

_MANIFEST = ".stored.json"


class Stored:
    """A local file or folder with a copy on object storage; the stored version takes precedence.

    Beside the local one, a hidden file says which version it is. A folder is uploaded file by
    file; a manifest of their checksums comes last, and without it the folder counts as absent.
    """

    def __init__(self, path: Path, url: str, *, folder: bool) -> None:
        self._path, self._url, self._folder = path, url.rstrip("/"), folder
        self._note = path.with_name(f".{path.name}.stored")
        self._object = f"{self._url}/{_MANIFEST}" if folder else self._url

    def exists(self) -> bool:
        """Whether the file or folder exists on object storage.

        Raises:
            RemoteError: the storage cannot be reached, or refuses.
        """
        return self._stored_version() is not None

    def fetch(self) -> None:
        """Download the file or folder, unless the local copy is of the stored version.

        Raises:
            FileNotFoundError: it is not stored.
            RemoteError: the storage cannot be reached, or refuses.
            DiskFullError: no space is left.
        """
        version = self._stored_version()
        if version is None:
            raise FileNotFoundError(errno.ENOENT, "there is no such object", masked(self._url))
        if self._path.exists() and read_json_or_none(self._note) == self._local_state(version):
            return
        with filesystem(self._url) as (files, key):
            if self._folder:
                manifest = self._manifest(files, key)
                with atomic_folder(self._path) as temporary:
                    for name in manifest:
                        path_below(temporary, name).parent.mkdir(parents=True, exist_ok=True)
                    files.get(
                        [f"{key}/{name}" for name in manifest],
                        [str(temporary / name) for name in manifest],
                    )
                    if self._checksums(temporary) != manifest:
                        raise RemoteError(f"{self._url}: its files do not fit its manifest")
            else:
                with atomic_file(self._path) as temporary:
                    files.get_file(key, str(temporary))
        write_json(self._note, self._local_state(version))

    def save(self) -> None:
        """Upload the local file or folder to object storage.

        Raises:
            RemoteError: the storage cannot be reached, or refuses.
        """
        with filesystem(self._url) as (files, key):
            if self._folder:
                stored: dict[str, str] = {}
                with suppress(FileNotFoundError):
                    stored = self._manifest(files, key)
                    files.rm_file(f"{key}/{_MANIFEST}")
                manifest = self._checksums(self._path)
                changed = [name for name in manifest if stored.get(name) != manifest[name]]
                files.put(
                    [str(self._path / name) for name in changed],
                    [f"{key}/{name}" for name in changed],
                )
                for name in stored.keys() - manifest.keys():
                    files.rm_file(f"{key}/{name}")
                files.pipe_file(f"{key}/{_MANIFEST}", json.dumps(manifest, indent=1).encode())
            else:
                files.put_file(str(self._path), key)
        write_json(self._note, self._local_state(self._stored_version()))

    def _stored_version(self) -> int | None:
        """Version of the object on the storage; None if there is none."""
        try:
            with filesystem(self._object) as (files, key):
                files.invalidate_cache()
                info = files.info(key)
                return version_of(info) if info["type"] == "file" else None
        except FileNotFoundError:
            return None

    def _manifest(self, files: Any, key: str) -> dict[str, str]:
        """Read the checksums of a stored folder's files, by relative path."""
        try:
            manifest = parse_json(files.cat_file(f"{key}/{_MANIFEST}"))
            return pydantic.TypeAdapter(dict[str, str]).validate_python(manifest)
        except ValueError as error:
            raise RemoteError(
                f"{self._object} is damaged ({error}): delete it, then run the pipeline that "
                "writes this folder"
            ) from error

    def _local_state(self, version: int | None) -> dict[str, Any]:
        """URL, version, and sizes and modification times of the local files, to detect changes."""
        files = [self._path] if not self._folder else _files(self._path)
        local = {str(file): [(s := file.stat()).st_size, s.st_mtime_ns] for file in files}
        return {"url": self._url, "version": version, "files": local}

    @staticmethod
    def _checksums(folder: Path) -> dict[str, str]:
        """SHA-256 of each file below a folder, by relative path."""
        return {file.relative_to(folder).as_posix(): file_sha256(file) for file in _files(folder)}


def _files(folder: Path) -> list[Path]:
    """All files below a folder, sorted by path."""
    return sorted(file for file in folder.rglob("*") if file.is_file())
