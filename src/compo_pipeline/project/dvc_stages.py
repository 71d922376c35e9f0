"""DVC stages of an environment, from the Kedro pipelines: a stage for each pipeline of the chain.

`compo-pipeline dvc --env=<env>` writes them as `dvc.yaml` of the environment.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import grimp
import yaml

from compo_pipeline.configuration import keys
from compo_pipeline.configuration.settings import (
    SettingsError,
    leaves,
    nearest,
    parse,
    speed_paths,
    value_at,
)
from compo_pipeline.counterfactuals import table
from compo_pipeline.counterfactuals.registry import chosen_entries
from compo_pipeline.counterfactuals.settings import CounterfactualSettings
from compo_pipeline.datasets.generators import GENERATOR_SETTINGS, GENERATORS
from compo_pipeline.datasets.settings import DataSettings
from compo_pipeline.methods.registry import METHOD_SETTINGS, METHODS
from compo_pipeline.models.settings import BASES
from compo_pipeline.pipeline_registry import SUMS, TRAIN_EVAL, register_pipelines
from compo_pipeline.project.settings import (
    Parameters,
    configured_values,
    loader_of,
    read_parameters,
)

STAGES = tuple(name for name in TRAIN_EVAL if name != "registration")
"""The stages; registration acts outside of the workspace."""

_PACKAGE = "compo_pipeline"
_SOURCE = f"src/{_PACKAGE}"
# The folder of this package and of others of the same checkout.
_SOURCES = Path(__file__).parents[2]
# What stands for the code in a project of the installed package: its version, and own parts.
_CODE_OF_PROJECTS = {"requirements.txt", "src"}
# What globals.yml says of a run; paths of the catalog are made of it.
_RUN = ("dataset", "method", "variant", "seed")
# DVC's variables. An environment that says nothing of one has it from base.
_VARIABLES = (*_RUN, "data", "benchmarks")
_METHOD = "${method}"
_ROOT, _BENCHMARKS = "data.root", "benchmarks.root"
# The shipped language model, by the key and the value that make a stage load it.
_LANGUAGE = ("language.model", "compo_en"), f"{_SOURCE}/resources/language"
# The record of the MLflow run: an output of training, so that a checkpoint and its run come back
# together, and nothing that a result depends on.
_RECORD = "run"
# A file that may be absent, which DVC refuses as a dependency.
_REVIEW = "foils_review"
# Registries, and the packages whose modules they name by import path.
_NAMED = {
    f"{_PACKAGE}.methods.registry": f"{_PACKAGE}.methods",
    f"{_PACKAGE}.benchmarks.registry": f"{_PACKAGE}.benchmarks",
    f"{_PACKAGE}.datasets.readers": f"{_PACKAGE}.datasets.readers",
}
# Packages of which a stage names the modules that it imports: every stage imports some.
_BY_MODULE = {"configuration", "pipelines", "run", "storage"}
# What a stage prints or where it writes, not what it computes.
_NO_RESULTS = {"command", "paths", "prepare", "tracking"}
_METRICS = "metrics"
# Results of a run are below its variant; the values of a named variant are settings of it.
_OF_A_RUN = {"counterfactuals", "views", "training", "evaluation"}
# DVC has decided that the settings changed: a training state of other settings gives way.
_OPTIONS = {"training": " --params training.overwrite=true"}
_HEAD = """\
# The results in the workspace: `dvc repro` runs the stages whose inputs have changed.
# Written by `compo-pipeline dvc --env={env}` from the Kedro pipelines.
"""


def place_of(env: str) -> Path:
    """Path of an environment's dvc.yaml, relative to the project."""
    return Path("dvc.yaml") if env == "base" else Path("recipes", env, "dvc.yaml")


def written(project: Path) -> list[str]:
    """Environments that have a dvc.yaml which was generated from the Kedro pipelines."""
    names = sorted(folder.name for folder in (project / "conf").iterdir() if folder.is_dir())
    heads = {env: _HEAD.format(env=env) for env in names if (project / place_of(env)).is_file()}
    return [
        env
        for env, head in heads.items()
        if (project / place_of(env)).read_text(encoding="utf-8").startswith(head)
    ]


def text(project: Path, env: str) -> str:
    """Text of an environment's dvc.yaml, generated from the Kedro pipelines.

    Args:
        project: its folder.
        env: environment, a folder of `conf`.

    Raises:
        SettingsError: there is no such environment, or a value of it cannot be used.
    """
    known = sorted(folder.name for folder in (project / "conf").iterdir() if folder.is_dir())
    if env not in known:
        raise SettingsError(
            f"--env: there is no conf/{env}{nearest(env, known)} (known: {', '.join(known)})"
        )
    body = yaml.safe_dump(definition(project, env), sort_keys=False, width=10_000)
    spaced = body.replace("\nstages:", "\n\nstages:").replace("\nplots:", "\n\nplots:")
    return _HEAD.format(env=env) + spaced


def definition(project: Path, env: str) -> dict[str, Any]:
    """Content of an environment's dvc.yaml as a dict: variables, stages and plots."""
    up = "" if env == "base" else "../../"
    variables, known = [], set[str]()
    for each in dict.fromkeys((env, "base")):
        files = keys.read(project / "conf" / each, "globals")
        given = {key for values in files.values() for key in values} & set(_VARIABLES) - known
        variables += [f"{up}conf/{each}/globals.yml:{','.join(sorted(given))}"] * bool(given)
        known |= given
    read = _EnvironmentStages(project, env)
    stages = {name: ({"wdir": "../.."} if up else {}) | read.stage(name) for name in STAGES}
    return {"vars": variables, "stages": stages, "plots": _plots(f"{up}{read.path('report')}")}


def _plots(report: str) -> list[dict[str, Any]]:
    """Plots by DVC's own templates, of the tables in the folder of a report."""
    loss = {f"{report}/plots/{role}_loss.csv": "loss" for role in ("fine_tuned", "control")}
    files = [f"{report}/plots/{role}.csv" for role in ("base", "control", "fine_tuned")]
    subtasks = {"x": dict.fromkeys(files, "per_cent"), "y": dict.fromkeys(files, "subtask")}
    return [
        {"Loss": {"template": "smooth", "x": "step", "y": loss}},
        {"Subtasks": {"template": "bar_horizontal", **subtasks}},
    ]


def code_of(*modules: str) -> set[str]:
    """Source paths on which a DVC stage depends: packages and modules imported by its modules."""
    found = imported(*modules)
    for registry, package in _NAMED.items():
        if registry in found:
            found |= imported(package)
    files = map(file_of, found - {_PACKAGE, f"{_PACKAGE}.pipelines"})
    return {
        _dependency_path(file)
        for file in files
        if file.stat().st_size and file.is_relative_to(_SOURCES)
    }


def _pipeline_packages(name: str) -> Iterator[str]:
    """Yield the packages that make up a pipeline."""
    yield from (f"{_PACKAGE}.pipelines.{each}" for each in SUMS.get(name, (name,)))


def _dependency_path(file: Path) -> str:
    """Path on which a DVC stage depends for a source file: its package, or the file itself."""
    parts = file.relative_to(_SOURCES).parts
    return "/".join(("src", *parts[: 3 if parts[1] in _BY_MODULE else 2]))


class _EnvironmentStages:
    """Generator of the DVC stages of one environment."""

    def __init__(self, project: Path, env: str) -> None:
        self._project, self._env = project, env
        self._values = configured_values(loader_of(project / "conf", env, {}))
        self._data = parse(DataSettings, self._values["data"], "data")
        # The catalog of a run whose dataset, method, ... are DVC's variables.
        named = {key: f"<{key}>" for key in _RUN}
        self._catalog = loader_of(project / "conf", env, named)["catalog"]
        self._pipelines = register_pipelines()

    def stage(self, name: str) -> dict[str, Any]:
        """A stage of dvc.yaml as a dict: command, dependencies, parameters and outputs."""
        pipeline = self._pipelines[name]
        read = read_parameters(pipeline)
        made = self._data.generator
        written = {each for each in pipeline.all_outputs() if self._is_on_disk(each)}
        outs = {self.path(each) for each in written - {_METRICS}}
        inputs = {
            self.path(each)
            for each in pipeline.inputs() & self._catalog.keys() - {_RECORD, _REVIEW}
        }
        if name == "raw" and made:
            outs.add(self._root_of(made))
            inputs.update(map(self._root_of, self._data.parts.values()))
        elif {"data", _ROOT} & read:
            inputs.update(map(self._root_of, self._data.parts.values()))
        inputs -= outs
        if "benchmarks" in read and not made and value_at(self._values, _BENCHMARKS):
            inputs.add(f"${{{_BENCHMARKS}}}")
        inputs |= set(self._external_tables(written))
        code, shipped = _CODE_OF_PROJECTS, set[str]()
        if self._project == _SOURCES.parent:
            code = code_of(*_pipeline_packages(name), *self._plugin_modules(read))
            shipped = set(self._shipped_models(read))
        stage: dict[str, Any] = {
            "cmd": f"kedro run --env={self._env} --pipeline={name}{_OPTIONS.get(name, '')}",
            "deps": [*sorted(_topmost(inputs)), *sorted(code), *sorted(shipped)],
            "params": self._params(name, read),
            "outs": sorted(outs),
        }
        if _METRICS in written:
            stage["metrics"] = [{self.path(_METRICS): {"cache": False}}]
        return stage

    def _shipped_models(self, read: set[str]) -> Iterator[str]:
        """Yield the folders of shipped models that a stage loads."""
        (key, value), place = _LANGUAGE
        if {key, "language"} & read and value_at(self._values, key) == value:
            yield place
        base = self._values["model"]["name"]
        if {"model", "model.name"} & read and base in BASES:
            folder = BASES[base]()
            if folder.is_relative_to(_SOURCES):
                yield f"src/{folder.relative_to(_SOURCES)}"

    def _external_tables(self, written: set[str]) -> Iterator[str]:
        """Yield the paths of external tables (texts, counterfactuals) that a stage reads."""
        chosen = parse(CounterfactualSettings, self._values["counterfactuals"], "")
        if "counterfactuals" in written and chosen.caption_editor == table.NAME:
            yield str(table.table_settings(chosen)[0].file)
        file = value_at(self._values, "views.from_table.file")
        if "annotations" in written and file is not None:
            yield str(file)

    def _plugin_modules(self, read: set[str]) -> Iterator[str]:
        """Yield the modules of the data generator and the caption editors that a stage uses."""
        made = self._data.generator
        if GENERATOR_SETTINGS in read and made is not None:
            generator = GENERATORS[made.format]
            yield str(getattr(generator, "__name__", type(generator).__module__))
        if "counterfactuals" in read:
            settings = parse(CounterfactualSettings, self._values["counterfactuals"], "")
            yield from (entry.path.partition(":")[0] for _, entry in chosen_entries(settings))

    def _root_of(self, part: DataSettings) -> str:
        """Root folder of a data source, with DVC's variable for the data's root."""
        below = os.path.relpath(part.root, self._data.root)
        return f"${{{_ROOT}}}" if below == "." else f"${{{_ROOT}}}/{below}"

    def path(self, entry: str) -> str:
        """File path of a catalog entry, with DVC's variables."""
        path = str(self._catalog[entry]["filepath"])
        for key in _RUN:
            path = path.replace(f"<{key}>", f"${{{key}}}")
        return path

    def _is_on_disk(self, entry: str) -> bool:
        """Whether a catalog entry has a file path."""
        return "filepath" in self._catalog.get(entry, ())

    def _params(self, stage: str, read: Iterable[str]) -> list[dict[str, list[str]]]:
        """Parameter keys that a stage reads, by configuration file, for `params` of dvc.yaml."""
        wanted = {key for key in read if key.partition(".")[0] not in _NO_RESULTS}
        wanted -= set(speed_paths(Parameters))
        if stage in _OF_A_RUN:
            wanted.add("variants")
        wanted = {key for key in wanted if not any(_is_below(key, other) for other in wanted)}
        found, settled = set[tuple[str, str]](), set[str]()
        for env in dict.fromkeys((self._env, "base")):
            # An environment lists its settings of all methods: DVC refuses a key that a file lacks.
            methods = [self._values["method"]] if env == "base" else METHODS
            own = {key.replace(METHOD_SETTINGS, name) for key in wanted for name in methods}
            if made := self._data.generator:
                own = {key.replace(GENERATOR_SETTINGS, made.format) for key in own}
            found.update(self._keys_in(env, own, settled))
            settled |= {
                key
                for values in self._configuration_files(env).values()
                for key, _ in leaves(values)
            }
        method = self._values["method"]
        by_file: dict[str, list[str]] = {}
        for file, key in sorted(found):
            if file == f"conf/base/parameters_methods/{method}.yml":
                file, key = file.replace(method, _METHOD), key.replace(method, _METHOD, 1)
            by_file.setdefault(file, []).append(key)
        return [{file: by_file[file]} for file in sorted(by_file)]

    def _keys_in(self, env: str, wanted: set[str], settled: set[str]) -> Iterator[tuple[str, str]]:
        """Yield (file, key) for each wanted key that an environment's configuration file sets."""
        files = self._configuration_files(env)
        # What is set in no file may be added to a section that is there.
        wanted = {_longest_set_prefix(key, files.values()) for key in wanted}
        for file, values in files.items():
            if file.endswith("globals.yml"):
                names = {key for key, _ in leaves(values)} - settled
                yield from (
                    (file, key)
                    for key in names
                    if any(_is_same_or_below(key, one) for one in wanted)
                )
                continue
            for key in wanted - settled:
                # A line that only points to globals.yml says nothing.
                pointer = str(_value_or_missing(values, key)).startswith("${runtime_params:")
                if _has_value(values, key) and not pointer:
                    yield file, key

    def _configuration_files(self, env: str) -> dict[str, Mapping[str, Any]]:
        """Parsed parameter and globals files of an environment, by path, for DVC."""
        folder = self._project / "conf" / env
        read = {**keys.read(folder, "parameters"), **keys.read(folder, "globals")}
        return {
            file.relative_to(self._project).as_posix(): values
            for file, values in read.items()
            if file.name != keys.COMPUTE
        }


def _topmost(paths: Iterable[str]) -> set[str]:
    """Paths that do not lie below any other of the given paths."""
    paths = set(paths)
    return {path for path in paths if not any(path.startswith(f"{one}/") for one in paths)}


def _is_below(key: str, other: str) -> bool:
    """Whether a dotted key is nested below another key."""
    return key.startswith(f"{other}.")


def _is_same_or_below(key: str, other: str) -> bool:
    """Whether a dotted key equals another key or is nested below it."""
    return key == other or _is_below(key, other)


def _longest_set_prefix(key: str, contents: Iterable[Mapping[str, Any]]) -> str:
    """The dotted key if a file sets it, else its longest prefix that a file sets."""
    contents, parts = list(contents), key.split(".")
    beginnings = (".".join(parts[:count]) for count in range(len(parts), 0, -1))
    return next((each for each in beginnings if any(_has_value(c, each) for c in contents)), key)


_MISSING = object()


def _value_or_missing(values: Any, key: str) -> Any:
    """Value at a dotted key in nested mappings; `_MISSING` if there is none."""
    for part in key.split("."):
        if not isinstance(values, dict) or part not in values:
            return _MISSING
        values = values[part]
    return values


def _has_value(values: Mapping[str, Any], key: str) -> bool:
    """Whether nested mappings have a value at a dotted key."""
    return _value_or_missing(values, key) is not _MISSING


def imported(*modules: str) -> set[str]:
    """Names of modules, and of all modules they import from their package or compo_pipeline."""
    return set[str]().union(*map(_modules_with_imports, modules))


@cache
def _modules_with_imports(module: str) -> frozenset[str]:
    """Names of a module, its imports from its package or compo_pipeline, and all their packages."""
    package = module.partition(".")[0]
    if _package_folder(package) is None:
        return frozenset({module})
    graph = _import_graph(*dict.fromkeys((package, _PACKAGE)))
    names = {module} | graph.find_descendants(module)
    if module != package:
        names |= graph.find_upstream_modules(module, as_package=True)
    names |= {name[:place] for name in names for place, sign in enumerate(name) if sign == "."}
    return frozenset(names)


@cache
def _import_graph(*packages: str) -> grimp.ImportGraph:
    """Graph of the imports between the modules of packages."""
    # Its cache would be a folder in the working directory.
    return grimp.build_graph(*packages, exclude_type_checking_imports=True, cache_dir=None)


def file_of(module: str) -> Path:
    """Path of the source file of a module or package."""
    package, _, rest = module.partition(".")
    folder = _package_folder(package)
    if folder is None:
        return Path(str(sys.modules[module].__file__))
    place = folder.joinpath(*rest.split("."))
    return place / "__init__.py" if place.is_dir() else place.with_suffix(".py")


def _package_folder(package: str) -> Path | None:
    """Folder of a package; None for a module that is no package, such as a script."""
    if package in sys.modules and not hasattr(sys.modules[package], "__path__"):
        return None
    spec = find_spec(package)
    return Path(spec.origin).parent if spec is not None and spec.origin is not None else None
