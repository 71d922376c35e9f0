"""Figures of the code's structure (benchmarks/structure.py), on packages made for the test."""

import importlib
import json
import subprocess
import sys
import textwrap
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


def test_a_checkout_is_measured_where_it_lies(project: Path, tmp_path: Path) -> None:
    # Of the arrows cli -> low -> base and cli -> base, the longest path has three rooms; `base` has
    # two importers, `cli` none.
    files = {
        "__init__.py": "",
        "base.py": "",
        "low/__init__.py": "",
        "low/first.py": "from compo_pipeline import base",
        "low/second.py": "from compo_pipeline.low import first\nVALUE = first",
        "cli.py": """
            def run() -> None:
                from compo_pipeline import base
                from compo_pipeline.low.second import VALUE
        """,
        "scenes/__init__.py": "",
        "scenes/world.py": "VALUE = 1",
    }
    for name, text in files.items():
        file = tmp_path / "src" / "compo_pipeline" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(textwrap.dedent(text))
    script, written = project / "benchmarks" / "structure.py", tmp_path / "figures.json"
    arguments = [script, "--static", "--source", tmp_path, "--json", written]
    subprocess.run([sys.executable, *arguments], check=True, capture_output=True)
    figures = json.loads(written.read_text())
    names = ("rooms", "floors", "arrows", "single_importers")
    assert {name: figures[name] for name in names} == {
        "rooms": 4,
        "floors": 3,
        "arrows": 3,
        "single_importers": [
            ["compo_pipeline.low.first", "compo_pipeline.low.second", 1],
            ["compo_pipeline.low.second", "compo_pipeline.cli", 2],
        ],
    }
    assert figures["size"] == {
        "compo_pipeline": {"files": 4, "lines": 6, "import_lines": 4},
        "compo_pipeline/scenes": {"files": 1, "lines": 1, "import_lines": 0},
        "tests": {"files": 0, "lines": 0, "import_lines": 0},
    }


def test_code_is_counted_in_the_room_that_it_will_be_in(
    structure: ModuleType, tmp_path: Path
) -> None:
    files = {
        "__init__.py": "",
        "storage/files.py": "def file_hash():\n    return 1",
        "run/seeding.py": "SEED = 1",
        "datasets/settings.py": "@settings\nclass Data:\n    root: str\n    split: str",
        "datasets/recaption/write.py": "A = 1",
        "generation/write.py": "B = 1",
        "pipelines/views/pipeline.py": "STEPS = [node(1), node(2)]",
        "elsewhere.py": "C = 1",
    }
    for name, text in files.items():
        file = tmp_path / "src" / "compo_pipeline" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        (file.parent / "__init__.py").touch()
    found = {name: now for name, now, _ in structure.budgets(tmp_path)}
    expected = {"core": 3, "data": 4, "generation": 2, "pipelines": 1, "other": 1}
    assert {name: lines for name, lines in found.items() if name in expected} == expected
    counted = ("compo_pipeline", "nodes", "hash functions", "settings")
    assert [found[name] for name in counted] == [11, 2, 1, 2]
