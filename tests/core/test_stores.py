"""Values in the key-value store: kept over kills."""

import signal
import sqlite3
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch

from compo_pipeline.core.files import DamagedFileError
from compo_pipeline.core.settings import SettingsError
from compo_pipeline.core.stores import KeyValueStore, TensorStore, read_tensors, write_tensors


class Point(NamedTuple):
    x: int
    label: str


def test_values_come_back_with_their_type(tmp_path: Path) -> None:
    store = KeyValueStore(tmp_path / "deep" / "store.db", Point)
    assert store.get(["a"]) == {}
    store.put({"a": Point(2**60, "é"), "b": Point(2, "two")})
    assert store.get(["a", "c"]) == {"a": Point(2**60, "é")}


def test_the_last_or_the_first_value_of_a_key_counts(tmp_path: Path) -> None:
    store = KeyValueStore(tmp_path / "store.db", str)
    store.put({"a": "first"})
    store.put({"a": "second", "b": "second"}, replace=False)
    assert store.get("ab") == {"a": "first", "b": "second"}
    store.put({"a": "third"})
    assert store.get("a") == {"a": "third"}


def test_threads_share_a_store(tmp_path: Path) -> None:
    store = KeyValueStore(tmp_path / "store.db", int)
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda number: store.put({str(number): number}), range(40)))
    assert store.get(map(str, range(40))) == {str(number): number for number in range(40)}


def test_a_value_that_has_changed_or_is_of_another_key_counts_as_absent(tmp_path: Path) -> None:
    store = KeyValueStore(tmp_path / "store.db", Point)
    store.put({key: Point(1, key) for key in "abc"})
    with sqlite3.connect(tmp_path / "store.db") as connection:
        connection.execute("UPDATE entries SET value = replace(value, '[1', '[3') WHERE key = 'a'")
        other = "(SELECT value FROM entries WHERE key = 'c')"
        connection.execute(f"UPDATE entries SET value = {other} WHERE key = 'b'")
    assert store.get("abc") == {"c": Point(1, "c")}


def test_another_kind_of_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "store.db").write_text("a text of some length" * 99)
    with pytest.raises(SettingsError, match=r"store\.db.*move it away"):
        KeyValueStore(tmp_path / "store.db", str).get("a")


def test_what_was_put_before_a_kill_is_there(tmp_path: Path) -> None:
    program = (
        "import itertools, sys\nfrom pathlib import Path\n"
        "from compo_pipeline.core.stores import KeyValueStore\n"
        "store = KeyValueStore(Path(sys.argv[1]), int)\n"
        "for number in itertools.count():\n"
        "    store.put({str(number): number})\n    print(number, flush=True)\n"
    )
    command = [sys.executable, "-c", program, str(tmp_path / "store.db")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        printed = [int(process.stdout.readline()) for _ in range(20)]
        process.send_signal(signal.SIGKILL)
    assert printed == list(range(20))
    store = KeyValueStore(tmp_path / "store.db", int)
    assert list(store.get(map(str, range(20))).values()) == printed
    store.put({"more": 1})


def test_a_full_disk_under_a_store_is_no_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = KeyValueStore(tmp_path / "store.db", str)
    store.put({"a": "stored"})
    connect = sqlite3.connect

    def small(*given: Any, **named: Any) -> sqlite3.Connection:
        connection = connect(*given, **named)
        connection.execute("PRAGMA max_page_count=3")
        return connection

    monkeypatch.setattr("sqlite3.connect", small)
    with pytest.raises(sqlite3.OperationalError, match="full"):
        store.put({"b": "x" * 99_999})
    assert store.get("ab") == {"a": "stored"}


def test_no_flipped_bit_reads_as_other_tensors(tmp_path: Path) -> None:
    path = tmp_path / "file"
    tensors = {"a": torch.arange(6.0).reshape(2, 3), "n": torch.tensor(3)}
    write_tensors(path, tensors, {"step": "1"})
    whole, refused = path.read_bytes(), 0
    for bit in range(0, len(whole) * 8, 7):
        content = bytearray(whole)
        content[bit // 8] ^= 1 << bit % 8
        path.write_bytes(content)
        try:
            metadata, found = read_tensors(path)
        except DamagedFileError:
            refused += 1
        else:
            assert metadata == {"step": "1"} and found.keys() == tensors.keys()
            assert all(torch.equal(found[name], value) for name, value in tensors.items())
    assert refused > 200


def test_the_rows_of_wanted_keys_come_back(tmp_path: Path) -> None:
    parts = [{"values": torch.randn(2, 4), "patches": torch.randn(2, 3).bfloat16()} for _ in "12"]
    for keys, part in zip(("ab", "cd"), parts, strict=True):
        store = TensorStore(tmp_path / "new")
        store.add(keys, part)
        store.save()
        store.save()
    found = TensorStore(tmp_path / "new", {"d", "b"})
    assert len(list((tmp_path / "new").iterdir())) == 2 and found.rows.keys() == {"b", "d"}
    for name, rows in found.tensors().items():
        assert torch.equal(rows[found.rows["b"]], parts[0][name][1])
        assert torch.equal(rows[found.rows["d"]], parts[1][name][1])
        assert rows.dtype == parts[0][name].dtype
    assert TensorStore(None).tensors() == {}


def test_a_damaged_file_of_rows_counts_as_absent(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for key in "ab":
        store = TensorStore(tmp_path)
        store.add(key, {"values": torch.randn(1, 4)})
        store.save()
    part = min(tmp_path.iterdir())
    content = bytearray(part.read_bytes())
    content[-1] ^= 1
    part.write_bytes(content)
    assert len(TensorStore(tmp_path).rows) == 1 and "computed again" in caplog.text
    assert len(list(tmp_path.iterdir())) == 1
