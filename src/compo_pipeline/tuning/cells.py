"""Cells of a comparison: a method under a variant, with a run of the chain for each seed."""

from __future__ import annotations

import logging
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from compo_pipeline.core import keys
from compo_pipeline.core.files import read_json, read_json_or_none, write_json
from compo_pipeline.core.hashing import files_hash
from compo_pipeline.core.provenance import CommandOptions, arguments, options
from compo_pipeline.core.records import Score
from compo_pipeline.core.settings import PlainError, SettingsError, leaves, parse
from compo_pipeline.core.tables import Table
from compo_pipeline.evaluation.evaluate import Comparison
from compo_pipeline.evaluation.scoring import SCORING
from compo_pipeline.evaluation.settings import ComparisonSet
from compo_pipeline.evaluation.suite import find_entry
from compo_pipeline.methods import registry
from compo_pipeline.training.inputs import TRAINING

log = logging.getLogger(__name__)

KEY = "comparison_sets"
DONE = "cell.json"
SCORES, COMPARISON = "scores.parquet", "comparison.json"
CONF = Path("conf")
_SETS = "parameters_comparison.yml"
# What the cells of a set say of their runs; a run's seeds are counted.
_OF_CELLS = frozenset({"method", "variant", "seed"})
# Of each run; the comparison runs those before them once.
PIPELINES = ("counterfactuals", "views", "training", "evaluation")
_COMMAND = f"kedro run --pipelines={','.join(PIPELINES)}"


class CellsFailed(PlainError, RuntimeError):
    """Exception: some runs of a comparison failed.

    Each has printed its own error.
    """


@dataclass(frozen=True, slots=True)
class CellSet:
    """Cells of a comparison (each a method under a variant), and the seeds of each."""

    name: str
    """YAML key of the set."""
    seeds: Sequence[int]
    """Seeds of a cell's runs."""
    cells: dict[str, dict[str, Any]]
    """Environment and parameters of the runs, without the seed, by label of the cell."""


def run_cells(chosen: CellSet, data_hash: str, folder: Path) -> list[dict[str, Any]]:
    """Run the unfinished trainings of a comparison's cells.

    Returns all cells with their folders.

    A cell is run again if its options, the configuration, the data or the versions of training and
    scoring have changed; its training then resumes or is refused as in a run by hand. A cell that
    fails does not stop the others.

    Args:
        chosen: the set.
        data_hash: hash of the data.
        folder: results are below it, in <method>/<variant>/seed=<n>.

    Raises:
        CellsFailed: cells failed.
    """
    # Without the files that only list cells.
    files = sorted(path for path in CONF.rglob("*.yml") if path.name != _SETS)
    state = {
        "conf": files_hash((path.relative_to(CONF).as_posix(), path) for path in files),
        "code": f"{TRAINING} {SCORING}",
        "data": data_hash,
    }
    cells, failed = [], []
    for label, cell in chosen.cells.items():
        folders = []
        for seed in chosen.seeds:
            params = {**cell["params"], "seed": seed}
            place = folder / params["method"] / params["variant"] / f"seed={seed}"
            if not _run_cell(cell["env"], params, place, state):
                failed.append(_COMMAND + options(cell["env"], params))
            folders.append(str(place))
        cells.append({"label": label, **cell, "folders": folders})
    if failed:
        raise CellsFailed(
            f"{chosen.name}: {len(failed)} of {len(cells) * len(chosen.seeds)} runs failed, the "
            "others are stored; the failed ones:\n  " + "\n  ".join(failed)
        )
    return cells


def load_runs(
    cells: Iterable[Mapping[str, Any]],
) -> dict[str, list[tuple[Table[Score], Comparison]]]:
    """Scores and comparison of each cell's runs, by label."""
    return {
        cell["label"]: [
            (
                Table.open(Path(folder) / SCORES, Score),
                parse(Comparison, read_json(Path(folder) / COMPARISON), COMPARISON),
            )
            for folder in cell["folders"]
        ]
        for cell in cells
    }


def _options_for_cells(params: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Options of a comparison's command that are passed on to each run, by dotted key.

    Raises:
        SettingsError: an option that each cell has of its own.
    """
    if own := sorted(_OF_CELLS & params.keys()):
        raise SettingsError(
            f"{own[0]}: the cells of {KEY}.{name} say which methods, variants and seeds run, got "
            f"{own[0]}={params[own[0]]} for all of them"
        )
    # What says which cells there are is no option of a cell: more seeds repeat no finished run.
    return dict(leaves({key: value for key, value in params.items() if key not in ("set", KEY)}))


def find_cells(
    name: str, sets: Mapping[str, Any], dataset: str, command: CommandOptions
) -> CellSet:
    """Read the cells (method, variant) of a configured comparison: environments and parameters.

    Raises:
        SettingsError: there is no such set, or a cell cannot be run so on this dataset.
    """
    chosen = parse(ComparisonSet, find_entry(name, "set", sets, KEY), f"{KEY}.{name}")
    shared = _options_for_cells(command.params, name)
    cells: dict[str, dict[str, Any]] = {}
    labels: dict[tuple[str, str], str] = {}
    for label, cell in chosen.cells.items():
        key = f"{KEY}.{name}.cells.{label}"
        named = read_globals(cell.env, f"{key}.env") if cell.env else {"dataset": dataset}
        if shared.get("dataset", named["dataset"]) != dataset:
            raise SettingsError(
                f"{key}.env: the dataset of conf/{cell.env} is '{named['dataset']}', expected "
                f"'{dataset}', that of this run; run `kedro run --env={cell.env} "
                f"--pipeline=comparison --params set={name}`"
            )
        method = cell.method or named["method"]  # one of both has it
        variant = cell.variant or named.get("variant", "default")
        env = cell.env or command.env
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
        params = {**shared, "dataset": dataset, "method": method, "variant": variant}
        cells[label] = {"env": env, "params": params}
    return CellSet(f"{KEY}.{name}", range(chosen.seeds), cells)


def read_globals(env: str, key: str) -> dict[str, Any]:
    """Values of an environment's globals.yml, merged over those of conf/base."""
    keys.check_environment(CONF, env, key)
    return {
        key: value
        for folder in (CONF / "base", CONF / env)
        for values in keys.read(folder, "globals").values()
        for key, value in values.items()
    }


def _run_cell(
    env: str | None, params: Mapping[str, Any], place: Path, state: Mapping[str, Any]
) -> bool:
    """Run one cell (method, variant, seed) in a new process, unless done.

    Returns False on failure.
    """
    shown = options(env, params)
    wanted = {**state, "options": shown}
    there = all((place / result).is_file() for result in (SCORES, COMPARISON))
    if there and read_json_or_none(place / DONE) == wanted:
        log.info("%s is done.", place)
        return True
    log.info("%s%s", _COMMAND, shown)
    command = [sys.executable, "-m", *_COMMAND.split(), *arguments(env, params)]
    if subprocess.run(command, check=False).returncode:
        return False
    write_json(place / DONE, wanted)
    return True
