"""Figures of the documents equal the stored results."""

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest


@pytest.fixture(scope="module")
def documents(project: Path) -> ModuleType:
    """The script that writes the figures."""
    file = project / "benchmarks" / "documents.py"
    spec = importlib.util.spec_from_file_location("documents", file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", ["README.md", "docs/findings.md"])
def test_marked_figures_are_those_of_the_results(
    documents: ModuleType, project: Path, name: str
) -> None:
    text = (project / name).read_text(encoding="utf-8")
    advice = "stale: python benchmarks/documents.py"
    assert name in documents.DOCUMENTS and "<!-- results: " in text
    assert documents.written(text) == text, advice


def test_a_figure_that_was_changed_by_hand_is_found(documents: ModuleType, project: Path) -> None:
    text = (project / "README.md").read_text(encoding="utf-8")
    row = next(line for line in text.splitlines() if "... swapped attributes" in line)
    changed = text.replace(row, row.replace("68.1", "68.2"))
    assert changed != text and documents.written(changed) == text
