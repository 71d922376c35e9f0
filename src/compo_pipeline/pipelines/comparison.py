"""Pipeline `comparison`: methods, variants and seeds side by side.

A cell of its table is a method under a variant, with one run of `train_eval`'s pipelines for each
seed, in the folders of that run. Missing cells are trained.
"""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kedro.pipeline import Pipeline, node

from compo_pipeline.configuration import PlainError, SettingsError, leaves, nearest
from compo_pipeline.evaluation.settings import ComparisonSet
from compo_pipeline.next_steps import arguments, kedro_run, options
from compo_pipeline.provenance import page_facts

if TYPE_CHECKING:
    from compo_pipeline.datasets.stored import Stored

log = logging.getLogger(__name__)

KEY = "comparison_sets"
DONE = "cell.json"
SCORES, COMPARISON = "scores.parquet", "comparison.json"
CONF = Path("conf")
_SETS = "parameters_comparison.yml"
# What the cells of a set say of their runs; a run's seeds are counted.
_OF_CELLS = frozenset({"method", "variant", "seed"})
_COMMAND = "kedro run --pipelines=counterfactuals,views,training,evaluation"


class CellsFailed(PlainError, RuntimeError):
    """Runs of a set failed; each has printed its own error."""


def run_cells(
    name: str,
    sets: Mapping[str, Any],
    dataset: str,
    manifest: Mapping[str, Any],
    valid_captions: Any,
    command: Mapping[str, Any],
    folder: str,
    remote: Mapping[str, Any],
) -> list[dict[str, Any]]:
    """Run the cells that were not run yet; each with its seeds and the folders of their results.

    A cell is run again if its options, the configuration, the code or the data have changed; its
    training then resumes or is refused as in a run by hand. A cell that fails does not stop the
    others. With `remote.store` a run counts as done where its results are there.

    Raises:
        RemoteError: the storage cannot be reached, or refuses.
        CellsFailed: cells failed.
        SettingsError: there is no such set, or a cell cannot be run on this dataset.
    """
    from compo_pipeline.code_fingerprint import code_fingerprint

    del valid_captions  # they must be there
    chosen, wanted = find_cells(name, sets, dataset, command)
    state = {
        "conf": _configuration_fingerprint(),
        "code": code_fingerprint("compo_pipeline"),
        "data": manifest["data_hash"],
    }
    store = remote["store"]
    shared = {"remote.store": store} if store else {}
    cells, failed = [], []
    for label, cell in wanted.items():
        folders = []
        for seed in range(chosen.seeds):
            params = {**cell["params"], **shared, "seed": seed}
            place = Path(folder) / params["method"] / params["variant"] / f"seed={seed}"
            if not _run(cell["env"], params, place, state, _stored(place, store)):
                failed.append(_COMMAND + options(cell["env"], params))
            folders.append(str(place))
        cells.append({"label": label, **cell, "folders": folders})
    if failed:
        raise CellsFailed(
            f"{KEY}.{name}: {len(failed)} of {len(cells) * chosen.seeds} runs failed, the others "
            "are stored; the failed ones:\n  " + "\n  ".join(failed)
        )
    return cells


def compare_cells(cells: list[dict[str, Any]]) -> dict[str, Any]:
    """Base and all cells side by side, with intervals over seeds and images."""
    from compo_pipeline.evaluation.evaluate import Comparison
    from compo_pipeline.evaluation.suite import compare_runs
    from compo_pipeline.records import Score
    from compo_pipeline.storage import read_json
    from compo_pipeline.tables.rows import Table

    runs = {
        cell["label"]: [
            (
                Table.open(Path(folder) / SCORES, Score),
                Comparison.from_json(read_json(Path(folder) / COMPARISON)),
            )
            for folder in cell["folders"]
        ]
        for cell in cells
    }
    return compare_runs(runs).to_json()


def write_comparison_page(
    cells: list[dict[str, Any]],
    suite: Mapping[str, Any],
    name: str,
    command: Mapping[str, Any],
    folder: str,
) -> tuple[dict[str, Any], Path]:
    """Metrics by cell for DVC, and the page of a set; prints its headline metrics."""
    from compo_pipeline.evaluation.comparison import by_model
    from compo_pipeline.evaluation.suite import Suite
    from compo_pipeline.presentation import suite_page

    found = Suite.from_json(suite)
    facts = {
        **page_facts(command, "comparison"),
        "set": name,
        "seeds": str(len(cells[0]["folders"])),
        **{cell["label"]: kedro_run("train_eval", cell["env"], cell["params"]) for cell in cells},
    }
    suite_page.show(found)
    written = suite_page.write(found, f"Comparison of the set {name}", facts, Path(folder))
    return by_model(found.comparison.rows), written


def log_cells(cells_metrics: Mapping[str, Any], page: Path, name: str, dataset: str) -> None:
    """Log figures and page of a set as an MLflow run."""
    from compo_pipeline.registry import tracking

    tags = {"dataset": dataset, "set": name}
    tracking.log_figures(f"comparison-{dataset}-{name}", tags, cells_metrics, page)


def _command_of_cells(command: Mapping[str, Any], name: str) -> dict[str, Any]:
    """The options of a comparison's command that are those of its runs, by dotted key.

    Raises:
        SettingsError: an option that each cell has of its own.
    """
    if own := sorted(_OF_CELLS & command["params"].keys()):
        raise SettingsError(
            f"{own[0]}: the cells of {KEY}.{name} say which methods, variants and seeds run, got "
            f"{own[0]}={command['params'][own[0]]} for all of them"
        )
    # What says which cells there are is no option of a cell: more seeds repeat no finished run.
    return dict(
        leaves({key: value for key, value in command["params"].items() if key not in ("set", KEY)})
    )


def find_cells(
    name: str, sets: Mapping[str, Any], dataset: str, command: Mapping[str, Any]
) -> tuple[ComparisonSet, dict[str, dict[str, Any]]]:
    """A set, and by cell the options of its runs: environment and parameters but the seed.

    Raises:
        SettingsError: there is no such set, or a cell cannot be run so on this dataset.
    """
    from compo_pipeline.evaluation.suite import named_set
    from compo_pipeline.methods import registry

    chosen = named_set(name, sets)
    shared = _command_of_cells(command, name)
    cells: dict[str, dict[str, Any]] = {}
    labels: dict[tuple[str, str], str] = {}
    for label, cell in chosen.cells.items():
        key = f"{KEY}.{name}.cells.{label}"
        named = _named(cell.env, f"{key}.env") if cell.env else {"dataset": dataset}
        if named["dataset"] != dataset:
            raise SettingsError(
                f"{key}.env: the dataset of conf/{cell.env} is '{named['dataset']}', expected "
                f"'{dataset}', that of this run"
            )
        given = dict(leaves(cell.params))
        if own := sorted((_OF_CELLS | {"dataset"}) & given.keys()):
            raise SettingsError(f"{key}.params.{own[0]}: not among params; cells have keys for it")
        method = cell.method or named["method"]  # one of both has it
        variant = cell.variant or named.get("variant", "default")
        env = cell.env or command["env"]
        try:
            registry.find(method)
        except SettingsError as error:
            problem = error.message.replace("method: ", f"{key}.method: ", 1)
            raise SettingsError(problem) from None
        other = labels.setdefault((method, variant), label)
        if other != label:
            raise SettingsError(
                f"{key}.variant: '{variant}' of {method} is the cell '{other}' already; expected "
                "another label, which names the folder of its runs"
            )
        params = {**shared, **given, "dataset": dataset, "method": method, "variant": variant}
        cells[label] = {"env": env, "params": params}
    return chosen, cells


def _named(env: str, key: str) -> dict[str, Any]:
    """What globals.yml of an environment, which a YAML key names, says of dataset and method."""
    from compo_pipeline.parameters import keys

    if not (CONF / env).is_dir():
        known = sorted(folder.name for folder in CONF.iterdir() if folder.is_dir())
        raise SettingsError(
            f"{key}: there is no folder conf/{env}{nearest(env, known)} (known: {', '.join(known)})"
        )
    return {
        key: value
        for folder in (CONF / "base", CONF / env)
        for values in keys.read(folder, "globals").values()
        for key, value in values.items()
    }


def _stored(place: Path, store: str | None) -> list[Stored]:
    """The results of a run that are compared, and what says that it is done, on object storage."""
    from compo_pipeline.datasets.stored import Stored

    if store is None:
        return []
    paths = [place / name for name in (SCORES, COMPARISON, DONE)]
    below = store.rstrip("/")
    return [Stored(path, f"{below}/{os.path.relpath(path)}", folder=False) for path in paths]


def _run(
    env: str | None,
    params: Mapping[str, Any],
    place: Path,
    state: Mapping[str, Any],
    stored: list[Stored],
) -> bool:
    """Run a cell's pipelines in a process of their own, unless that was done; its success."""
    from compo_pipeline.storage import read_json_or_none, write_json

    shown = options(env, params)
    wanted = {**state, "options": shown}
    there = all(each.exists() for each in stored)
    for each in stored if there else ():
        each.fetch()
    there = there and all((place / result).is_file() for result in (SCORES, COMPARISON))
    if there and read_json_or_none(place / DONE) == wanted:
        log.info("%s is done.", place)
        return True
    log.info("%s%s", _COMMAND, shown)
    command = [sys.executable, "-m", *_COMMAND.split(), *arguments(env, params)]
    if subprocess.run(command, check=False).returncode:
        return False
    write_json(place / DONE, wanted)
    if stored:
        stored[-1].save()
    return True


def _configuration_fingerprint() -> str:
    """Of all files of conf but those that only say which cells there are."""
    from compo_pipeline.storage import files_fingerprint

    files = sorted(path for path in CONF.rglob("*.yml") if path.name != _SETS)
    return files_fingerprint((path.relative_to(CONF).as_posix(), path) for path in files)


def create_pipeline() -> Pipeline:
    """The comparison pipeline, on valid captions."""
    return Pipeline(
        [
            node(
                run_cells,
                inputs={
                    "name": "params:set",
                    "sets": "params:comparison_sets",
                    "dataset": "params:dataset",
                    "manifest": "manifest",
                    "valid_captions": "valid_captions",
                    "command": "params:command",
                    "folder": "params:paths.model_output",
                    "remote": "params:remote",
                },
                outputs="cells",
                name="run_cells",
            ),
            node(compare_cells, inputs="cells", outputs="cells_suite", name="compare_cells"),
            node(
                write_comparison_page,
                inputs={
                    "cells": "cells",
                    "suite": "cells_suite",
                    "name": "params:set",
                    "command": "params:command",
                    "folder": "params:paths.comparison_report",
                },
                outputs=["cells_metrics", "comparison_report"],
                name="write_comparison_page",
            ),
            node(
                log_cells,
                inputs={
                    "cells_metrics": "cells_metrics",
                    "page": "comparison_report",
                    "name": "params:set",
                    "dataset": "params:dataset",
                },
                outputs=None,
                name="log_cells",
            ),
        ]
    )
