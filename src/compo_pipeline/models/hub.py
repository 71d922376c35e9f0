"""Download from the Hugging Face hub with short timeouts instead of long retries.

Its library retries a file for half a minute where there is no network, and waits without limit
where a network drops the packets.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import huggingface_hub
from huggingface_hub.errors import LocalEntryNotFoundError

_TIMEOUT = 10.0  # seconds


def cached_folder(repository: str, files: Sequence[str]) -> Path | None:
    """Folder of a Hugging Face repository in the local cache, or None if it was never fetched.

    Args:
        repository: `owner/model`.
        files: patterns of the wanted files.
    """
    try:
        folder = huggingface_hub.snapshot_download(
            repository, allow_patterns=list(files), local_files_only=True
        )
    except LocalEntryNotFoundError:
        return None
    return Path(folder)


def cached_file(repository: str, files: Sequence[str]) -> Path | None:
    """Path of the first of these files of a repository that is in the local cache, or None.

    The rest of the repository need not be cached.
    """
    for name in files:
        found = huggingface_hub.try_to_load_from_cache(repository, name)
        if isinstance(found, str):
            return Path(found)
    return None


def check_repository(repository: str) -> None:
    """Raise an error unless the Hugging Face hub has a repository and answers in ten seconds.

    Raises:
        Exception: it does not, of one of several kinds.
    """
    huggingface_hub.HfApi().model_info(repository, timeout=_TIMEOUT)


def download(repository: str, files: Sequence[str]) -> Path:
    """Download the files of a hub repository that match patterns.

    Returns their local folder.

    Raises:
        Exception: it does not, of one of several kinds.
    """
    check_repository(repository)
    return Path(huggingface_hub.snapshot_download(repository, allow_patterns=list(files)))


def first_line(error: Exception) -> str:
    """First line of an error's message, without the advice that may follow."""
    return (str(error).strip().splitlines() or ["no message"])[0]
