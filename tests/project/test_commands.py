"""Kedro's own commands work on the project, and mistakes on the command line are told plainly."""

import json
import re
import subprocess
import sys

import pytest
from click.testing import CliRunner
from kedro.framework.cli.cli import KedroCLI
from tests.processes import ran

from compo_pipeline.__main__ import main
from compo_pipeline.methods.registry import METHODS
from compo_pipeline.pipeline_registry import register_pipelines
from compo_pipeline.pipelines.attention import pipeline as attention

KEDRO = (sys.executable, "-m", "kedro")


@pytest.fixture
def kedro(workspace, monkeypatch):
    """Runs a command in this process: another would import Kedro and the project for seconds."""
    monkeypatch.chdir(workspace)
    return lambda *arguments: CliRunner().invoke(KedroCLI(workspace), arguments)


def test_every_pipeline_is_listed_with_what_it_is_for(kedro):
    shown = dict(line.split(maxsplit=1) for line in kedro("pipelines").stdout.splitlines())
    assert set(shown) == set(register_pipelines())
    assert shown["attention"] == attention.create_pipeline.__doc__


def test_help_in_a_project_lists_the_commands_with_and_without_one(workspace, monkeypatch, capsys):
    monkeypatch.chdir(workspace)
    with pytest.raises(SystemExit):
        main(["--help"])
    listed = re.findall(r"^  ([a-z-]+) +[A-Z]", capsys.readouterr().out, re.MULTILINE)
    assert {"run", "versions", "serve", "doctor", "new"} <= {*listed}


def test_benchmarks_are_listed_and_their_missing_images(kedro, tmp_path):
    items = {"0": {"filename": "0.png", "caption": "a", "negative_caption": "b"}}
    file = tmp_path / "sugar_crepe" / "swap_obj.json"
    file.parent.mkdir()
    file.write_text(json.dumps(items))
    given = f"--params=benchmarks.root={tmp_path}"
    assert "sugar_crepe" in kedro("benchmarks", given).stdout
    assert kedro("benchmarks", given, "--missing").stdout == f"{tmp_path}/images/0.png\n"


def test_a_checkpoint_is_converted_for_transformers(kedro, tiny_clip, tmp_path):
    shown = kedro("export-model", str(tiny_clip), str(tmp_path / "converted")).stdout
    assert shown == f"Written: {tmp_path / 'converted'}\n"
    assert (tmp_path / "converted" / "config.json").is_file()


@pytest.mark.slow
def test_viewer_shows_every_node_in_its_layer(workspace):
    done = ran([*KEDRO, "viz", "build"], workspace)
    assert done.returncode == 0, done.stderr
    shown = json.loads((workspace / "build" / "api" / "main").read_text())
    layers = "raw intermediate primary feature model_input models model_output reporting"
    assert shown["layers"] == layers.split()
    nodes = {node["full_name"] for node in shown["nodes"] if node["type"] == "task"}
    assert {"data.prepare_source", "training.train_models"} <= nodes
    assert "registration.register_export" in nodes


def test_a_mistyped_key_is_told_in_one_line(workspace):
    done = ran([*KEDRO, "run", "--params", "training.epoch=3"], workspace)
    assert done.returncode == 1
    assert done.stderr.startswith("Error: --params: training.epoch: unknown key; did you mean")
    assert "Traceback" not in done.stdout + done.stderr


def test_an_unknown_method_is_told_before_anything_runs(kedro):
    done = kedro("run", "--params", "method=clicc")
    assert done.exit_code == 1
    known = ", ".join(METHODS)
    expected = f"Error: method: 'clicc' is unknown; did you mean 'clic'? (allowed: {known})"
    assert done.stderr.strip() == expected


def test_a_misspelt_pipeline_is_told_in_one_line(kedro):
    done = kedro("run", "--pipeline=train_evl")
    assert done.exit_code == 1
    assert done.stderr.startswith("Error: --pipeline: no 'train_evl'; did you mean 'train_eval'?")
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--from-nodes=views.drw_views"], ".*nodes named .*views.drw_views"),
        (["--namespaces=trainin"], ".*'trainin'"),
        (["--runner=ThreadRunnr"], ".*kedro.runner.*'ThreadRunnr'"),
    ],
)
def test_options_that_select_nothing_are_told_in_one_line(kedro, options, told):
    done = kedro("run", *options)
    assert done.exit_code == 1
    assert re.match(f"Error: {told}", done.stderr), done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_parameters_are_listed_with_the_values_of_an_environment(kedro):
    done = kedro("params", "training.optimizer", "--env=coco")
    assert done.exit_code == 0, done.stderr
    assert "training.optimizer.lr = 0.0017  coco: 1.0e-06  (number >= 0)\n" in done.stdout


def test_commands_start_without_the_large_libraries() -> None:
    """The nodes and hooks that need one import it: each takes seconds."""
    program = (
        "import sys, compo_pipeline.settings\n"
        "from compo_pipeline.pipeline_registry import register_pipelines\n"
        "register_pipelines()\n"
        "large = {'great_expectations', 'matplotlib', 'mlflow', 'open_clip', 'spacy', 'torch'}\n"
        "print(sorted(large & sys.modules.keys()))"
    )
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
