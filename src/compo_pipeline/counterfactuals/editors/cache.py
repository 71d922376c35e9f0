"""Answers of language models on disk: what was asked once is never asked again.

One sqlite file for each writer. An answer is committed before anybody sees it, so a process may be
killed at any moment, and several processes may share a file: whose answer comes first, stays.
"""

from __future__ import annotations

import hashlib
import json
import sqlite3
import threading
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from compo_pipeline.configuration import SettingsError

_TABLE = (
    "CREATE TABLE IF NOT EXISTS answers "
    "(key TEXT PRIMARY KEY, text TEXT NOT NULL, cut INTEGER NOT NULL, asked TEXT NOT NULL)"
)
_WAIT = 60.0  # seconds for another process's write


class Answer(NamedTuple):
    """What a model said, as it said it; `cut` where it ran into its limit of tokens."""

    text: str
    cut: bool


def key_of(asked: Mapping[str, Any]) -> str:
    """The key of an answer: a hash of model, prompt and parameters."""
    text = json.dumps(asked, sort_keys=True, ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()


class Cache:
    """A file of answers, opened when it is first used; safe to share between threads."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._connection: sqlite3.Connection | None = None

    def get(self, keys: Iterable[str]) -> dict[str, Answer]:
        """The answers that are known, by their key.

        Raises:
            SettingsError: the file is no cache.
        """
        with self._lock:
            open_ = self._opened()
            rows = [(key, self._row(open_, key)) for key in keys]
            return {key: row for key, row in rows if row is not None}

    def put(self, answers: Mapping[str, Answer], asked: Mapping[str, str]) -> dict[str, Answer]:
        """Keep answers, in one transaction.

        Args:
            answers: by their key.
            asked: by key, what was asked, in short: for people who read the file.

        Returns:
            The answers that the file now holds under these keys: another process's, where it was
            earlier.
        """
        rows = [(key, one.text, one.cut, asked[key]) for key, one in answers.items()]
        with self._lock:
            open_ = self._opened()
            with open_:
                open_.executemany("INSERT OR IGNORE INTO answers VALUES (?, ?, ?, ?)", rows)
            return {key: self._row(open_, key) or one for key, one in answers.items()}

    def close(self) -> None:
        """Let go of the file; the next use opens it again."""
        with self._lock:
            if self._connection is not None:
                self._connection.close()
                self._connection = None

    def _opened(self) -> sqlite3.Connection:
        if self._connection is None:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            # The lock above is what keeps threads apart.
            connection = sqlite3.connect(self._path, timeout=_WAIT, check_same_thread=False)
            try:
                with connection:
                    connection.execute(_TABLE)
            except sqlite3.DatabaseError as error:
                connection.close()
                raise SettingsError(
                    f"{self._path}: expected a cache of answers, got another kind of file or a "
                    f"broken one ({error}); move it away and run again"
                ) from error
            self._connection = connection
        return self._connection

    @staticmethod
    def _row(connection: sqlite3.Connection, key: str) -> Answer | None:
        found = connection.execute("SELECT text, cut FROM answers WHERE key = ?", (key,)).fetchone()
        return Answer(found[0], bool(found[1])) if found else None
