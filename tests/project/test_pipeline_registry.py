"""Pipelines are found by their packages, imported when asked for, and added by other packages."""

import json
import subprocess
import sys
from graphlib import TopologicalSorter
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path

import pytest
import yaml
from kedro.pipeline import Pipeline

from compo_pipeline.core import plugins
from compo_pipeline.pipeline_registry import GROUP, SUMS, register_pipelines
from compo_pipeline.tuning import cells

NAMES = list(register_pipelines())


@pytest.mark.parametrize("name", ["attention"])
def test_a_pipeline_imports_its_own_nodes_alone(name):
    script = (
        "import json, sys; from compo_pipeline.pipeline_registry import register_pipelines\n"
        f"register_pipelines()[{name!r}]\n"
        "own = [n for n in sys.modules if n.startswith('compo_') and n.endswith('.nodes')]\n"
        "print(json.dumps(own))"
    )
    command = [sys.executable, "-c", script]
    found = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    members = SUMS.get(name, (name,))
    assert set(json.loads(found.splitlines()[-1])) == {
        f"compo_pipeline.pipelines.{each}.nodes" for each in members
    }


@pytest.mark.parametrize("reader", ["foils.build_foils", "evaluation.gather_items"])
def test_benchmarks_of_generated_data_are_read_after_they_are_generated(reader):
    nodes = {node.name for node in register_pipelines()["train_eval"].to_nodes(reader).nodes}
    assert "data.prepare_source" in nodes


def test_kedro_viz_can_order_the_layers_of_the_catalog() -> None:
    """It shows none where the datasets of two layers depend on each other.

    Of each namespace it draws one node first, which reads and writes what its nodes do.
    """
    files = (Path(__file__).parents[2] / "conf/base").glob("catalog*.yml")
    layer = {
        name: entry.get("metadata", {}).get("kedro-viz", {}).get("layer")
        for file in files
        for name, entry in yaml.safe_load(file.read_text()).items()
        if isinstance(entry, dict)
    }
    later = TopologicalSorter[str]()
    pipeline = register_pipelines()["__default__"]
    for namespace in {node.namespace or node.name for node in pipeline.nodes}:
        part = Pipeline([n for n in pipeline.nodes if (n.namespace or n.name) == namespace])
        read, written = (
            {layer.get(name) for name in names} - {None}
            for names in (part.inputs(), part.all_outputs())
        )
        for each in written:
            later.add(each, *(read - {each}))
    later.prepare()


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
