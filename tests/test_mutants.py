"""Mutants of the code (benchmarks/mutants.py): what they change, and when they count as killed."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

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
