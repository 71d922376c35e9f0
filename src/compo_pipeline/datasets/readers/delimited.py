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
    """A record that cannot be parsed, with the line and the reason as its message."""


@cache
def log_once(message: str) -> None:
    """Log a message at most once per process, such as about a file that is opened repeatedly."""
    log.info(message)


def csv_rows(path: Path, delimiter: str = ",") -> Iterator[list[str] | UnreadableRecord]:
    """Yield the rows of a CSV file without blank lines; bytes that are no UTF-8 are escaped.

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
    """Delimiter of a CSV or TSV file, by its suffix, unless only another one splits the header.

    Raises:
        SourceError: as `csv_rows`.
    """
    usual = "\t" if path.suffix == ".tsv" else ","
    others = [each for each in _DELIMITERS if each != usual and len(_first_row(path, each)) > 1]
    if len(_first_row(path, usual)) > 1 or len(others) != 1:
        return usual
    log_once(f"{path}: fields are separated by {_DELIMITERS[others[0]]}")
    return others[0]


def _first_row(path: Path, delimiter: str) -> list[str]:
    """First row of a delimited file, split at a delimiter."""
    row = next(csv_rows(path, delimiter), [])
    return row if isinstance(row, list) else []


def open_text(path: Path) -> BufferedReader:
    """Open a text file for reading in bytes; refuse encodings other than UTF-8.

    Raises:
        SourceError: it cannot be opened, or is in another encoding than UTF-8.
    """
    try:
        file = open_file(path)
        start = file.read(_LOOKED_AT)
        file.seek(0)
    except OSError as error:
        raise SourceError(f"{path} cannot be read: {error.strerror}") from error
    if problem := _encoding_problem(start):
        file.close()
        raise SourceError(f"{path} is {problem}")
    return file


def _encoding_problem(start: bytes) -> str | None:
    """Error about a file whose first bytes are not UTF-8, with the remedy; None for UTF-8.

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
