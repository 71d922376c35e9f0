"""Safe reading of untrusted files: JSON, YAML, CSV, Parquet, and paths below a folder."""

from __future__ import annotations

import ast
import csv
import io
import json
import os
import reprlib
import zipfile
from collections.abc import Collection, Iterator
from itertools import islice
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any

from compo_pipeline.core.remote import read_bytes
from compo_pipeline.core.tables import batches, parquet_file

if TYPE_CHECKING:
    import pyarrow as pa

_DEEPEST = 100  # levels of nested JSON
_AT_ONCE = 256  # rows of a Parquet file
_MOST_BYTES = 2**30  # of the texts of a Parquet file
_MOST_CODE = 2**24  # bytes of TorchScript's code in a PyTorch file
_LONGEST_LIST = 10**6  # characters
_SHORT = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxother = 200


class OutsideRoot(ValueError):
    """Exception: a file name leads out of its root folder."""


def path_below(root: Path, name: str, *, follow_symlinks: bool = False) -> Path:
    """Path of a file name below a root, checked to stay inside.

    The file need not exist.

    Names with `..` are refused even where they would stay inside.

    Args:
        root: a folder, or a link to one.
        name: name from a file or a setting.
        follow_symlinks: whether links may lead out of the root.

    Raises:
        OutsideRoot: it leads out of the root.
        ValueError: no file can have this name.
    """
    plain = PurePath(name)
    if plain.is_absolute() or ".." in plain.parts:
        raise OutsideRoot(f"{shown(name)} is no plain path below {root}")
    path = root / name
    if not follow_symlinks and not _real(path).is_relative_to(_real(root)):
        raise OutsideRoot(f"{shown(name)} is a link that leads out of {root}")
    return path


def files_below(root: Path, pattern: str, *, follow_symlinks: bool = False) -> list[Path]:
    """Files below a root that match a glob pattern, sorted and checked to stay inside.

    Raises:
        OutsideRoot: the pattern or one of the files leads out of the root.
        ValueError: it is no pattern, or no file can have such a name.
    """
    path_below(root, pattern, follow_symlinks=True)
    if not PurePath(pattern).parts:
        return []  # the root itself, which glob refuses
    try:
        found = sorted(path for path in root.glob(pattern) if path.is_file())
    except (OSError, RecursionError) as error:  # a name that is too long, too many folders
        reason = getattr(error, "strerror", None) or "it has too many parts"
        raise ValueError(
            f"no files of {shown(pattern)} can be found below {root}: {reason}"
        ) from error
    inside = {folder: _real(folder) for folder in {path.parent for path in found}}
    for path in [] if follow_symlinks else found:
        real = _real(path) if path.is_symlink() else inside[path.parent]
        if not real.is_relative_to(_real(root)):
            raise OutsideRoot(f"{shown(str(path))} is a link that leads out of {root}")
    return found


def _real(path: Path) -> Path:
    """The path with symbolic links resolved.

    A loop of links is left as it is.
    """
    return Path(os.path.realpath(path))


def read_json(path: Path) -> Any:
    """Read the value of a JSON file from an untrusted source.

    Raises:
        ValueError: it cannot be read or holds no JSON; one line with the path.
    """
    content = _file_bytes(path)
    try:
        return parse_json(content)
    except ValueError as error:
        raise ValueError(f"{path} is not valid JSON: {error}") from error


def read_json_lines(path: Path) -> list[Any]:
    """Read the values of a JSON Lines file from an untrusted source.

    Blank lines are skipped.

    Raises:
        ValueError: it cannot be read, or a line holds no JSON; one line with the path.
    """
    found = []
    for number, line in enumerate(_file_bytes(path).splitlines(), start=1):
        try:
            found += [parse_json(line)] if line.strip() else []
        except ValueError as error:
            raise ValueError(f"{path}, line {number} is not valid JSON: {error}") from error
    return found


def read_lines(path: Path) -> list[str]:
    """Read the non-blank lines of a text file in UTF-8 from an untrusted source.

    Raises:
        ValueError: it cannot be read, or is not UTF-8; one line with the path.
    """
    try:
        text = _file_bytes(path).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not valid UTF-8: {error.reason}") from error
    return [line for line in text.splitlines() if line.strip()]


def read_csv(path: Path) -> list[dict[str, str]]:
    """Read the rows of a UTF-8 CSV file with a header as dicts.

    Blank lines are skipped.

    Raises:
        ValueError: it cannot be read, or a row has not the header's length; one line with the path.
    """
    try:
        text = io.StringIO(_file_bytes(path).decode("utf-8-sig"), newline="")
        rows = [row for row in csv.reader(text) if row]
    except (UnicodeDecodeError, csv.Error) as error:
        raise ValueError(f"{path} is not valid CSV in UTF-8: {error}") from error
    for number, row in enumerate(rows):
        if len(row) != len(rows[0]):
            raise ValueError(
                f"{path}, row {number} has {len(row)} fields, expected {len(rows[0])}: {shown(row)}"
            )
    return [dict(zip(rows[0], row, strict=True)) for row in rows[1:]]


def read_parquet(path: Path) -> list[dict[str, Any]]:
    """Read the rows of a Parquet file as dicts, without the columns that hold images.

    Raises:
        ValueError: it cannot be read, or its texts are more than 1 GiB; one line with the path.
    """
    with parquet_file(path, trusted=False) as file:
        plain = [each.name for each in file.schema_arrow if not holds_images(each.type)]
        return [
            row
            for batch in batches(file, _AT_ONCE, plain, _MOST_BYTES)
            for row in batch.to_pylist()
        ]


def read_batches(
    path: Path, columns: pa.Schema, nullable: Collection[str], most: int | None = None
) -> Iterator[pa.RecordBatch]:
    """Yield an untrusted Parquet file's rows as Arrow batches, after checks of its columns.

    Args:
        path: path of the file.
        columns: columns that the file must have.
        nullable: names of the columns that may lack values.
        most: number of rows that it may have.

    Raises:
        ValueError: it cannot be read, is too large, or has other columns; names the file.
    """
    with parquet_file(path, trusted=False) as file:
        found = file.schema_arrow
        if found.names != columns.names or found.types != columns.types:
            raise ValueError(f"it has the columns {shown(found.names)}, expected {columns.names}")
        if most is not None and file.metadata.num_rows > most:
            raise ValueError(f"it has {file.metadata.num_rows} rows, expected at most {most}")
        for batch in batches(file, _AT_ONCE, None, _MOST_BYTES):
            for name, column in zip(batch.schema.names, batch.columns, strict=True):
                if column.null_count and name not in nullable:
                    raise ValueError(f"the column '{name}' lacks values")
            yield batch


def check_weights_archive(path: Path) -> None:
    """Raise an error for a PyTorch file that inflates to more than twice its size and 16 MiB.

    PyTorch compresses nothing but TorchScript's code, so that no file of its own does.

    Raises:
        ValueError: it is such a file, or a damaged zip archive; one line with the path.
    """
    with path.open("rb") as file:
        zipped = file.read(4) == b"PK\3\4" or zipfile.is_zipfile(file)
    if not zipped:
        return
    try:
        with zipfile.ZipFile(path) as archive:
            inflated = sum(member.file_size for member in archive.infolist())
    except (zipfile.BadZipFile, NotImplementedError, OSError) as error:
        raise ValueError(f"{path} is a damaged archive: {error}") from error
    if inflated > 2 * (size := path.stat().st_size) + _MOST_CODE:
        raise ValueError(
            f"{path} has {size} bytes and inflates to {inflated}, which PyTorch's own files do not"
        )


def holds_images(kind: pa.DataType) -> bool:
    """Whether an Arrow type is bytes or a struct, as columns of images are."""
    from pyarrow.types import is_binary, is_large_binary, is_struct

    return any(of_kind(kind) for of_kind in (is_struct, is_binary, is_large_binary))


def _file_bytes(path: Path) -> bytes:
    """Read the bytes of a file.

    An error names the file.
    """
    try:
        return read_bytes(path)
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror}") from error


def parse_json(text: bytes | str) -> Any:
    """Parse JSON from an untrusted source, and refuse repeated keys and deep nesting.

    Bytes are UTF-8, UTF-16 or UTF-32, with or without BOM.

    Raises:
        ValueError: it is no JSON, gives a key twice, or nests more than 100 levels.
    """
    try:
        value = json.loads(text, object_pairs_hook=_dict_without_repeats)
    except RecursionError:
        raise ValueError(f"more than {_DEEPEST} nested levels") from None
    level = [value]
    for _ in range(_DEEPEST):
        level = [
            inner
            for outer in level
            if isinstance(outer, dict | list)
            for inner in (outer.values() if isinstance(outer, dict) else outer)
            if isinstance(inner, dict | list)
        ]
        if not level:
            return value
    raise ValueError(f"more than {_DEEPEST} nested levels")


def parse_list(text: str) -> list[Any] | None:
    """Parse a list of plain values in JSON or Python syntax, or None for other texts."""
    if len(text) > _LONGEST_LIST:
        return None
    try:
        value = ast.literal_eval(text)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return None
    return value if isinstance(value, list) else None


def _dict_without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Make a dict of a JSON object's pairs, and refuse a key that occurs twice."""
    found = dict(pairs)
    if len(found) < len(pairs):
        keys = [key for key, _ in pairs]
        repeated = next(key for key in keys if keys.count(key) > 1)
        raise ValueError(f"the key {shown(repeated)} is given twice")
    return found


def shown(value: Any) -> str:
    """Shortened `repr` of a value, for error messages."""
    return _SHORT.repr(value)


def listed(names: Collection[str]) -> str:
    """The first five of some names, for error messages."""
    return ", ".join([*islice(names, 5), *["..."] * (len(names) > 5)])


def text_problem(value: Any) -> str | None:
    """Why a value cannot be stored as text (no string, or not valid UTF-8), or None if it can."""
    if not isinstance(value, str):
        return f"{shown(value)} is not a text"
    try:
        value.encode()
    except UnicodeEncodeError:
        return f"{shown(value)} is not valid UTF-8"
    return None
