"""Atomic writes and hashes of files."""

import errno
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from compo_pipeline.core.files import (
    DamagedFileError,
    DiskFullError,
    atomic_file,
    atomic_folder,
    read_json,
    read_json_or_none,
    write_json,
)
from compo_pipeline.core.hashing import files_hash, hash_of


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
        "import os, signal, sys\nfrom pathlib import Path\n"
        "from compo_pipeline.core import files\n"
        f"with files.{atomic}(Path(sys.argv[1])) as temporary:\n"
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
def test_a_full_disk_leaves_the_old_file(tmp_path: Path, error: Exception) -> None:
    write_json(tmp_path / "value.json", 1)
    with (
        pytest.raises(DiskFullError, match=r"left for .*value\.json"),
        atomic_file(tmp_path / "value.json") as temporary,
    ):
        temporary.write_text("")
        raise error
    assert read_json(tmp_path / "value.json") == 1


def test_a_json_file_that_is_cut_off_is_one_line_with_its_name(tmp_path: Path) -> None:
    file = tmp_path / "value.json"
    write_json(file, {"name": "café"})
    for damaged in (file.read_bytes()[:-3], b"", b'{"name": "caf\xe9"}'):
        file.write_bytes(damaged)
        with pytest.raises(DamagedFileError, match=r"value\.json is damaged") as raised:
            read_json(file)
        assert "\n" not in raised.value.message


def test_an_unreadable_record_counts_as_none(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "value.json"
    assert read_json_or_none(file) is None and not caplog.records
    write_json(file, [1])
    assert read_json_or_none(file) == [1]
    for damaged in (b"", b"[1"):
        caplog.clear()
        file.write_bytes(damaged)
        assert read_json_or_none(file) is None
        assert "value.json is damaged" in caplog.text and "it is made again" in caplog.text


def test_names_sizes_and_contents_count_for_a_fingerprint_places_do_not(tmp_path: Path) -> None:
    one, other = tmp_path / "one", tmp_path / "other"
    one.write_bytes(b"a" * 10)
    other.write_bytes(b"a" * 10)
    own = files_hash([("name", one)])
    assert len(own) == 16 and own == files_hash([("name", other)])
    other.write_bytes(b"a" * 9 + b"b")
    longer = tmp_path / "longer"
    longer.write_bytes(b"a" * 11)
    others = [files_hash([named]) for named in (("name", other), ("name", longer), ("n", one))]
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
        found.add(files_hash([("large", file)]))
    assert len(found) == 4


def test_equal_values_have_one_hash() -> None:
    assert hash_of({"a": 1, "b": {"x", "y"}}) == hash_of({"b": {"y", "x"}, "a": 1})
    others = [(1,), ("1",), ([1],), (1, 2), (Path("1/2"),)]
    assert len({hash_of(*values) for values in others}) == 5


def test_several_writers_of_one_folder_replace_it_one_after_another(tmp_path: Path) -> None:
    folder, failures = tmp_path / "export", list[BaseException]()

    def write(number: int) -> None:
        try:
            for _ in range(50):
                with atomic_folder(folder) as temporary:
                    (temporary / "README.md").write_text(str(number))
        except OSError as error:
            failures.append(error)

    writers = [threading.Thread(target=write, args=(number,)) for number in range(4)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert failures == []
    assert (folder / "README.md").read_text() in "0123"
    assert [path.name for path in tmp_path.iterdir()] == ["export"]
