"""Tables of captions on disk."""

import csv
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq


def write_table(path: Path, rows: Sequence[dict[str, Any]]) -> Path:
    """Write rows in the format that the file's name asks for; lists as JSON where it has none."""
    if path.suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(list(rows)), path)
    elif path.suffix == ".jsonl":
        path.write_text("".join(f"{json.dumps(row)}\n" for row in rows), "utf-8")
    else:
        with path.open("w", encoding="utf-8", newline="") as file:
            delimiter = "\t" if path.suffix == ".tsv" else ","
            writer = csv.DictWriter(file, list(rows[0]), delimiter=delimiter)
            writer.writeheader()
            for row in rows:
                plain = {key: json.dumps(one) for key, one in row.items() if isinstance(one, list)}
                writer.writerow({**row, **plain})
    return path
