"""What came of each request, kept on disk as it comes: a run cut short goes on where it was.

A line is on disk as soon as its answer is there, so a killed run loses at most the answer that
was on its way. Deleting the file is always safe.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import IO, NamedTuple


class Outcome(NamedTuple):
    """A text and how it came about, or no text and the reason why."""

    text: str
    detail: str


class Journal:
    """Lines of JSON, one request each: its key, text and detail; the last line of a key counts.

    Keys name all that decides an answer, so what was asked under other settings stays and does
    not disturb.
    """

    def __init__(self, path: Path) -> None:
        """Name the file; it is read when the journal is entered."""
        self._path = path
        self._found: dict[str, Outcome] = {}
        self._file: IO[str] | None = None

    def __enter__(self) -> Journal:
        """Read the file and open it to be added to."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._found = dict(_read(self._path))
        self._file = self._path.open("a", encoding="utf-8")
        return self

    def __exit__(self, *error: object) -> None:
        """Close the file."""
        if self._file:
            self._file.close()

    def __getitem__(self, key: str) -> Outcome:
        return self._found[key]

    def get(self, key: str) -> Outcome | None:
        """What came of a request, None where it was never answered."""
        return self._found.get(key)

    def note(self, key: str, outcome: Outcome) -> None:
        """Keep an answer; it is on disk when this returns."""
        if self._file is None:
            raise ValueError(f"{self._path}: a journal takes notes inside `with` alone")
        self._found[key] = outcome
        self._file.write(json.dumps([key, *outcome], ensure_ascii=False) + "\n")
        self._file.flush()


def _read(path: Path) -> Iterator[tuple[str, Outcome]]:
    """The notes of a file, after which nothing stands behind its last whole line."""
    if not path.exists():
        return
    with path.open("r+b") as file:
        whole = 0
        for line in file:
            if not line.endswith(b"\n"):
                break
            whole += len(line)
            try:
                key, text, detail = json.loads(line)
            except (ValueError, TypeError):
                continue
            if all(isinstance(part, str) for part in (key, text, detail)):
                yield key, Outcome(text, detail)
        file.truncate(whole)
