"""Answers on disk: kept, shared, and whole after a kill."""

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from compo_pipeline.configuration import SettingsError
from compo_pipeline.counterfactuals.editors.cache import Answer, Cache, key_of

_WRITE_ON = """
import sys
from pathlib import Path
from compo_pipeline.counterfactuals.editors.cache import Answer, Cache
cache = Cache(Path(sys.argv[1]))
for number in range(100_000):
    key = str(number)
    cache.put({key: Answer(f"text {key}", False)}, {key: "caption"})
    print(key, flush=True)
"""


def test_what_is_put_is_there_for_others(tmp_path: Path) -> None:
    path = tmp_path / "new" / "answers.sqlite"
    answers = {"a": Answer("A cat.\n“Ünïcode”", False), "b": Answer("", True)}
    one = Cache(path)
    assert one.get(["a", "b"]) == {}
    assert one.put(answers, {"a": "caption", "b": "caption"}) == answers
    assert Cache(path).get(["a", "b", "c"]) == answers
    one.close()
    assert one.get(["b"]) == {"b": answers["b"]}


def test_the_first_answer_stays(tmp_path: Path) -> None:
    one, other = Cache(tmp_path / "a"), Cache(tmp_path / "a")
    first, second = {"a": Answer("first", False)}, {"a": Answer("second", True)}
    one.put(first, {"a": ""})
    assert other.put(second, {"a": ""}) == first
    assert one.get(["a"]) == first


def test_threads(tmp_path: Path) -> None:
    caches = [Cache(tmp_path / "a"), Cache(tmp_path / "a")]

    def put(number: int) -> None:
        key = str(number % 20)
        caches[number % 2].put({key: Answer(key, False)}, {key: ""})

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(put, range(80)))
    keys = [str(number) for number in range(20)]
    assert caches[0].get(keys) == {key: Answer(key, False) for key in keys}


def test_a_killed_process_loses_nothing(tmp_path: Path) -> None:
    path = tmp_path / "answers.sqlite"
    process = subprocess.Popen(
        [sys.executable, "-c", _WRITE_ON, str(path)], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    said = [process.stdout.readline().strip() for _ in range(5)]
    process.kill()
    said += process.stdout.read().split()
    process.wait()
    process.stdout.close()
    assert len(said) >= 5
    found = Cache(path).get(said)
    assert found == {key: Answer(f"text {key}", False) for key in said}


def test_another_kind_of_file(tmp_path: Path) -> None:
    path = tmp_path / "answers.sqlite"
    path.write_text("no database at all, and longer than the header of one" * 20)
    with pytest.raises(SettingsError, match="answers.sqlite: expected a cache of answers"):
        Cache(path).get(["a"])
    assert path.read_text().startswith("no database")


def test_keys() -> None:
    assert key_of({"a": 1, "b": "x"}) == key_of({"b": "x", "a": 1})
    assert key_of({"a": 1}) != key_of({"a": 2})
    assert key_of({"a": "1"}) != key_of({"a": 1})
