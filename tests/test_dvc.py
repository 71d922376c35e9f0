"""The dvc.yaml files say what the Kedro pipelines do: no more and no less."""

import functools
import re
from pathlib import Path

import grimp
import pytest
import yaml
from dvc.parsing import DataResolver
from dvc.repo import Repo
from kedro.framework.project import pipelines

from compo_pipeline.configuration import speed_paths
from compo_pipeline.methods import registry
from compo_pipeline.methods.registry import METHOD_SETTINGS, METHODS
from compo_pipeline.parameters import keys
from compo_pipeline.pipeline_registry import TRAIN_EVAL
from compo_pipeline.preflight.settings import Parameters

PROJECT = Path(__file__).parents[1]
PACKAGE = "compo_pipeline"
# The registry that names the benchmarks' adapters by their paths.
BENCHMARKS = f"{PACKAGE}.evaluation.benchmarks.registry"
# Registration acts outside the workspace.
STAGES = tuple(name for name in TRAIN_EVAL if name != "registration")
# dvc.yaml, the environment it runs, and the environments whose files its parameters stand in.
RECIPES = {"dvc.yaml": ("base",), "recipes/coco/dvc.yaml": ("coco", "base")}
# Pipelines that stand apart from the chain, one stage each.
APART = ("language", "pretraining")
# Read by nodes through parameters rather than through the catalog.
ROOT, QUESTIONS = "data.root", "benchmarks.root"
READ_ROOT = ("raw", "ingest", "counterfactuals", "training")
IMAGES = {**{stage: {ROOT} for stage in READ_ROOT}, "evaluation": {ROOT, QUESTIONS}}
# Shipped with the package, and loaded by these stages where the configuration says so.
LANGUAGE = "src/compo_pipeline/resources/language"
BASE = "src/compo_pipeline/resources/scenes_base"
SHIPPED = {
    "validation": {LANGUAGE},
    "counterfactuals": {LANGUAGE},
    "views": {LANGUAGE},
    "training": {BASE},
    "evaluation": {BASE},
}
# Modules whose nodes are in a pipeline, where it is not one alone.
MODULES = {"training": ["training_inputs", "training"]}
# Where MLflow keeps the run: an output of training, so that a checkpoint and its run come back
# together, and nothing that a result depends on.
RECORD = "run"
# Stages whose results lie below the method and variant of a run.
OF_A_RUN = {"counterfactuals", "views", "training", "evaluation"}
# Keys that name places and runs, not results.
PLACES = {"paths", "tracking"}


# One stage that runs others, on all code and configuration.
COMPARISON = "recipes/comparison/dvc.yaml"


@functools.cache
def graph():
    return grimp.build_graph(PACKAGE, exclude_type_checking_imports=True, cache_dir=None)


def file_of(module):
    path = PROJECT / "src" / module.replace(".", "/")
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


@functools.cache
def code_of(stage):
    """Files that importing a stage's pipeline runs, at import or in its functions."""
    found, waiting = set(), {f"{PACKAGE}.pipelines.{name}" for name in MODULES.get(stage, [stage])}
    while waiting:
        module = waiting.pop()
        found.add(module)
        parts = module.split(".")
        # A module's packages run before it; the root package holds a version and nothing else.
        packages = {".".join(parts[:depth]) for depth in range(2, len(parts))}
        direct = graph().find_modules_directly_imported_by(module)
        if module == registry.__name__ and stage in ("views", "training"):
            direct |= {entry.path.partition(":")[0] for entry in METHODS.values()}
        if module == BENCHMARKS:
            direct |= graph().find_children(BENCHMARKS.rpartition(".")[0])
        waiting |= (packages | direct) - found - {PACKAGE}
    files = {file_of(module) for module in found}
    return {str(path.relative_to(PROJECT)) for path in files if path.stat().st_size}


@pytest.fixture(scope="module")
def stages():
    """Resolved stages of each dvc.yaml: variables filled in, as DVC runs them."""
    repo = Repo(str(PROJECT))
    resolved = {}
    for recipe in (*RECIPES, *(f"recipes/{name}/dvc.yaml" for name in APART), COMPARISON):
        path = PROJECT / recipe
        definition = yaml.safe_load(path.read_text(encoding="utf-8"))
        resolver = DataResolver(repo, str(path.parent), definition)
        resolved[recipe] = resolver.resolve()["stages"]
    return resolved


@pytest.fixture(scope="module")
def catalogs(context):
    """The catalog and the parameters of each recipe's environment."""
    contexts = {recipe: context(env) for recipe, (env, *_) in RECIPES.items()}
    return {recipe: (context.catalog, context.params) for recipe, context in contexts.items()}


def paths(entries):
    """The paths of a stage's deps, outs, metrics or plots, less their options."""
    return {next(iter(entry)) if isinstance(entry, dict) else entry for entry in entries or ()}


def place(recipe, name, catalogs):
    return str(catalogs[recipe][0][name]._filepath.relative_to(PROJECT))


def value(params, key):
    for part in key.split("."):
        params = params[part]
    return params


def roots(recipe, stage, catalogs):
    params = catalogs[recipe][1]
    return {value(params, key) for key in IMAGES.get(stage, ())}


each = pytest.mark.parametrize(
    ("recipe", "stage"), [(recipe, stage) for recipe in RECIPES for stage in STAGES]
)


@pytest.mark.parametrize("recipe", RECIPES)
def test_stages_are_those_whose_results_lie_in_the_workspace(stages, recipe):
    assert list(stages[recipe]) == list(STAGES)


@each
def test_command_runs_the_pipeline_of_that_name_in_that_environment(stages, recipe, stage):
    pattern = rf"kedro run --env={RECIPES[recipe][0]} --pipeline={stage}( --params [\w.=]+)?"
    assert re.fullmatch(pattern, stages[recipe][stage]["cmd"])


@each
def test_outputs_are_those_of_the_pipeline(stages, catalogs, recipe, stage):
    declared = stages[recipe][stage]
    outs = paths(declared.get("outs")) | paths(declared.get("metrics"))
    written = {place(recipe, name, catalogs) for name in pipelines[stage].outputs()}
    written |= {place(recipe, name, catalogs) for name in inner_entries(stage, catalogs[recipe][0])}
    if recipe == "dvc.yaml" and stage == "raw":
        # Scenes are rendered; other sources are there already.
        written |= roots(recipe, stage, catalogs)
    assert outs == written


def test_the_comparison_stage_writes_what_its_pipeline_does(stages, catalogs):
    (stage,) = stages[COMPARISON].values()
    written = {"cells", "cells_suite", "cells_metrics", "comparison_report"}
    assert written < pipelines["comparison"].all_outputs()
    outs = paths(stage["outs"]) | paths(stage["metrics"])
    assert outs == {place("dvc.yaml", name, catalogs) for name in written}
    assert paths(stage["deps"]) == {"conf", "src/compo_pipeline"}


def inner_entries(stage, catalog):
    """Entries on disk that one node of a pipeline makes for another."""
    inner = pipelines[stage].all_outputs() - pipelines[stage].outputs()
    return {name for name in inner if name in catalog and hasattr(catalog[name], "_filepath")}


@each
def test_data_dependencies_are_the_inputs_of_the_pipeline(stages, catalogs, recipe, stage):
    declared = {dep for dep in paths(stages[recipe][stage]["deps"]) if not is_code(dep)}
    inputs = {name for name in pipelines[stage].inputs() if not name.startswith("params:")}
    read = {place(recipe, name, catalogs) for name in inputs - {RECORD}}
    if (recipe, stage) != ("dvc.yaml", "raw"):
        read |= roots(recipe, stage, catalogs)
    shipped = SHIPPED.get(stage, set())
    if value(catalogs[recipe][1], "model.name") != "scenes-base":
        shipped = shipped - {BASE}
    # A folder stands for what lies below it.
    read = {path for path in read if not any(is_below(path, other) for other in read)}
    assert declared == read | shipped


def is_code(dep):
    return dep.startswith("src/") and "/resources/" not in dep


def is_below(path, folder):
    return Path(folder) in Path(path).parents


@pytest.mark.parametrize(
    ("recipe", "stage"),
    [
        *((recipe, stage) for recipe in RECIPES for stage in STAGES),
        *((f"recipes/{name}/dvc.yaml", name) for name in APART),
    ],
)
def test_code_dependencies_are_the_packages_that_the_pipeline_imports(stages, recipe, stage):
    declared = {dep for dep in paths(stages[recipe][stage]["deps"]) if is_code(dep)}
    needed = {package_of(file) for file in code_of(stage)}
    assert declared == needed


def package_of(file):
    """What stands for a file in dvc.yaml: its package, or itself where it has none."""
    top, *_ = Path(file).relative_to(f"src/{PACKAGE}").parts
    return file if top == "pipelines" else f"src/{PACKAGE}/{top}"


@each
def test_parameters_are_the_keys_that_the_pipeline_reads(stages, catalogs, recipe, stage):
    declared = {
        (file, key)
        for files in stages[recipe][stage]["params"]
        for file, keys in files.items()
        for key in keys
    }
    assert declared == parameters_of(recipe, stage, catalogs[recipe][1]["method"])


def parameters_of(recipe, stage, method):
    """(file, key) of every value that a stage's nodes read, in every environment of a recipe."""
    wanted = {name.removeprefix("params:") for name in pipelines[stage].inputs() if ":" in name}
    wanted = {key for key in wanted if key.split(".")[0] not in PLACES}
    wanted -= set(speed_paths(Parameters))
    # A named variant may set any value of a stage that belongs to one run.
    if stage in OF_A_RUN:
        wanted.add("variants")
    # A key under another one is read with it.
    wanted = {key for key in wanted if not any(key.startswith(f"{other}.") for other in wanted)}
    found, settled, read = set(), set(), wanted
    for env in RECIPES[recipe]:
        # A recipe lists its settings of all methods: DVC refuses a key that a file lacks.
        methods = [method] if env == "base" else METHODS
        wanted = {key.replace(METHOD_SETTINGS, name) for key in read for name in methods}
        folder = PROJECT / "conf" / env
        files = {**keys_of(folder, "parameters"), **keys_of(folder, "globals")}
        # What is set in no file may be added to a section that stands there.
        wanted = {standing(key, files.values()) for key in wanted}
        for file, values in files.items():
            is_globals = file.endswith("globals.yml")
            # What an environment sets is not read from conf/base.
            names = (set(named(values)) if is_globals else wanted) - settled
            found |= {
                (file, key)
                for key in names
                if (is_globals and is_read(key, wanted)) or (not is_globals and holds(values, key))
            }
        settled |= {key for values in files.values() for key in named(values)}
    # Lines of parameters.yml that only point to globals.yml.
    return {(file, key) for file, key in found if not is_pointer(file, key)}


def keys_of(folder, kind):
    files = keys.read(folder, kind).items()
    return {str(p.relative_to(PROJECT)): values for p, values in files if p.name != keys.COMPUTE}


def standing(key, contents):
    """The key where a file has it, else the longest beginning of it that one has."""
    contents = list(contents)
    parts = key.split(".")
    beginnings = [".".join(parts[:count]) for count in range(len(parts), 0, -1)]
    return next((each for each in beginnings if any(holds(c, each) for c in contents)), key)


def is_read(key, wanted):
    return any(key == other or key.startswith(f"{other}.") for other in wanted)


def named(values, prefix=""):
    """Dotted names of the single values below a mapping."""
    for name, value in values.items():
        if isinstance(value, dict):
            yield from named(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}"


def holds(values, key):
    for part in key.split("."):
        if not isinstance(values, dict) or part not in values:
            return False
        values = values[part]
    return True


def is_pointer(file, key):
    if file.endswith("globals.yml"):
        return False
    found = value(yaml.safe_load((PROJECT / file).read_text(encoding="utf-8")), key)
    return isinstance(found, str) and found.startswith("${runtime_params:")


@each
def test_metrics_lie_in_git_and_everything_else_in_the_cache(stages, recipe, stage):
    declared = stages[recipe][stage]
    for entry in declared.get("metrics", ()):
        assert next(iter(entry.values())) == {"cache": False}
    assert all(isinstance(entry, str) for entry in declared.get("outs", ()))
    if stage == "evaluation":
        assert [path.rsplit("/", 1)[-1] for path in paths(declared["metrics"])] == ["metrics.json"]


def test_the_smoke_recipe_has_the_same_stages_on_its_own_data(stages):
    """An example for an environment of one's own: all code and configuration, and the same data."""
    path = PROJECT / "recipes/smoke/dvc.yaml"
    definition = yaml.safe_load(path.read_text(encoding="utf-8"))
    found = DataResolver(Repo(str(PROJECT)), str(path.parent), definition).resolve()["stages"]
    assert list(found) == list(STAGES)
    for name, stage in found.items():
        chain = stages["dvc.yaml"][name]
        assert stage["cmd"] == chain["cmd"].replace("--env=base", "--env=smoke")
        assert paths(stage["deps"]) - {"conf/base", "conf/smoke", f"src/{PACKAGE}"} == {
            dep.replace("/scenes", "/smoke") for dep in paths(chain["deps"]) if is_data(dep)
        }
        for kind in ("outs", "metrics"):
            moved = {out.replace("/scenes", "/smoke") for out in paths(chain.get(kind))}
            assert paths(stage.get(kind)) == moved


def is_data(dep):
    return dep.startswith("data/")


def test_experiments_can_set_every_file_of_settings_that_a_stage_reads(stages):
    """`dvc exp run -S` resolves a whole file and writes it back: it takes no `${...}`."""
    files = {
        file
        for recipe in stages.values()
        for stage in recipe.values()
        for entry in stage.get("params", ())
        for file in entry
    }
    for file in files:
        if not file.endswith("parameters_places.yml"):
            assert "${" not in (PROJECT / file).read_text(encoding="utf-8"), file


def test_no_stage_makes_what_the_repository_holds(stages):
    """Else DVC would want to make the shipped models before anything that reads them."""
    for recipe in stages.values():
        for stage in recipe.values():
            assert not [path for path in paths(stage["outs"]) if path.startswith("src/")]


def test_state_to_resume_from_outlives_what_dvc_deletes(stages, catalogs):
    for recipe in RECIPES:
        outs = set().union(*(paths(stage.get("outs")) for stage in stages[recipe].values()))
        for name in ("resume", "counterfactuals_state"):
            state = catalogs[recipe][1]["paths"][name]
            assert not any(state == out or is_below(state, out) for out in outs)
