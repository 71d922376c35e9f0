"""Nodes of the pipeline `comparison`: methods, variants and seeds side by side.

A cell of its table is a method under a variant, with one run of `train_eval`'s pipelines for each
seed, in the folders of that run. Missing cells are trained.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from compo_pipeline.comparison import cells as runs
from compo_pipeline.comparison.cells import COMPARISON, SCORES, CellSet, find_cells
from compo_pipeline.evaluation.comparison import by_model, headline_figures
from compo_pipeline.evaluation.evaluate import Comparison
from compo_pipeline.evaluation.suite import Suite, compare_runs
from compo_pipeline.presentation import suite_page
from compo_pipeline.run.next_steps import kedro_run
from compo_pipeline.run.provenance import CommandOptions, Site
from compo_pipeline.storage.files import FolderWriter, read_json
from compo_pipeline.storage.records import Caption, Score
from compo_pipeline.storage.tables import Table
from compo_pipeline.tracking import runs as tracking


def choose_cells(
    name: str, sets: Mapping[str, Any], dataset: str, command: CommandOptions
) -> CellSet:
    """Cells (a method under a variant) of the configured comparison set, with their seeds.

    Raises:
        SettingsError: there is no such set, or a cell cannot be run on this dataset.
    """
    return find_cells(name, sets, dataset, command)


def run_cells(
    wanted_cells: CellSet,
    manifest: Mapping[str, Any],
    valid_captions: Sequence[Caption],
    folder: Path,
) -> list[dict[str, Any]]:
    """Run `train_eval` for the cells that have no results; returns all cells with result folders.

    Raises:
        CellsFailed: cells failed.
    """
    del valid_captions  # every cell reads them from disk
    return runs.run_cells(wanted_cells, manifest["data_hash"], Path(folder))


def compare_cells(cells: list[dict[str, Any]]) -> dict[str, Any]:
    """Compare the base model and all cells, with intervals over seeds and images; as JSON."""
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
    site: Site,
) -> tuple[dict[str, Any], FolderWriter]:
    """Print headline metrics; return them for DVC, and a function that writes the page."""
    found = Suite.from_json(suite)
    facts = {
        **site.facts("comparison"),
        "set": name,
        "seeds": str(len(cells[0]["folders"])),
        **{cell["label"]: kedro_run("train_eval", cell["env"], cell["params"]) for cell in cells},
    }
    suite_page.show(found)
    page = partial(suite_page.write, found, f"Comparison of the set {name}", facts)
    return headline_figures(found.comparison.rows), page


def log_cells(suite: Mapping[str, Any], page: Path, name: str, dataset: str) -> None:
    """Log the metrics of all cells of a comparison set, and its page, as one MLflow run."""
    tags = {"dataset": dataset, "set": name}
    figures = by_model(Suite.from_json(suite).comparison.rows)
    tracking.log_figures(f"comparison-{dataset}-{name}", tags, figures, page)
