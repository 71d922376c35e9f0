"""Mutants of the code (benchmarks/mutants.py): what they change, and when they count as killed."""

import importlib
import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

MODULE = '''\
"""Text."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from enum import Enum


def scaled(row: "list[1]", by: float = 2.5, *, name: str = "é") -> int:
    """Text."""
    kept = [value * by for value in row if value > 0]
    if not kept or name == f"{1}":
        raise ValueError(name)
    row[0] = -1
    kept.sort()
    return len(kept) + True
'''


@pytest.fixture
def mutants(project: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(project / "benchmarks")
    return importlib.import_module("mutants")


def test_mutants_are_each_of_one_place(mutants: ModuleType) -> None:
    made = {(each.operator, each.old, each.new) for each in mutants.mutants("a.py", MODULE)}
    assert made == {
        ("comparison", "value > 0", "(value >= 0)"),
        ("comparison", 'name == f"{1}"', "(name != f'{1}')"),
        ("arithmetic", "value * by", "(value / by)"),
        ("arithmetic", "-1", "(1)"),
        ("arithmetic", "len(kept) + True", "(len(kept) - True)"),
        ("boolean", 'not kept or name == f"{1}"', "(not kept and name == f'{1}')"),
        ("boolean", "not kept", "(kept)"),
        ("negated condition", "value > 0", "(not value > 0)"),
        ("negated condition", 'not kept or name == f"{1}"', "(not (not kept or name == f'{1}'))"),
        ("removed statement", "raise ValueError(name)", "pass"),
        ("removed statement", "row[0] = -1", "pass"),
        ("removed statement", "kept.sort()", "pass"),
        ("argument default", "2.5", "(3.5)"),
        ("argument default", '"é"', "(None)"),
        ("constant", "0", "(1)"),
        ("constant", "1", "(2)"),
        ("constant", "True", "(False)"),
        ("return value", "len(kept) + True", "(None)"),
    }


CODE = """\
def steps(n):
    count = 0
    while n > 0:
        n -= 1
        count += 1
    return count

def unused(n):
    return n
"""


@pytest.mark.slow
def test_outcomes(project: Path, tmp_path: Path) -> None:
    """Of mutants that change a result, that never end, and of a function that no test calls."""
    files = {
        "src/compo_pipeline/__init__.py": "",
        "src/compo_pipeline/losses/__init__.py": "",
        "src/compo_pipeline/losses/count.py": CODE,
        "tests/test_count.py": (
            "from compo_pipeline.losses.count import steps\n"
            "def test_steps():\n    assert steps(2) == 2\n"
        ),
        "benchmarks/mutants.py": (
            (project / "benchmarks" / "mutants.py")
            .read_text("utf-8")
            .replace("SECONDS = 60 ", "SECONDS = 5 ")
        ),
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    for command in (["init", "-q"], ["add", "."]):
        subprocess.run(["git", *command], cwd=tmp_path, check=True)
    script = [sys.executable, "benchmarks/mutants.py", "--results", "found.jsonl"]
    subprocess.run(script, cwd=tmp_path, check=True, capture_output=True)
    found = [json.loads(line) for line in (tmp_path / "found.jsonl").open()]
    outcomes = {(each["operator"], each["line"]): each["outcome"] for each in found}
    expected = {
        ("return value", 6): "killed",
        ("comparison", 3): "killed",
        ("removed statement", 4): "timed out",
        ("return value", 9): "no test",
    }
    assert {key: outcomes[key] for key in expected} == expected
    assert (tmp_path / "src/compo_pipeline/losses/count.py").read_text() == CODE
