"""Download from the Hugging Face hub with short timeouts instead of long retries.

Its library retries a file for half a minute where there is no network, and waits without limit
where a network drops the packets.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import huggingface_hub
from huggingface_hub.errors import LocalEntryNotFoundError

_TIMEOUT = 10.0  # seconds


def folder(
    repository: str, files: Sequence[str], complete: Callable[[Path], object] = Path.is_dir
) -> Path:
    """Local folder with files of a repository, downloaded if the cache does not have them.

    Args:
        repository: `owner/model`.
        files: patterns of the wanted files.
        complete: whether a cached folder has all files that are needed.

    Raises:
        Exception: it cannot be downloaded, of one of several kinds.
    """
    patterns = list(files)
    try:
        found = huggingface_hub.snapshot_download(
            repository, allow_patterns=patterns, local_files_only=True
        )
        if complete(Path(found)):
            return Path(found)
    except LocalEntryNotFoundError:
        pass
    check_repository(repository)
    return Path(huggingface_hub.snapshot_download(repository, allow_patterns=patterns))


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


def reason(error: Exception) -> str:
    """Kind of an error, and the first line of its message, without the advice that may follow."""
    return f"{type(error).__name__}: {(str(error).strip().splitlines() or ['no message'])[0]}"
