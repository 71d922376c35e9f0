"""Pipelines are found by their packages, imported when asked for, and added by other packages."""

from importlib.metadata import EntryPoint, entry_points

import pytest
from kedro.pipeline import Pipeline

from compo_pipeline.core import plugins
from compo_pipeline.pipeline_registry import GROUP, register_pipelines
from compo_pipeline.tuning import cells

NAMES = list(register_pipelines())


@pytest.mark.parametrize("reader", ["foils.build_foils", "evaluation.gather_items"])
def test_benchmarks_of_generated_data_are_read_after_they_are_generated(reader):
    nodes = {node.name for node in register_pipelines()["train_eval"].to_nodes(reader).nodes}
    assert "data.prepare_source" in nodes


def test_a_comparison_makes_what_its_runs_read():
    pipelines = register_pipelines()
    of_a_run = sum((pipelines[name] for name in cells.PIPELINES), Pipeline([]))
    read = {name for name in of_a_run.inputs() if not name.startswith("params:")} - {"parameters"}
    received = {"foils_review"}  # from a person, where there is one
    assert read - received <= pipelines["comparison"].all_outputs()


def test_a_package_adds_a_pipeline_by_an_entry_point(monkeypatch):
    points = [*entry_points(group=GROUP)]
    points.append(
        EntryPoint("theirs", "compo_pipeline.pipelines.attention.pipeline:create_pipeline", GROUP)
    )
    monkeypatch.setattr(plugins, "points_of", lambda group: points)
    found = register_pipelines()
    assert {*NAMES, "theirs"} == set(found) and len(found) == len(NAMES) + 1
    assert [node.name for node in found["theirs"].nodes] == ["draw_attention"]
