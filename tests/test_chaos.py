"""Pipelines that are killed end, started again, as undisturbed ones."""

import runpy
from pathlib import Path

import pytest

CHAOS = runpy.run_path(str(Path(__file__).parents[1] / "benchmarks" / "chaos.py"))


@pytest.mark.slow
def test_killed_pipelines_end_as_undisturbed_ones(tmp_path: Path) -> None:
    """A shorter form of benchmarks/chaos.py; the demo's chain up to its models."""
    pipelines = CHAOS["PIPELINES"][: CHAOS["PIPELINES"].index("training") + 1]
    outcomes = list(CHAOS["chaos"](pipelines, 2 * len(pipelines), 1, tmp_path))
    assert [each.pipeline for each in outcomes] == list(pipelines)
    assert {each.pipeline: each.different for each in outcomes if each.different} == {}
    assert sum(each.kills for each in outcomes) >= len(pipelines)
