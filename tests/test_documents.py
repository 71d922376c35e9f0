"""The figures in README.md, findings.md and departures.md are those of benchmarks/results."""

import importlib
from pathlib import Path
from types import ModuleType

import pytest

from compo_scenes.dataset import recipes

FIGURE = "<!-- figure: seeds_fp32 > rows > sugar_crepe/accuracy/add_att > vs_base -->"


@pytest.fixture
def documents(project: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The script that writes the figures."""
    monkeypatch.syspath_prepend(project / "benchmarks")
    return importlib.import_module("documents")


@pytest.mark.parametrize(
    "name", ["README.md", "docs/explanation/findings.md", "docs/explanation/departures.md"]
)
def test_figures_are_those_of_the_results(documents: ModuleType, project: Path, name: str) -> None:
    text = (project / name).read_text(encoding="utf-8")
    advice = "stale: python benchmarks/documents.py"
    assert name in documents.DOCUMENTS and "<!-- results: " in text
    assert documents.written(text) == text, advice
    assert documents.unsupported(text) == [], "figures without a result"


def test_an_advised_recipe_gains_what_the_results_say(documents: ModuleType) -> None:
    for env, _, gained in recipes():
        rows = documents.rows_of(f"seeds_{env}_fp32")
        for key in ("replace_rel", "swap_obj"):
            assert documents.value_of(rows[f"sugar_crepe/accuracy/{key}"]["vs_base"]) in gained


def test_a_figure_that_was_changed_by_hand_is_found(documents: ModuleType, project: Path) -> None:
    text = (project / "README.md").read_text(encoding="utf-8")
    row = next(line for line in text.splitlines() if "| swapped attributes" in line)
    changed = text.replace(row, row.replace("68.1", "68.2"))
    assert changed != text and documents.written(changed) == text
    inline = f"{FIGURE}-9.9{'<!-- /figure -->'}"
    assert "-9.9" not in documents.written(inline)


@pytest.mark.parametrize("line", ["It gains +3.1 [+2.0, +4.2].", "A readout finds 99% of them."])
def test_a_figure_without_a_result_is_found(documents: ModuleType, line: str) -> None:
    supported = f"With 95% intervals {FIGURE}+1.0 [+0.5, +1.5]<!-- /figure -->, significant at 5%."
    assert documents.unsupported(f"{supported}\n{line}\n") == [line]
