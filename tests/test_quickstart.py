"""The notebook runs from its first cell to its last, and its scores are those of the evaluation."""

import json
import shutil
from pathlib import Path

import pytest

NOTEBOOK = Path(__file__).parents[1] / "docs" / "quickstart.ipynb"

# What the evaluation found of the item that the notebook scores; the image tower's bf16 rounds.
COMPARED = """
(found,) = scores.query(
    "model == 'clic' and benchmark == 'sugar_crepe' and subtask == 'swap_att' and item == '0'"
)["similarities"]
assert list(results.values()) == __import__("pytest").approx(found, abs=5e-3), found
"""


def test_the_notebook_is_kept_without_outputs() -> None:
    cells = json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]
    assert [cell for cell in cells if cell.get("outputs") or cell.get("execution_count")] == []


@pytest.mark.slow
def test_the_notebook_runs(workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nbformat = pytest.importorskip("nbformat")
    nbclient = pytest.importorskip("nbclient")
    (workspace / "docs").mkdir()
    shutil.copy(NOTEBOOK, workspace / "docs")
    notebook = nbformat.read(workspace / "docs" / NOTEBOOK.name, as_version=4)
    notebook.cells.append(nbformat.v4.new_code_cell(COMPARED))
    monkeypatch.setenv("COMPO_ENV", "smoke")
    where = {"metadata": {"path": str(workspace / "docs")}}
    nbclient.NotebookClient(notebook, timeout=900, kernel_name="python3", resources=where).execute()
