"""The request log as files: which rows are read."""

from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from compo_pipeline.core.files import DamagedFileError
from compo_pipeline.serving.requests import REQUESTS, hour_folder, read_requests, write_requests

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
PLAIN: dict[str, Any] = {
    "request": "a1",
    "row": 0,
    "model": "toy",
    "version": 3,
    "fingerprint": "f" * 16,
    "task": "rank",
    "latency": 0.25,
}


def rows(*times: datetime, **more: Any) -> pa.Table:
    """Rows of the log with these times; other columns than PLAIN's are null unless given."""
    made = [{**PLAIN, "request": f"{time:%d%H%M}", "time": time, **more} for time in times]
    return pa.Table.from_pylist(made, schema=REQUESTS)


def minutes(*numbers: int) -> list[datetime]:
    return [NOON + timedelta(minutes=number) for number in numbers]


def written(folder: Path, name: str, *times: datetime, **more: Any) -> Path:
    path = folder / hour_folder(times[0]) / f"{name}.parquet"
    write_requests(path, rows(*times, **more))
    return path


def read(folder: Path, first: int = -10_000, last: int = 10_000) -> list[str]:
    """Values of the column `request` within so many minutes of noon."""
    batches = read_requests(folder, *minutes(first, last))
    return [value for batch in batches for value in batch.column(0).to_pylist()]


def test_rows_are_read_as_they_were_written(tmp_path: Path) -> None:
    vector = np.array([0.6, -0.8], np.float16)
    filled = {"image": vector, "text": vector[::-1], "order": [1, 0], "image_bytes": b"\0\xff"}
    written(tmp_path, "a-0", NOON, **filled, caption="a red cube", margin=None, cosine=0.5)
    (batch,) = read_requests(tmp_path, *minutes(0, 1))
    assert batch.schema == REQUESTS
    (row,) = batch.to_pylist()
    expected = PLAIN | {"request": "011200", "time": NOON, "order": [1, 0], "cosine": 0.5}
    expected |= {"caption": "a red cube", "image_bytes": b"\0\xff", "margin": None, "words": None}
    assert {name: row[name] for name in expected} == expected
    assert np.array_equal(row["image"], vector) and np.array_equal(row["text"], vector[::-1])


def test_times_limit_the_rows(tmp_path: Path) -> None:
    for minute in (-61, -59, -1, 0, 59, 60):
        written(tmp_path, f"a-{minute + 61:03d}", *minutes(minute))
    assert read(tmp_path, -59, 60) == ["011101", "011159", "011200", "011259"]
    # Bounds in another time zone are the same moments.
    east = timezone(timedelta(hours=5, minutes=30))
    bounds = [time.astimezone(east) for time in minutes(0, 60)]
    (first, second) = read_requests(tmp_path, *bounds, ["request"])
    assert [first.column(0)[0].as_py(), second.column(0)[0].as_py()] == ["011200", "011259"]


def damaged(whole: bytes, data: int) -> dict[str, bytes]:
    flipped = whole[:data] + bytes([whole[data] ^ 1]) + whole[data + 1 :]
    other = pa.BufferOutputStream()
    pq.write_table(pa.table({"a": [1]}), other)
    return {
        "half": whole[: len(whole) // 2],
        "no table": b"",
        "flipped": flipped,
        "columns": other.getvalue().to_pybytes(),
    }


@pytest.mark.parametrize("kind", damaged(b"12", 0))
def test_a_damaged_file_is_named(tmp_path: Path, kind: str) -> None:
    path = written(tmp_path, "a-0", *minutes(*range(30)))
    place = pq.ParquetFile(path).metadata.row_group(0).column(0).data_page_offset + 40
    path.write_bytes(damaged(path.read_bytes(), place)[kind])
    with pytest.raises(DamagedFileError, match=r"a-0\.parquet is damaged"):
        read(tmp_path)


def test_files_that_are_being_written_are_no_part_of_the_log(tmp_path: Path) -> None:
    inside = written(tmp_path / "log", "a-0", NOON)
    (inside.parent / ".a-1.parquet.0").mkdir()
    (inside.parent / ".a-1.parquet.0" / "a-1.parquet").write_bytes(inside.read_bytes()[:100])
    assert read(tmp_path / "log") == ["011200"]
    assert read(tmp_path / "missing") == []
