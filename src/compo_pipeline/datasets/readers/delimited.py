"""Text files of records as programs save them: encoding, CSV rows, what separates fields."""

from __future__ import annotations

import csv
import logging
from codecs import getincrementaldecoder
from collections.abc import Iterator
from functools import cache
from io import BufferedReader, TextIOWrapper
from pathlib import Path

from compo_pipeline.datasets.readers.record import SourceError
from compo_pipeline.storage.remote import open_file
from compo_pipeline.storage.untrusted import shown

_DELIMITERS = {",": "commas", ";": "semicolons", "\t": "tabs"}
_LOOKED_AT = 1 << 18  # bytes
_UTF16 = (b"\xff\xfe", b"\xfe\xff")
_DAMAGED = 0.2  # of the lines; more are a file in another encoding
_CONVERT = 'save it as "CSV UTF-8", or convert it, such as by `iconv -f {source} -t UTF-8`'

log = logging.getLogger(__name__)


class UnreadableRecord(ValueError):
    """A record of which nothing but the place is known."""


@cache
def log_once(message: str) -> None:
    """Log what was detected in a file; once, although a file is opened again for each split."""
    log.info(message)


def csv_rows(path: Path, delimiter: str = ",") -> Iterator[list[str] | UnreadableRecord]:
    """Rows of a CSV file; blank lines are none, and what is not UTF-8 is escaped.

    Raises:
        SourceError: the file cannot be opened, or is in another encoding.
    """
    with TextIOWrapper(
        open_text(path), encoding="utf-8-sig", errors="surrogateescape", newline=""
    ) as file:
        rows = csv.reader(file, delimiter=delimiter)
        while True:
            try:
                row = next(rows)
            except StopIteration:
                return
            except csv.Error as error:
                yield UnreadableRecord(f"line {rows.line_num}: {error}")
                continue
            if row:
                yield row


def delimiter_of(path: Path) -> str:
    """What separates the fields of a CSV or TSV file: what its name says, if its header has that.

    Raises:
        SourceError: as `csv_rows`.
    """
    usual = "\t" if path.suffix == ".tsv" else ","
    others = [each for each in _DELIMITERS if each != usual and len(_first(path, each)) > 1]
    if len(_first(path, usual)) > 1 or len(others) != 1:
        return usual
    log_once(f"{path}: fields are separated by {_DELIMITERS[others[0]]}")
    return others[0]


def _first(path: Path, delimiter: str) -> list[str]:
    """The first row of a file, split at a delimiter."""
    row = next(csv_rows(path, delimiter), [])
    return row if isinstance(row, list) else []


def open_text(path: Path) -> BufferedReader:
    """A text file, open for reading.

    Raises:
        SourceError: it cannot be opened, or is in another encoding than UTF-8.
    """
    try:
        file = open_file(path)
        start = file.read(_LOOKED_AT)
        file.seek(0)
    except OSError as error:
        raise SourceError(f"{path} cannot be read: {error.strerror}") from error
    if problem := _other_encoding(start):
        file.close()
        raise SourceError(f"{path} is {problem}")
    return file


def _other_encoding(start: bytes) -> str | None:
    """Why the first bytes of a file are not UTF-8, and what to do; None for UTF-8.

    A file with a character of UTF-8 has damaged lines, which are refused one by one.
    """
    if start.startswith(_UTF16):
        return f"UTF-16, expected UTF-8: {_CONVERT.format(source='UTF-16')}"
    text = getincrementaldecoder("utf-8")("surrogateescape").decode(start)
    lines = text.splitlines()
    wrong = [number for number, line in enumerate(lines, start=1) if not _is_valid_utf8(line)]
    written = any(char > "\x7f" and _is_valid_utf8(char) for char in set(text))
    if written or len(wrong) <= _DAMAGED * len(lines):
        return None
    return (
        f"not UTF-8 in {len(wrong)} of {len(lines)} lines, such as line {wrong[0]}, "
        f"{shown(lines[wrong[0] - 1])}: {_CONVERT.format(source='WINDOWS-1252')}"
    )


def _is_valid_utf8(text: str) -> bool:
    """Whether a text that was decoded with surrogate escapes was valid UTF-8."""
    return not any("\udc80" <= char <= "\udcff" for char in text)
