"""Figures of the code's structure (benchmarks/structure.py), on packages made for the test."""

import importlib
from pathlib import Path
from types import ModuleType

import pytest

# Lines of code end in `# code`, those of imports in `# code import`.
MODULE = '''\
"""What the module is.

Further text."""

import os  # code import
from pathlib import (  # code import
    # Why.
    Path,  # code import
)  # code import


class Row:  # code
    """A row."""

    name: str  # code
    """Its name,
    with a comment-like # sign."""

    def text(self) -> str:  # code
        """Its text."""
        import sys  # code import

        # Indented.
        return f"{self.name} {sys.path} {os.sep} {Path()}"  # code


VALUE = (  # code
    1,  # code

    2,  # code
)  # code
'''


@pytest.fixture
def structure(project: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(project / "benchmarks")
    return importlib.import_module("structure")


def test_code_lines_are_those_with_code(structure: ModuleType) -> None:
    marked = [line for line in MODULE.splitlines() if "# code" in line]
    imports = [line for line in marked if "# code import" in line]
    assert structure.code_lines(MODULE) == (len(marked), len(imports))


def test_a_text_over_several_lines_is_code_where_it_is_a_value(structure: ModuleType) -> None:
    text = 'TEXT = """one\n\n# two\n"""\n'
    assert structure.code_lines(text) == (len(text.splitlines()), 0)
