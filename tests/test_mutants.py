"""Mutants of the code (benchmarks/mutants.py): what they change, and when they count as killed."""

import importlib
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


def test_every_target_has_tests(mutants: ModuleType) -> None:
    for file in {mutant.file for mutant in mutants.drawn(mutants.ROOT, 10**6, 0)}:
        tests = mutants.tests_of(mutants.ROOT, file)
        assert tests and all((mutants.ROOT / name).is_file() for name in tests)
