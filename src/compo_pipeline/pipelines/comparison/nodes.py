"""Nodes of the pipeline `comparison`: methods, variants and seeds side by side.

A cell of its table is a method under a variant, with one run of `train_eval`'s pipelines for each
seed, in the folders of that run. Missing cells are trained.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from compo_pipeline.core.provenance import CommandOptions, Site, kedro_run
from compo_pipeline.core.records import Caption
from compo_pipeline.evaluation.comparison import by_model, headline_figures
from compo_pipeline.evaluation.evaluate import Comparison
from compo_pipeline.evaluation.suite import compare_runs
from compo_pipeline.pages.report import HEADLINES, LEFT_OUT, MARKDOWN, SUITE, suite_page
from compo_pipeline.pages.tables import show
from compo_pipeline.registry.runs import log_figures
from compo_pipeline.tuning import cells


def run_cells(
    manifest: Mapping[str, Any],
    valid_captions: Sequence[Caption],
    set_name: str,
    sets: Mapping[str, Any],
    dataset: str,
    command: CommandOptions,
    folder: str,
) -> list[dict[str, Any]]:
    """Run `train_eval` for the cells that have no results.

    Returns all cells with result folders.

    Raises:
        SettingsError: there is no such set, or a cell cannot be run on this dataset.
        CellsFailed: cells failed.
    """
    del valid_captions  # every cell reads them from disk
    chosen = cells.find_cells(set_name, sets, dataset, command)
    return cells.run_cells(chosen, manifest["data_hash"], Path(folder))


def compare_cells(
    runs: list[dict[str, Any]], set_name: str, dataset: str, site: Site
) -> tuple[Comparison, dict[str, Any], dict[str, str | bytes]]:
    """Compare the base model and all cells, with intervals over seeds and images.

    Returns:
        The comparison, headline metrics for DVC, and the files of the page, which an MLflow run has
        too.
    """
    suite = compare_runs(cells.load_runs(runs))
    facts = {
        **site.facts("comparison"),
        "set": set_name,
        "seeds": str(len(runs[0]["folders"])),
        **{cell["label"]: kedro_run("train_eval", cell["env"], cell["params"]) for cell in runs},
    }
    page = suite_page(suite, f"Comparison of the set {set_name}", facts)
    show(page, HEADLINES, LEFT_OUT)
    files, tags = page.files(SUITE, MARKDOWN), {"dataset": dataset, "set": set_name}
    log_figures(f"comparison-{dataset}-{set_name}", tags, by_model(suite.rows), files)
    return suite, headline_figures(suite.rows), files
