"""Atomic writes, the key-value store, and fingerprints of files."""

import errno
import json
import logging
import random
import signal
import sqlite3
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from compo_pipeline.configuration import SettingsError
from compo_pipeline.storage import (
    NO_CHECKSUM,
    DamagedFileError,
    DiskFullError,
    KeyValueStore,
    atomic_file,
    atomic_folder,
    file_sha256,
    files_fingerprint,
    read_json_or_none,
    verify_checksum,
    write_checksum,
    write_json,
)


class Point(NamedTuple):
    x: int
    label: str


def _fill(path: Path, folder: bool, text: str) -> None:
    (path / "inner" if folder else path).write_text(text)


@pytest.mark.parametrize("folder", [False, True])
def test_a_write_replaces_what_was_there_and_an_error_changes_nothing(
    tmp_path: Path, folder: bool
) -> None:
    atomic = atomic_folder if folder else atomic_file
    path = tmp_path / "deep" / "result"
    content = path / "inner" if folder else path
    for text in ("old", "new"):
        with atomic(path) as temporary:
            _fill(temporary, folder, text)
        assert content.read_text() == text
    with pytest.raises(KeyboardInterrupt), atomic(path) as temporary:
        _fill(temporary, folder, "half")
        raise KeyboardInterrupt
    assert content.read_text() == "new"
    assert list(path.parent.iterdir()) == [path]


@pytest.mark.parametrize("folder", [False, True])
def test_the_next_write_removes_what_a_kill_left(tmp_path: Path, folder: bool) -> None:
    atomic = "atomic_folder" if folder else "atomic_file"
    program = (
        "import os, signal, sys\nfrom pathlib import Path\nfrom compo_pipeline import storage\n"
        f"with storage.{atomic}(Path(sys.argv[1])) as temporary:\n"
        "    (temporary.parent / '.tmpAbCd').touch()\n"  # as safetensors writes
        "    (temporary / 'half' if temporary.is_dir() else temporary).touch()\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    path = tmp_path / "result"
    killed = subprocess.run([sys.executable, "-c", program, str(path)], check=False)
    assert killed.returncode == -signal.SIGKILL
    assert not path.exists() and len(list(tmp_path.rglob("*"))) > 2
    with (atomic_folder if folder else atomic_file)(path) as temporary:
        _fill(temporary, folder, "whole")
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("locks", [True, False], ids=["locks", "no locks"])
def test_a_second_writer_leaves_the_first_alone(
    tmp_path: Path, locks: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not locks:

        def refuse(descriptor: int, operation: int) -> None:
            raise OSError(errno.EBADF, "as NFS does for folders")

        monkeypatch.setattr("fcntl.flock", refuse)
    path = tmp_path / "result"
    with atomic_file(path) as first:
        first.write_text("first")
        with atomic_file(path) as second:
            second.write_text("second")
        assert path.read_text() == "second"
    assert path.read_text() == "first"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.ENOSPC, "full"),
        RuntimeError("I/O error: No space left on device (os error 28)"),
    ],
)
def test_a_full_disk_names_the_file_and_leaves_the_old_one(
    tmp_path: Path, error: Exception
) -> None:
    write_json(tmp_path / "value.json", 1)
    with (
        pytest.raises(DiskFullError, match=r"value\.json.*resume"),
        atomic_file(tmp_path / "value.json") as temporary,
    ):
        temporary.write_text("")
        raise error
    assert (tmp_path / "value.json").read_text() == "1\n"


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
    with pytest.raises(DiskFullError, match=r"store\.db"):
        store.put({"b": "x" * 99_999})
    assert store.get("ab") == {"a": "stored"}


def _flip(path: Path, bit: int) -> None:
    content = bytearray(path.read_bytes())
    content[bit // 8] ^= 1 << bit % 8
    path.write_bytes(content)


def test_any_flipped_bit_is_found_by_the_checksum(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text(f"before {NO_CHECKSUM} after")
    write_checksum(path)
    verify_checksum(path)
    whole = path.read_bytes()
    for bit in range(0, len(whole) * 8, 7):
        _flip(path, bit)
        with pytest.raises(DamagedFileError, match="file is damaged"):
            verify_checksum(path)
        path.write_bytes(whole)
    path.write_bytes(b"")
    with pytest.raises(DamagedFileError, match="empty"):
        verify_checksum(path)


def test_json_is_readable_and_ends_with_a_newline(tmp_path: Path) -> None:
    write_json(tmp_path / "value.json", {"name": "café"})
    text = (tmp_path / "value.json").read_text("utf-8")
    assert "café" in text and text.endswith("}\n")
    assert json.loads(text) == {"name": "café"}


def test_an_unreadable_record_counts_as_none(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "value.json"
    assert read_json_or_none(file) is None and not caplog.records
    write_json(file, [1])
    assert read_json_or_none(file) == [1]
    file.write_bytes(b"")
    assert read_json_or_none(file) is None and "value.json is unreadable" in caplog.text


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


def test_unreadable_values_count_as_absent(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = KeyValueStore(tmp_path / "store.db", Point)
    store.put({"a": Point(1, "one"), "b": Point(2, "two")})
    with sqlite3.connect(tmp_path / "store.db") as connection:
        connection.execute("UPDATE entries SET value = '[1' WHERE key = 'a'")
    with caplog.at_level(logging.WARNING):
        assert store.get("ab") == {"b": Point(2, "two")}
    assert "1 unreadable" in caplog.text


def test_a_value_that_has_changed_or_is_of_another_key_counts_as_absent(tmp_path: Path) -> None:
    store = KeyValueStore(tmp_path / "store.db", Point)
    store.put({key: Point(1, key) for key in "abc"})
    with sqlite3.connect(tmp_path / "store.db") as connection:
        connection.execute("UPDATE entries SET value = replace(value, '[1', '[3') WHERE key = 'a'")
        other = "(SELECT value FROM entries WHERE key = 'c')"
        connection.execute(f"UPDATE entries SET value = {other} WHERE key = 'b'")
    assert store.get("abc") == {"c": Point(1, "c")}


def test_no_flipped_bit_of_a_store_gives_another_value(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "store.db"
    store = KeyValueStore(path, int)
    values = {str(number): number for number in range(200)}
    store.put(values)
    whole = path.read_bytes()
    damaged = random.Random(0).sample(range(len(whole) * 8), 40)
    for bit in [*damaged, 101 * 8]:  # the last one is in the schema
        path.write_bytes(whole)
        _flip(path, bit)
        try:
            assert store.get(values).items() <= values.items()
        except SettingsError as error:
            assert "move it away" in str(error)
    assert "begun anew" in caplog.text and (tmp_path / "store.db.damaged").exists()
    store.put({"more": 1})
    assert store.get(["more"]) == {"more": 1}


def test_another_kind_of_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "store.db").write_text("a text of some length" * 99)
    with pytest.raises(SettingsError, match=r"store\.db.*move it away"):
        KeyValueStore(tmp_path / "store.db", str).get("a")


def test_what_was_put_before_a_kill_is_there(tmp_path: Path) -> None:
    program = (
        "import itertools, sys\nfrom pathlib import Path\n"
        "from compo_pipeline.storage import KeyValueStore\n"
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


def test_names_sizes_and_contents_count_for_a_fingerprint_places_do_not(tmp_path: Path) -> None:
    one, other = tmp_path / "one", tmp_path / "other"
    one.write_bytes(b"a" * 10)
    other.write_bytes(b"a" * 10)
    own = files_fingerprint([("name", one)])
    assert len(own) == 16 and own == files_fingerprint([("name", other)])
    other.write_bytes(b"a" * 9 + b"b")
    longer = tmp_path / "longer"
    longer.write_bytes(b"a" * 11)
    others = [
        files_fingerprint([named]) for named in (("name", other), ("name", longer), ("n", one))
    ]
    assert len({own, *others}) == 4


def test_a_fingerprint_covers_large_files_from_end_to_end(tmp_path: Path) -> None:
    size = 9_000_000
    file = tmp_path / "large"
    found = set()
    for place in (None, 0, 1, 2):
        content = bytearray(size)
        if place is not None:  # as weights differ: everywhere a little
            content[place * size // 3 : place * size // 3 + 300_000] = b"x" * 300_000
        file.write_bytes(content)
        found.add(files_fingerprint([("large", file)]))
    assert len(found) == 4


def test_the_sha256_of_a_file_is_the_usual_one(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"abc")
    assert file_sha256(tmp_path / "file").startswith("ba7816bf8f01cfea414140de5dae2223b0")
