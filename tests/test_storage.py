"""Atomic writes, the key-value store, and fingerprints of files."""

import json
import logging
import signal
import sqlite3
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import pytest

from compo_pipeline.configuration import SettingsError
from compo_pipeline.storage import (
    KeyValueStore,
    atomic_file,
    atomic_folder,
    file_sha256,
    files_fingerprint,
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


def test_a_folder_left_by_a_kill_is_not_part_of_the_next_one(tmp_path: Path) -> None:
    (tmp_path / ".result.new").mkdir()
    (tmp_path / ".result.new" / "half").touch()
    with atomic_folder(tmp_path / "result") as temporary:
        (temporary / "whole").touch()
    assert [path.name for path in tmp_path.rglob("*")] == ["result", "whole"]


def test_json_is_readable_and_ends_with_a_newline(tmp_path: Path) -> None:
    write_json(tmp_path / "value.json", {"name": "café"})
    text = (tmp_path / "value.json").read_text("utf-8")
    assert "café" in text and text.endswith("}\n")
    assert json.loads(text) == {"name": "café"}


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
