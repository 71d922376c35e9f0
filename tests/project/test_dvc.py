"""The dvc.yaml files say what the Kedro pipelines do: no more and no less."""

import re
from functools import cache
from pathlib import Path

import pytest
import yaml
from dvc.parsing import DataResolver
from dvc.repo import Repo
from kedro.framework.project import pipelines

from compo_pipeline.core.settings import value_at
from compo_pipeline.pipeline_registry import TRAIN_EVAL
from compo_pipeline.project.settings import loader_of

PROJECT = Path(__file__).parents[2]
COMMAND = re.compile(r"kedro run --env=(\w+) --pipeline=(\w+)")
# Folders of stages beside the chain, which name some of what their pipelines write.
APART = ("comparison", "language", "pretraining")
TREEBANK = "data/01_raw/ud_english_ewt"


def paths(entries):
    """The paths of a stage's deps, outs or metrics, without their options."""
    return {next(iter(entry)) if isinstance(entry, dict) else entry for entry in entries or ()}


def on_disk(names, catalog):
    """The paths of those catalog entries that have one."""
    return {catalog[name]["filepath"] for name in names if "filepath" in catalog.get(name, ())}


@cache
def configured(env):
    """The catalog of an environment, and the folders of its data and benchmarks."""
    loader = loader_of(PROJECT / "conf", env, {})
    names = loader["globals"]
    return loader["catalog"], {names["data"]["root"], names["benchmarks"]["root"]}


@pytest.mark.parametrize(
    "file",
    ["dvc.yaml", *(f"recipes/{name}dvc.yaml" for name in ("", *(f"{each}/" for each in APART)))],
)
def test_stages_are_pipelines_and_their_files_are_those_of_the_catalog(bootstrapped, file):
    """The parameters stand in their files, too: DVC refuses others."""
    path = PROJECT / file
    definition = yaml.safe_load(path.read_text(encoding="utf-8"))
    stages = DataResolver(Repo(str(PROJECT)), str(path.parent), definition).resolve()["stages"]
    chain = []
    for name, stage in stages.items():
        env, pipeline = COMMAND.match(stage["cmd"]).groups()
        chain.append(pipeline)
        catalog, roots = configured(env)
        outs = (paths(stage["outs"]) | paths(stage.get("metrics"))) - roots
        written = on_disk(pipelines[pipeline].all_outputs(), catalog)
        assert outs <= written if path.parent.name in APART else outs == written, name
        for each in paths(stage["deps"]) - roots - on_disk(pipelines[pipeline].inputs(), catalog):
            assert each == TREEBANK or each.startswith(("src/", "conf")), name
            assert each == TREEBANK or (PROJECT / each).exists(), name
        for each, keys in (
            (each, keys) for entry in stage.get("params", ()) for each, keys in entry.items()
        ):
            text = (PROJECT / each).read_text(encoding="utf-8")
            assert "${" not in text, f"`dvc exp run -S` cannot write {each}"
            for key in keys:
                value_at(yaml.safe_load(text), key)
    if path.parent.name not in APART:
        assert list(dict.fromkeys(chain)) == [name for name in TRAIN_EVAL if name != "registration"]
