"""Text files of records as programs save them: encoding, CSV rows, delimiters."""

from __future__ import annotations

import csv
import logging
import re
from codecs import getincrementaldecoder
from collections.abc import Iterable, Iterator, Sequence
from functools import cache, lru_cache
from io import BufferedReader, TextIOWrapper
from pathlib import Path

from compo_pipeline.core.files import size_and_time
from compo_pipeline.core.remote import open_file
from compo_pipeline.core.untrusted import shown
from compo_pipeline.data.readers.record import SourceError

_DELIMITERS = {",": "commas", ";": "semicolons", "\t": "tabs"}
_LOOKED_AT = 1 << 18  # bytes
_UTF16 = (b"\xff\xfe", b"\xfe\xff")
_DAMAGED = 0.2  # of the lines; more are a file in another encoding
_FEW_LINES = 5  # of a quoted text; more are reported
_DIGIT = re.compile(r"\d")
_IMAGE = re.compile(r"://|\.(?:jpe?g|png|webp|gif|bmp|ppm|npy|avif|heic|tiff?)\b", re.IGNORECASE)
_HALF = "its text {} line, {}: expected quotes around a text with line breaks"
_CONVERT = 'save it as "CSV UTF-8", or convert it, such as by `iconv -f {source} -t UTF-8`'

log = logging.getLogger(__name__)


class UnreadableRecord(ValueError):
    """A record that cannot be parsed, with the line and the reason as its message."""


@cache
def log_once(message: str) -> None:
    """Log a message at most once per process, such as about a file that is opened repeatedly."""
    log.info(message)


def csv_rows(path: Path, delimiter: str = ",") -> Iterator[list[str] | UnreadableRecord]:
    """Yield the rows of a CSV file without blank lines.

    Bytes that are no UTF-8 are escaped.

    A row has several lines where it quotes a text with line breaks. In a file with a quote that
    takes in further rows, each line is a row.

    Raises:
        SourceError: the file cannot be opened, is in another encoding, or has a quote that takes in
            further rows, and lines that are no rows.
    """
    with _open_lines(path) as lines:
        alone = _has_row_per_line(path, *size_and_time(path), delimiter)
        parts = ([_bare(line)] for line in lines) if alone else [lines]
        yield from (row for part in parts for row, _ in _rows(part, delimiter) if row)


def _open_lines(path: Path) -> TextIOWrapper:
    """Open a text file for reading.

    Its lines keep their ends.
    """
    file = open_text(path)
    return TextIOWrapper(file, encoding="utf-8-sig", errors="surrogateescape", newline="")


def _bare(line: str) -> str:
    """A line without its end."""
    return line.rstrip("\r\n")


def _rows(
    lines: Iterable[str], delimiter: str
) -> Iterator[tuple[list[str] | UnreadableRecord, list[str]]]:
    """Yield the rows of CSV lines, each with its lines.

    An empty line follows those of a row that is still open at the end of the file.
    """
    held: list[str] = []

    def kept() -> Iterator[str]:
        for line in lines:
            held.append(line)
            yield line
        held.append("")

    rows = csv.reader(kept(), delimiter=delimiter)
    while True:
        held.clear()
        try:
            yield next(rows), held
        except StopIteration:
            return
        except csv.Error as error:
            yield UnreadableRecord(f"line {rows.line_num}: {error}"), held


@lru_cache(1024)
def _has_row_per_line(path: Path, size: int, version: int, delimiter: str) -> bool:
    """Whether a quote of a CSV file takes in further rows, and each line is read as a row instead.

    Raises:
        SourceError: a quote does, and the lines differ in their number of fields.
    """
    joined, long, first = list[int](), list[int](), 1  # lines where rows of several lines begin
    with _open_lines(path) as file:
        for _, lines in _rows(file, delimiter):
            if len(lines) > 1 and _takes_in_rows(lines, delimiter):
                joined.append(first)
            elif len(lines) > _FEW_LINES:
                long.append(first)
            first += len(lines)
    if long:
        text = "%s, %s: a quoted text has more than %d lines; if it should not, a quote is missing"
        log.warning(text, path, _numbered(long), _FEW_LINES)
    if not joined:
        return False
    with _open_lines(path) as file:
        rows = (row for line in file for row, _ in _rows([_bare(line)], delimiter) if row)
        widths = {len(row) if isinstance(row, list) else 0 for row in rows}
    problem = f"{path}, {_numbered(joined)}: a quote opens a text that does not end in its row"
    if len(widths) > 1 or max(widths) < 2:
        raise SourceError(
            f"{problem}, and lines alone are no rows; expected quotes around a whole text, and "
            f"those inside of it doubled: fix it, such as by sed -i '{joined[0]}s/\"//g' {path}"
        )
    log.warning("%s: each line is read as a row of its own", problem)
    return True


def _takes_in_rows(lines: Sequence[str], delimiter: str) -> bool:
    """Whether the lines of a row are several rows: it is open, badly quoted, or names images."""
    try:
        list(csv.reader(lines, delimiter=delimiter, strict=True))
    except csv.Error:
        return True
    own, *others = (line.split(delimiter) for line in lines)
    return any(len(cells) > 1 and _are_alike(own, cells) for cells in others)


def _are_alike(row: Sequence[str], other: Sequence[str]) -> bool:
    """Whether two rows have an image, or values that differ only in digits, in one place."""
    return any(
        bool(_IMAGE.search(one) and _IMAGE.search(two))
        or (_DIGIT.search(one) is not None and _DIGIT.sub("0", one) == _DIGIT.sub("0", two))
        for one, two in zip(row, other, strict=False)
    )


def _numbered(lines: Sequence[int]) -> str:
    """Numbers of the first five of some lines."""
    return f"line {', '.join(map(str, lines[:5]))}{', ...' * (len(lines) > 5)}"


def without_halves(
    rows: Iterable[list[str] | UnreadableRecord], width: int
) -> Iterator[list[str] | UnreadableRecord]:
    """Yield the rows of a CSV file.

    Those with half a text, by a line break, cannot be read.

    Args:
        rows: without the header.
        width: number of fields of a row.
    """
    whole: list[str] = []  # the last one
    place = -1  # of the image's name
    before: list[str] | UnreadableRecord | None = None
    begun = False
    for row in rows:
        if isinstance(row, list):
            if _is_piece(row, whole, width, place):
                if isinstance(before, list) and not _ends_in_image(before):
                    before = UnreadableRecord(_HALF.format("goes on in the next", shown(row)))
                begun = True
            else:
                if begun and _ends_in_image(row):
                    row = UnreadableRecord(_HALF.format("begins in the previous", shown(row)))
                elif len(row) == width:
                    if not whole:
                        named = (n for n, cell in enumerate(row) if _IMAGE.search(cell))
                        place = next(named, -1)
                    whole = row
                begun = False
        if before is not None:
            yield before
        before = row
    if before is not None:
        yield before


def _is_piece(row: list[str], whole: list[str], width: int, place: int) -> bool:
    """Whether a row is only text: it lacks fields, or has text in the place of the image."""
    if len(row) < width:
        return not _are_alike(row, whole)
    return place >= 0 and " " in row[place].strip() and not _IMAGE.search(row[place])


def _ends_in_image(row: list[str]) -> bool:
    """Whether the last field of a row is the name of an image."""
    return _IMAGE.search(row[-1]) is not None


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
    with _open_lines(path) as lines:
        rows = (row for row, _ in _rows(lines, delimiter) if row)
        row = next(rows, [])
    return row if isinstance(row, list) else []


def open_text(path: Path) -> BufferedReader:
    """Open a text file for reading in bytes, and refuse encodings other than UTF-8.

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
    """Error about a file whose first bytes are not UTF-8, with the remedy, or None for UTF-8.

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
