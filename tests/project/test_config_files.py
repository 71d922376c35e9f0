"""Every file of conf/ parses, every environment stands, and the files agree with one another."""

import re
from dataclasses import fields
from pathlib import Path

import pytest
from kedro.framework.project import pipelines
from kedro.io import MemoryDataset

from compo_pipeline.core import keys
from compo_pipeline.core.settings import all_settings, leaves, parse, plain
from compo_pipeline.methods.registry import METHODS, build
from compo_pipeline.pipeline_registry import register_pipelines
from compo_pipeline.project.settings import Parameters, with_methods
from compo_pipeline.tuning.space import read, searchable

PROJECT = Path(__file__).parents[2]
CONF = PROJECT / "conf"
DVC = PROJECT / "dvc.yaml"
FILES = sorted(path for path in CONF.rglob("*.yml") if "local" not in path.parts)
ENVIRONMENTS = sorted(folder.name for folder in CONF.iterdir() if folder.is_dir())
LAYERS = "raw intermediate primary feature model_input models model_output reporting".split()


@pytest.mark.parametrize("env", ENVIRONMENTS)
def test_environment_gives_all_parameters_and_search_spaces_that_hold_them(context, env):
    params = context(env).params
    own = {each.name: params[each.name] for each in fields(Parameters)}
    assert plain(parse(Parameters, own)) == own
    method = params["method"]
    assert set(params["spaces"]) == set(METHODS)
    own = build(method, **params["method_settings"])
    configured = {"training": params["training"], method: own.configuration}
    assert read(params["spaces"][method], f"spaces.{method}", configured, searchable(method))


def test_conf_base_repeats_no_default():
    """A default is written once, in its class."""
    content = "".join(path.read_text(encoding="utf-8") for path in FILES)
    interpolated = set(re.findall(r"\$\{(?:oc\.select:)?([\w.]+)[},]", content))
    # DVC wants a key that a stage names to stand in its file.
    interpolated |= set(re.findall(r"[\w.]+", DVC.read_text()))
    defaults = {each.key: each.default for each in all_settings(with_methods())}

    def has_default(key):
        """What lies below settings that must be given has none."""
        parts = key.split(".")
        above = [".".join(parts[:count]) for count in range(2, len(parts))]
        return key in defaults and None not in map(defaults.get, above)

    repeated = [
        f"{path.name}: {key}"
        for path, values in keys.read(CONF / "base", "parameters").items()
        for key, value in leaves(values)
        if has_default(key) and defaults[key] == value and key not in interpolated
    ]
    assert repeated == []


def test_entries_are_real_datasets_in_every_environment(context):
    for env in ENVIRONMENTS:
        if env == "base" or any((CONF / env).rglob("catalog*")):
            catalog = context(env).catalog
            assert all(catalog.get(name) is not None for name in catalog)


def test_parameters_and_catalog_read_the_same_globals(context):
    made = context("base", dataset="d", method="clip", variant="v", seed=7)
    paths = [made.params["paths"][name] for name in ("resume", "tuning", "tuning_trials")]
    for path in (*paths, str(made.catalog["checkpoint"]._filepath)):
        assert "/d/clip/v/seed=7/" in path


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
    sets = params["benchmarks"]["sets"]
    for name in ("sugar_crepe", "sugar_crepe_pp"):
        assert sets[name]["images"] == "/photos/val2017"
    named = context("coco", benchmarks={"images": "/images"}).params["benchmarks"]
    assert named["images"] == named["sets"]["sugar_crepe"]["images"] == "/images"


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
    nodes = [node for name in pipelines for node in pipelines[name].nodes]

    def decided_by_a_run(name):
        # The command, and links to a run's pages, are printed on pages.
        if name in ("params:command", "params:site") or not name.startswith("params:"):
            return False
        return any(run.catalog.load(name) != base.catalog.load(name) for run in runs)

    read = set(filter(decided_by_a_run, {name for node in nodes for name in node.inputs}))
    decided, more = set(), read
    while more:
        decided |= more
        follow = {name for node in nodes if decided & set(node.inputs) for name in node.outputs}
        more = follow - decided
    decided -= read
    assert {"parses", "views", "checkpoint", "metrics"} <= decided
    for name in decided & set(base.catalog):
        dataset = other.catalog[name]
        if not isinstance(dataset, MemoryDataset):
            assert "/sparcl/other/seed=7/" in str(dataset._filepath), name


def test_entries_are_the_datasets_of_the_pipelines_and_no_others(context):
    """What is in no catalog file is in memory: made and read in the same pipeline."""
    catalog = context("base").catalog
    entries = {name for name in catalog if not name.startswith("param")}
    used, in_memory = set(), set()
    for pipeline in map(pipelines.__getitem__, pipelines):
        own = {name for name in pipeline.datasets() if not name.startswith("param")}
        used |= own
        in_memory |= own - entries
    assert entries <= used
    for name in register_pipelines():
        inner = pipelines[name].all_outputs() - pipelines[name].outputs()
        assert in_memory & pipelines[name].datasets() <= inner, name


def test_every_parameter_that_a_node_reads_is_configured(context):
    catalog = context("base").catalog
    read = set().union(*(pipelines[name].inputs() for name in pipelines))
    assert {name for name in read if name.startswith("param")} <= set(catalog)
    assert "parameters" not in read, "take narrow `params:` inputs: DVC must see what is read"


def test_no_configuration_names_a_machine():
    for path in FILES:
        assert not re.search(r"(/home/|/root/|/Users/|https?://)", path.read_text()), path
