"""The request log as files: which rows are read, and what is counted as skipped."""

import json
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from compo_pipeline.storage import requests
from compo_pipeline.storage.requests import (
    REQUESTS,
    compact,
    compactable,
    hour_folder,
    hour_of,
    read_dropped,
    read_requests,
    write_requests,
)

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
PLAIN: dict[str, Any] = {
    "request": "a1",
    "row": 0,
    "model": "toy",
    "version": 3,
    "fingerprint": "f" * 16,
    "role": "champion",
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


def read(folder: Path, first: int = -10_000, last: int = 10_000, **more: Any) -> Any:
    """Values of the column `request` within so many minutes of noon, and what was skipped."""
    skipped: Counter[str] = Counter()
    batches = read_requests(folder, *minutes(first, last), skipped, **more)
    return [value for batch in batches for value in batch.column(0).to_pylist()], skipped


def test_rows_are_read_as_they_were_written(tmp_path: Path) -> None:
    vector = np.array([0.6, -0.8], np.float16)
    filled = {"image": vector, "text": vector[::-1], "order": [1, 0], "image_bytes": b"\0\xff"}
    written(tmp_path, "a-0", NOON, **filled, caption="a red cube", margin=None, cosine=0.5)
    (batch,) = read_requests(tmp_path, *minutes(0, 1), Counter())
    assert batch.schema == REQUESTS
    (row,) = batch.to_pylist()
    expected = PLAIN | {"request": "011200", "time": NOON, "order": [1, 0], "cosine": 0.5}
    expected |= {"caption": "a red cube", "image_bytes": b"\0\xff", "margin": None, "words": None}
    assert {name: row[name] for name in expected} == expected
    assert np.array_equal(row["image"], vector) and np.array_equal(row["text"], vector[::-1])


def test_times_limit_the_rows(tmp_path: Path) -> None:
    for minute in (-61, -59, -1, 0, 59, 60):
        written(tmp_path, f"a-{minute + 61:03d}", *minutes(minute))
    assert read(tmp_path, -59, 60) == (["011101", "011159", "011200", "011259"], Counter())
    # Bounds in another time zone are the same moments.
    east = timezone(timedelta(hours=5, minutes=30))
    bounds = [time.astimezone(east) for time in minutes(0, 60)]
    (first, second) = read_requests(tmp_path, *bounds, Counter(), ["request"])
    assert [first.column(0)[0].as_py(), second.column(0)[0].as_py()] == ["011200", "011259"]


def test_some_columns(tmp_path: Path) -> None:
    written(tmp_path, "a-0", *minutes(0, 1))
    (batch,) = read_requests(tmp_path, *minutes(1, 2), Counter(), ["task", "row"])
    assert batch.to_pylist() == [{"task": "rank", "row": 0}]


def test_hours_of_files(tmp_path: Path) -> None:
    path = written(tmp_path, "a-0", NOON)
    assert path.parent == tmp_path / "date=2026-03-01/hour=12"
    assert hour_of(path, tmp_path) == NOON
    assert hour_of(tmp_path / "date=2026-13-01/hour=12/a-0.parquet", tmp_path) is None
    assert hour_of(tmp_path / "a-0.parquet", tmp_path) is None


def test_a_damaged_file_gives_no_row_and_is_counted(tmp_path: Path) -> None:
    good = written(tmp_path, "a-0", *minutes(0, 1))
    for name in ("half", "empty", "text", "null", "columns", "flipped"):
        written(tmp_path, name, *minutes(*range(2, 30)))
    folder, whole = good.parent, (good.parent / "half.parquet").read_bytes()
    (folder / "half.parquet").write_bytes(whole[: len(whole) // 2])
    (folder / "empty.parquet").write_bytes(b"")
    (folder / "text.parquet").write_text("no table")
    pq.write_table(pa.table({"a": [1]}), folder / "columns.parquet")
    nothing = pa.Table.from_pylist(
        [{}], schema=pa.schema([each.with_nullable(True) for each in REQUESTS])
    )
    pq.write_table(nothing, folder / "null.parquet")
    place = pq.ParquetFile(good).metadata.row_group(0).column(0).data_page_offset + 40
    (folder / "flipped.parquet").write_bytes(
        whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :]
    )
    found, skipped = read(tmp_path)
    assert found == ["011200", "011201"]
    assert skipped.total() == 6
    assert sum("CRC" in reason for reason in skipped) == 1
    assert any("'request' lacks values" in reason for reason in skipped)
    assert not any(str(tmp_path) in reason for reason in skipped)


def test_files_elsewhere_are_no_part_of_the_log(tmp_path: Path) -> None:
    inside = written(tmp_path / "log", "a-0", NOON)
    outside = written(tmp_path / "other", "b-0", NOON)
    (inside.parent / "link.parquet").symlink_to(outside)
    strange = tmp_path / "log" / "date=today" / "hour=12" / "c-0.parquet"
    strange.parent.mkdir(parents=True)
    strange.write_bytes(inside.read_bytes())
    (inside.parent / ".a-1.parquet.0").mkdir()
    (inside.parent / ".a-1.parquet.0" / "a-1.parquet").write_bytes(inside.read_bytes()[:100])
    found, skipped = read(tmp_path / "log")
    assert found == ["011200"]
    assert skipped.total() == 2
    assert any("leads out of" in reason for reason in skipped)
    assert any("is not below date=" in reason for reason in skipped)
    assert read(tmp_path / "missing") == ([], Counter())


@pytest.mark.parametrize("count", [1, 3])
def test_equal_rows_take_more_bytes_than_their_number(tmp_path: Path, count: int) -> None:
    """As a file of fewer bytes than rows is refused."""
    path = written(tmp_path, "a-0", *[NOON] * 20_000 * count)
    assert path.stat().st_size > 20_000 * count
    assert len(read(tmp_path)[0]) == 20_000 * count


def test_counts_of_dropped_rows_add_up(tmp_path: Path) -> None:
    contents: dict[str, Any] = {
        "a": {"rows": 5, "reasons": {"queue full": 3, "disk full": 2}},
        "b": {"rows": 1, "reasons": {"queue full": 1}},
        "list": [1],
        "negative": {"rows": 1, "reasons": {"x": -1}},
        "text": {"rows": 1, "reasons": {"x": "1"}},
    }
    folder = tmp_path / hour_folder(NOON)
    folder.mkdir(parents=True)
    for name, content in contents.items():
        (folder / f"{name}.dropped.json").write_text(json.dumps(content))
    (folder / "half.dropped.json").write_text('{"rows"')
    skipped: Counter[str] = Counter()
    found = read_dropped(tmp_path, *minutes(0, 60), skipped)
    assert found == {"queue full": 4, "disk full": 2}
    assert skipped.total() == 4
    assert not read_dropped(tmp_path, *minutes(60, 120), skipped)


def ten_files(folder: Path, server: str = "a") -> list[Path]:
    """Files of two hours, as a server writes them that passes the hour with its file 6."""
    hours = [*minutes(*range(0, 60, 10)), *minutes(*range(60, 80, 5))]
    return [
        written(folder, f"{server}-{number:06d}", time, time + timedelta(minutes=1))
        for number, time in enumerate(hours)
    ]


def compacted(folder: Path, server: str = "a", until: datetime = NOON + timedelta(days=1)) -> None:
    for files in compactable(folder, server, until):
        compact(files)


def names(folder: Path) -> list[str]:
    """Of the files that are read."""
    found = list(folder.glob("date=*/hour=*/*.parquet"))
    return sorted(path.name for path in set(found) - set(requests.superseded(found)))


def test_files_of_an_hour_become_one_with_the_same_rows(tmp_path: Path) -> None:
    vector = np.array([0.6, -0.8], np.float16)
    parts = ten_files(tmp_path)
    more = {"image": vector, "order": [1, 0], "image_bytes": b"\0\xff", "caption": "a red cube"}
    parts.append(written(tmp_path, "a-000010", *minutes(99), **more))
    before = [batch.to_pylist() for batch in read_requests(tmp_path, *minutes(-1, 999), Counter())]
    compacted(tmp_path, until=NOON)
    assert len(names(tmp_path)) == 11, "the hour is not over"
    compacted(tmp_path, until=NOON + timedelta(minutes=1))
    assert len(names(tmp_path)) == 6
    compacted(tmp_path)
    assert names(tmp_path) == ["a-000000-000005.parquet", "a-000006-000010.parquet"]
    for delete in (False, True):
        if delete:
            for part in parts:
                part.unlink()
        batches = list(read_requests(tmp_path, *minutes(-1, 999), Counter()))
        after = [row for batch in batches for row in batch.to_pylist()]
        assert repr(after) == repr([row for rows in before for row in rows])
        assert all(batch.schema == REQUESTS for batch in batches)
    assert list(compactable(tmp_path, "a", NOON + timedelta(days=1))) == []


def test_files_of_other_servers_and_other_names_stay(tmp_path: Path) -> None:
    for server in ("a", "b", "ab"):
        ten_files(tmp_path, server)
    written(tmp_path, "a-x", NOON)
    before = sorted(read(tmp_path)[0])
    compacted(tmp_path, "a")
    assert len(names(tmp_path)) == 2 + 10 + 10 + 1
    compacted(tmp_path, "b")
    assert len(names(tmp_path)) == 2 + 2 + 10 + 1
    assert sorted(read(tmp_path)[0]) == before and read(tmp_path)[1] == Counter()


def test_a_late_file_joins_those_of_its_hour(tmp_path: Path) -> None:
    """A clock that jumps back, or rows that waited long."""
    ten_files(tmp_path)
    compacted(tmp_path)
    written(tmp_path, "a-000010", *minutes(59))
    compacted(tmp_path)
    assert names(tmp_path) == ["a-000000-000010.parquet", "a-000006-000009.parquet"]
    found, skipped = read(tmp_path)
    assert len(found) == 21 and not skipped


def test_a_compacted_file_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parts = [
        written(tmp_path, f"a-{number:06d}", *minutes(number), image_bytes=bytes(100_000))
        for number in range(10)
    ]
    monkeypatch.setattr(requests, "_COMPACTED", 350_000)
    monkeypatch.setattr(requests, "_GROUP", 150_000)
    before = read(tmp_path)
    compacted(tmp_path)
    assert names(tmp_path) == [
        *(f"a-{first:06d}-{first + 2:06d}.parquet" for first in (0, 3, 6)),
        "a-000009.parquet",
    ]
    assert read(tmp_path) == before
    groups = [pq.ParquetFile(path).num_row_groups for path in parts[0].parent.glob("*-*-*")]
    assert groups == [2, 2, 2]


def test_compaction_takes_little_memory(tmp_path: Path) -> None:
    """100 MB of rows, in groups of 16 MB."""
    content = np.random.default_rng(0)
    for number in range(50):
        written(tmp_path, f"a-{number:06d}", NOON, image_bytes=content.bytes(2_000_000))
    (files,) = compactable(tmp_path, "a", NOON + timedelta(hours=2))
    previous = pa.default_memory_pool()
    pool = pa.proxy_memory_pool(previous)
    try:
        pa.set_memory_pool(pool)
        compact(files)
    finally:
        pa.set_memory_pool(previous)
    most = pool.max_memory()
    assert most is not None and 10_000_000 < most < 70_000_000
    assert len(read(tmp_path)[0]) == 50


def test_a_damaged_file_stays_alone(tmp_path: Path) -> None:
    parts = ten_files(tmp_path)
    parts[2].write_bytes(parts[2].read_bytes()[:-10])
    before = read(tmp_path)
    compacted(tmp_path)
    assert names(tmp_path) == [
        "a-000000-000001.parquet",
        "a-000002.parquet",
        "a-000003-000005.parquet",
        "a-000006-000009.parquet",
    ]
    assert read(tmp_path) == before and before[1].total() == 1


def test_a_damaged_page_leaves_the_files_as_they_are(tmp_path: Path) -> None:
    parts = ten_files(tmp_path)
    content = bytearray(parts[2].read_bytes())
    content[pq.ParquetFile(parts[2]).metadata.row_group(0).column(0).data_page_offset + 40] ^= 1
    parts[2].write_bytes(content)
    before = read(tmp_path)
    first, second = compactable(tmp_path, "a", NOON + timedelta(days=1))
    with pytest.raises(ValueError, match="CRC"):
        compact(first)
    assert read(tmp_path) == before and before[1].total() == 1
    assert not [path for path in parts[0].parent.iterdir() if path.name.startswith(".")]
    compact(second)
    assert read(tmp_path) == before


KILLED = """
import os, signal, sys
from datetime import datetime
from pathlib import Path
from compo_pipeline.storage.requests import compact, compactable
folder, step, until = sys.argv[1:]
def die():
    os.kill(os.getpid(), signal.SIGKILL)
asked = iter(range(100))
goes_on = lambda: next(asked) < 3 or step != "rows" or die()
replace = Path.replace
def replaced(self, target):
    step == "written" and die()
    replace(self, target)
    step == "renamed" and die()
Path.replace = replaced
for files in compactable(Path(folder), "a", datetime.fromisoformat(until)):
    compact(files, goes_on)
"""


@pytest.mark.parametrize(("step", "files"), [("rows", 10), ("written", 10), ("renamed", 5)])
def test_a_kill_loses_and_doubles_nothing(tmp_path: Path, step: str, files: int) -> None:
    parts = ten_files(tmp_path)
    before, until = read(tmp_path), NOON + timedelta(days=1)
    command = [sys.executable, "-c", KILLED, str(tmp_path), step, until.isoformat()]
    assert subprocess.run(command, check=False).returncode == -signal.SIGKILL
    assert len(names(tmp_path)) == files and read(tmp_path) == before
    # Some of the superseded files are deleted.
    for part in parts[1:4] if step == "renamed" else []:
        part.unlink()
        assert read(tmp_path) == before
    compacted(tmp_path)
    assert len(names(tmp_path)) == 2 and read(tmp_path) == before


def test_rows_are_read_once_while_files_are_compacted(tmp_path: Path) -> None:
    """A reader that has listed the files reads those that are superseded meanwhile."""
    ten_files(tmp_path)
    before = read(tmp_path)[0]
    batches: Iterator[pa.RecordBatch] = read_requests(tmp_path, *minutes(-1, 999), Counter())
    found = [row["request"] for row in next(batches).to_pylist()]
    compacted(tmp_path)
    found += [row["request"] for batch in batches for row in batch.to_pylist()]
    assert found == before
