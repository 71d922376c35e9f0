"""Every file of conf/ parses, every environment stands, and the files agree with one another."""

import re
from pathlib import Path

import pytest
import yaml
from kedro.framework.project import pipelines
from kedro.io import MemoryDataset
from kedro.pipeline import Pipeline

from compo_pipeline.configuration import parse
from compo_pipeline.evaluation.settings import BenchmarksSettings, EvaluationSettings
from compo_pipeline.methods.registry import METHODS
from compo_pipeline.parameters import keys
from compo_pipeline.pipeline_registry import TRAIN_EVAL
from compo_pipeline.tuning.space import read, searchable

PROJECT = Path(__file__).parents[1]
CONF = PROJECT / "conf"
FILES = sorted(path for path in CONF.rglob("*.yml") if "local" not in path.parts)
# Environments of rendered scenes; the others' data are real.
SCENES = re.compile("base|local|smoke|scenes$")
ENVIRONMENTS = sorted(folder.name for folder in CONF.iterdir() if folder.is_dir())
OTHER_DATA = {folder for folder in ENVIRONMENTS if not SCENES.search(folder)}
LAYERS = {
    "raw",
    "intermediate",
    "primary",
    "feature",
    "model_input",
    "models",
    "model_output",
    "reporting",
}
RUN_OWNED = {
    "views",
    "checkpoint",
    "control_checkpoint",
    "resume",
    "report",
    "wise_ft_report",
    "attention_report",
    "tuning",
    "tuning_trials",
    "tuning_confirmed",
    "tuning_report",
    "export",
    "exported",
}
METHOD_FILES = sorted((CONF / "base" / "parameters_methods").glob("*.yml"))
# Made by nodes for nodes to find again, never passed through the catalog.
PATHS_ALONE = {
    "resume",
    "counterfactuals_state",
    "features",
    "model_output",
    "tuning",
    "tuning_trials",
    "tuning_confirmed",
}


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(CONF)))
def test_file_parses_and_says_what_it_is_for(path):
    text = path.read_text(encoding="utf-8")
    assert yaml.safe_load(text)
    assert text.startswith("#")


@pytest.fixture(scope="module")
def base_names():
    """The top-level names of conf/base's parameters; two come from the hook."""
    names = {"command", "method_settings"}
    for values in keys.read(CONF / "base", "parameters").values():
        names |= {name for name in values if not name.startswith("_")}
    return names


@pytest.mark.parametrize("env", ENVIRONMENTS)
def test_environment_gives_all_parameters_and_no_other(context, base_names, env):
    assert set(context(env).params) == base_names


def test_entries_are_real_datasets_in_every_environment(context):
    for env in ENVIRONMENTS:
        if env == "base" or any((CONF / env).rglob("catalog*")):
            catalog = context(env).catalog
            assert all(catalog.get(name) is not None for name in catalog)


def test_fresh_clone_has_the_folder_of_local_configuration():
    assert (CONF / "local" / ".gitkeep").is_file()


# Of models of any origin, on any benchmarks.
SUITE = {"embeddings", "suite_report", "benchmark_diff_report"}


def test_parameters_and_catalog_read_the_same_globals(context):
    runtime = {"dataset": "d", "method": "clip", "variant": "v", "seed": 7}
    made = context("base", **runtime)
    catalog = made.catalog
    for name, path in made.params["paths"].items():
        if name in SUITE:
            continue
        assert ("/d/clip/v/seed=7/" in path) if name in RUN_OWNED else ("/d/" in f"{path}/"), name
        if name not in PATHS_ALONE:
            assert catalog[name]._filepath == PROJECT / path


@pytest.mark.parametrize("env", ENVIRONMENTS)
def test_defaults_named_in_globals_reach_the_parameters(context, env):
    declared, _ = keys.known_keys(CONF / "base", "globals")
    given, _ = keys.known_keys(CONF / env, "globals")
    params = context(env).params
    for name, value in {**declared, **given}.items():
        if isinstance(value, dict):
            # Scenes bring benchmarks of their own.
            own = f"{params['data']['root']}/benchmarks/test" if env not in OTHER_DATA else None
            for key, given_value in value.items():
                by_default = own if key == "root" else None
                assert params[name][key] == (given_value or by_default)
        else:
            assert params[name] == value


# Here, where the environments are read: each takes a second.
@pytest.mark.parametrize("env", ENVIRONMENTS)
def test_shipped_search_spaces_hold_the_configured_values(context, env):
    params = context(env).params
    method = params["method"]
    assert set(params["spaces"]) == set(METHODS)
    space = read(params["spaces"][method], f"spaces.{method}", params, searchable(method))
    assert space.fits(space.configured(params))


@pytest.mark.parametrize("env", ["base", "smoke", "coco"])
def test_an_environment_can_be_evaluated(context, env):
    params = context(env).params
    parse(EvaluationSettings, params["evaluation"], "evaluation")
    benchmarks = parse(BenchmarksSettings, params["benchmarks"], "benchmarks")
    assert benchmarks.sets["sugar_crepe"] and benchmarks.sets["sugar_crepe_pp"]
    # Only where people wrote the captions is CLIC's reading of them a published protocol.
    assert benchmarks.retrieval.text == ("clic" if env == "coco" else "raw")


def test_data_of_ones_own_are_not_judged_on_scenes(context):
    mine = {"dataset": "mine", "data": {"format": "table", "root": "/mine"}}
    params = context("base", **mine).params
    assert params["benchmarks"]["root"] is None
    assert params["tuning"]["benchmarks"]["root"] is None
    named = context("base", **mine, benchmarks={"root": "/official"}).params
    assert named["benchmarks"]["root"] == "/official"
    few = context("base", data={"root": "few"}).params
    assert few["benchmarks"]["root"] == "few/benchmarks/test"
    assert few["tuning"]["benchmarks"]["root"] == "few/benchmarks/val"


def test_runtime_roots_reach_the_parameters(context):
    params = context("coco", data={"root": "/photos"}, benchmarks={"root": "/questions"}).params
    assert params["data"]["root"] == "/photos"
    assert params["benchmarks"]["root"] == "/questions"
    assert params["benchmarks"]["images"] == "/photos/val2017"


def test_every_entry_has_a_layer_and_a_place_of_its_own(context):
    catalog = context("base").catalog
    places = {}
    for name in catalog:
        if name.startswith("param"):
            continue
        dataset = catalog[name]
        if isinstance(dataset, MemoryDataset):
            continue
        assert dataset.metadata["kedro-viz"]["layer"] in LAYERS, name
        places.setdefault(str(dataset._filepath), []).append(name)
    assert [names for names in places.values() if len(names) > 1] == []


def test_what_a_run_decides_lies_in_the_run_s_own_folder(context):
    """Else the next run of another method, variant or seed overwrites it."""
    base, other = context("base"), context("base", method="sparcl", variant="other", seed=7)
    recipes = [context(env) for env in ENVIRONMENTS if env.endswith("_scenes")]
    # Data of a recipe's own are in the folders of their own dataset.
    runs = [other, *(run for run in recipes if run.params["dataset"] == base.params["dataset"])]
    graph = sum(pipelines.values(), Pipeline([]))

    def decided_by_a_run(name):
        # The command is printed on pages.
        if name == "params:command" or not name.startswith("params:"):
            return False
        return any(run.catalog.load(name) != base.catalog.load(name) for run in runs)

    decided = graph.from_inputs(*filter(decided_by_a_run, graph.inputs())).all_outputs()
    assert {"parses", "views", "checkpoint", "metrics"} <= decided
    for name in (decided & set(base.catalog)) - {"held_out"}:  # in memory
        assert "/sparcl/other/seed=7/" in str(other.catalog[name]._filepath), name


def test_entries_are_the_datasets_of_the_pipelines_and_no_others(context):
    catalog = context("base").catalog
    entries = {name for name in catalog if not name.startswith("param")}
    used = set().union(*(pipeline.datasets() for pipeline in pipelines.values()))
    assert {name for name in used if not name.startswith("param")} == entries


def test_every_parameter_that_a_node_reads_is_configured(context):
    catalog = context("base").catalog
    read = set().union(*(pipeline.inputs() for pipeline in pipelines.values()))
    assert {name for name in read if name.startswith("param")} <= set(catalog)
    assert "parameters" not in read, "take narrow `params:` inputs: DVC must see what is read"


def test_the_default_is_the_whole_chain(bootstrapped):
    chain = set(TRAIN_EVAL)
    assert chain | {"train_eval", "__default__", "language", "pretraining"} <= set(pipelines)
    nodes = {node.name for name in chain for node in pipelines[name].nodes}
    assert {node.name for node in pipelines["__default__"].nodes} == nodes


def test_every_method_has_a_file_of_its_own():
    files = {path.stem: keys.read(CONF / "base", "parameters")[path] for path in METHOD_FILES}
    assert set(files) == set(METHODS)
    assert all(list(values) == [name] for name, values in files.items())


def test_no_configuration_names_a_machine():
    for path in FILES:
        assert not re.search(r"(/home/|/root/|/Users/|https?://)", path.read_text()), path
