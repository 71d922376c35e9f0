"""Asking the Hugging Face hub without waiting for it.

Its library tries a file again for half a minute where there is no network, and waits for ever
where a network swallows the question.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

_PATIENCE = 10.0  # seconds


def cached(repository: str, files: Sequence[str] | None = None) -> Path | None:
    """Folder of a repository in the local cache; None where it was never fetched.

    Args:
        repository: `owner/model`.
        files: patterns of those that are wanted; all by default.
    """
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import LocalEntryNotFoundError

    wanted = None if files is None else list(files)
    try:
        return Path(snapshot_download(repository, allow_patterns=wanted, local_files_only=True))
    except LocalEntryNotFoundError:
        return None


def kept(repository: str, files: Sequence[str]) -> Path | None:
    """The first of these files of a repository that lies in the local cache; None for none.

    Whether all of a repository is there is another question: a part of it may do.
    """
    from huggingface_hub import try_to_load_from_cache

    for name in files:
        found = try_to_load_from_cache(repository, name)
        if isinstance(found, str):
            return Path(found)
    return None


def ask(repository: str) -> None:
    """Return where the hub knows a repository and answers soon.

    Raises:
        Exception: it does not, of one of several kinds.
    """
    from huggingface_hub import HfApi

    HfApi().model_info(repository, timeout=_PATIENCE)


def first_line(error: Exception) -> str:
    """What an error says, without the advice that follows."""
    return (str(error).strip().splitlines() or ["no message"])[0]
