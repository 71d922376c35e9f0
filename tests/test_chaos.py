"""Pipelines that are killed, or lose MLflow's server, end as undisturbed ones after the same
command: a small sample of benchmarks/faults/chaos.py and outage.py.
"""

import importlib
import json
import re
import runpy
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

SAMPLE = ("ingest", "validation", "foils", "views", "training")


@pytest.fixture
def scripts(project: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], ModuleType]:
    """A script as a module: the processes that it starts import it by name."""
    monkeypatch.syspath_prepend(project / "benchmarks" / "faults")
    return importlib.import_module


def test_the_page_of_reliability_is_of_the_stored_results(project: Path) -> None:
    script = runpy.run_path(str(project / "benchmarks" / "faults" / "reliability.py"))
    written = (project / "docs" / "explanation" / "reliability.md").read_text("utf-8")
    chaos, fuzz = (json.loads(script[name].read_text("utf-8")) for name in ("CHAOS", "FUZZ"))
    assert written == script["page"](chaos, fuzz)
    named = re.findall(r"`((?:tests|benchmarks)/\S+)`", written)
    assert named and not [name for name in named if not (project / name).exists()]


@pytest.mark.slow
def test_killed_pipelines_end_as_undisturbed_ones(
    scripts: Callable[[str], ModuleType], tmp_path: Path
) -> None:
    outcomes = list(scripts("chaos").chaos(SAMPLE, 2 * len(SAMPLE), 1, tmp_path))
    assert [each.pipeline for each in outcomes] == list(SAMPLE)
    assert {each.pipeline: each.different for each in outcomes if each.different} == {}
    assert {each.pipeline: each.leftovers for each in outcomes if each.leftovers} == {}
    assert sum(each.kills.total() for each in outcomes) >= len(SAMPLE)


@pytest.mark.slow
def test_a_training_goes_on_without_mlflows_server(
    scripts: Callable[[str], ModuleType], tmp_path: Path
) -> None:
    found = scripts("outage").outage(tmp_path)
    assert found.different == []
    assert found.warnings == 1
    assert "tracking.uri" in found.end
