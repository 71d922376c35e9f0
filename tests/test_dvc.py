"""The dvc.yaml files say what the Kedro pipelines do: no more and no less."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from dvc.parsing import DataResolver
from dvc.repo import Repo
from kedro.framework.project import pipelines

from compo_pipeline.configuration.settings import SettingsError, value_at
from compo_pipeline.project import dvc_stages
from compo_pipeline.project.dvc_stages import STAGES, code_of, place_of

PROJECT = Path(__file__).parents[1]
PACKAGE = "compo_pipeline"
# Environments whose file the repository has: their stages are those of the pipelines.
WRITTEN = (
    *("base", "coco", "laion", "redcaps", "cc12m", "fsc_coco", "fsc_cc3m", "fsc_laion_coco"),
    *("sparcl_coco", "siglip_cc3m", "table", "smoke"),
)
# Of which the stages are compared with the pipelines one by one.
RECIPES = {"dvc.yaml": "base", "recipes/coco/dvc.yaml": "coco", "recipes/smoke/dvc.yaml": "smoke"}
# Pipelines that stand apart from the chain, one stage each.
APART = ("language", "pretraining")
# One stage that runs others, on all code and configuration.
COMPARISON = "recipes/comparison/dvc.yaml"

each = pytest.mark.parametrize(
    ("recipe", "stage"), [(recipe, stage) for recipe in RECIPES for stage in STAGES]
)


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
    contexts = {recipe: context(env) for recipe, env in RECIPES.items()}
    return {recipe: (context.catalog, context.params) for recipe, context in contexts.items()}


def paths(entries):
    """The paths of a stage's deps, outs, metrics or plots, less their options."""
    return {next(iter(entry)) if isinstance(entry, dict) else entry for entry in entries or ()}


def place(recipe, name, catalogs):
    return str(catalogs[recipe][0][name]._filepath.relative_to(PROJECT))


@pytest.mark.parametrize("env", WRITTEN)
def test_the_file_is_the_one_that_the_command_writes(bootstrapped, env):
    file = PROJECT / place_of(env)
    assert file.read_text(encoding="utf-8") == dvc_stages.text(PROJECT, env), (
        f"run `compo-pipeline dvc --env={env}`"
    )


def test_the_command_for_all_writes_these():
    assert set(dvc_stages.written(PROJECT)) == set(WRITTEN)


def test_every_recipe_of_a_paper_has_a_file():
    files = {file.parent.name for file in PROJECT.glob("recipes/*/dvc.yaml")}
    assert files == {*WRITTEN, *APART, "comparison"} - {"base"}
    papers = {
        file.parent.name
        for file in PROJECT.glob("conf/*/parameters.yml")
        if "recipe" in yaml.safe_load(file.read_text(encoding="utf-8"))
    }
    assert len(papers) == 9 and papers < files


@pytest.mark.parametrize("env", sorted(path.name for path in (PROJECT / "conf").glob("*/")))
def test_dvc_reads_what_is_written_for_any_environment(bootstrapped, env):
    """Every variable has a value, and every parameter stands in its file: DVC refuses others."""
    folder = (PROJECT / place_of(env)).parent
    definition = dvc_stages.definition(PROJECT, env)
    found = DataResolver(Repo(str(PROJECT)), str(folder), definition).resolve()["stages"]
    assert list(found) == list(STAGES)
    for stage in found.values():
        for files in stage["params"]:
            for file, keys in files.items():
                content = yaml.safe_load((PROJECT / file).read_text(encoding="utf-8"))
                for key in keys:
                    value_at(content, key)


def test_stages_of_several_sources_have_the_folder_of_each(bootstrapped, tmp_path):
    """One is generated, an output of the first stage; that of the other is read."""
    shutil.copytree(PROJECT / "conf", tmp_path / "conf")
    with (tmp_path / "conf" / "smoke" / "parameters.yml").open("a") as file:
        yaml.safe_dump({"data": {"sources": {"scenes": {}, "web": {"format": "table"}}}}, file)
    stages = dvc_stages.definition(tmp_path, "smoke")["stages"]
    made, read = "${data.root}/scenes", "${data.root}/web"
    assert made in stages["raw"]["outs"] and made not in stages["raw"]["deps"]
    assert read in stages["raw"]["deps"] and read not in stages["raw"]["outs"]
    for name in ("ingest", "views", "evaluation"):
        assert {made, read} <= set(stages[name]["deps"])


def test_an_environment_that_does_not_exist_is_named(bootstrapped):
    with pytest.raises(SettingsError, match="--env.*did you mean 'coco'"):
        dvc_stages.text(PROJECT, "coc")


@each
def test_stages_read_and_write_what_their_pipelines_do(stages, catalogs, recipe, stage):
    declared, pipeline = stages[recipe][stage], pipelines[stage]
    outs = paths(declared["outs"]) | paths(declared.get("metrics"))
    catalog = catalogs[recipe][0]
    on_disk = {name for name in pipeline.all_outputs() if hasattr(catalog[name], "_filepath")}
    assert outs >= {place(recipe, name, catalogs) for name in on_disk}
    # Scenes are rendered; other sources are there already.
    rendered = {catalogs[recipe][1]["data"]["root"]} if stage == "raw" else set()
    assert outs - {place(recipe, name, catalogs) for name in on_disk} <= rendered
    # DVC refuses an absent dependency, which a review may be.
    read = {name for name in pipeline.inputs() if not name.startswith("params:")}
    read -= {"run", "foils_review"}
    assert {place(recipe, name, catalogs) for name in read} <= paths(declared["deps"])


@pytest.mark.parametrize("stage", ["validation", "training"])
def test_whatever_a_pipeline_imports_is_a_dependency(stages, stage):
    """Python itself says which modules are there after a pipeline's import."""
    script = (
        "import json, sys; from compo_pipeline.pipeline_registry import register_pipelines\n"
        "before = set(sys.modules)\n"
        f"register_pipelines()[{stage!r}]\n"
        "own = [m.__file__ for n, m in sys.modules.items() if n.startswith('compo_pipeline.')"
        " and n not in before and m.__file__]\n"
        "print(json.dumps(own))"
    )
    command = [sys.executable, "-c", script]
    found = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    files = {Path(file) for file in json.loads(found.splitlines()[-1])}
    # The package may be that of a copy of the project.
    own = {file: next(each for each in file.parents if each.name == PACKAGE) for file in files}
    files = {
        Path("src", PACKAGE, file.relative_to(own[file])) for file in files if file.stat().st_size
    }
    assert len(files) > 10
    declared = [Path(dep) for dep in paths(stages["dvc.yaml"][stage]["deps"])]
    names = {f"{file}" for file in files if file.parts[2:] != ("pipelines", "__init__.py")}
    missing = {
        name for name in names if not any(d in (Path(name), *Path(name).parents) for d in declared)
    }
    assert not missing


@pytest.mark.parametrize("name", APART)
def test_code_dependencies_of_the_shipped_models_are_what_their_pipelines_import(stages, name):
    (stage,) = stages[f"recipes/{name}/dvc.yaml"].values()
    declared = {dep for dep in paths(stage["deps"]) if dep.startswith("src/")}
    imported = {
        "src/compo_scenes" if dep.startswith("src/compo_scenes/") else dep
        for dep in code_of(f"compo_scenes.pipelines.{name}")
    }
    assert {dep for dep in declared if "/resources/" not in dep} == imported


def test_the_comparison_stage_writes_what_its_pipeline_does(stages, catalogs):
    (stage,) = stages[COMPARISON].values()
    written = {"cells", "cells_suite", "cells_metrics", "comparison_report"}
    assert written < pipelines["comparison"].all_outputs()
    outs = paths(stage["outs"]) | paths(stage["metrics"])
    assert outs == {place("dvc.yaml", name, catalogs) for name in written}
    assert paths(stage["deps"]) == {"conf", "src/compo_pipeline", "src/compo_scenes"}


def test_what_only_changes_speed_is_no_parameter(stages):
    keys = {
        key
        for recipe in RECIPES
        for stage in stages[recipe].values()
        for files in stage["params"]
        for own in files.values()
        for key in own
    }
    assert {"training", "evaluation"} < keys
    assert not any(key.startswith(("paths", "prepare", "tracking")) for key in keys)


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
            assert not any(Path(out) in (Path(state), *Path(state).parents) for out in outs)
