"""All cells of a comparison set side by side on the test scenes, from their runs.

    kedro run --pipeline=comparison --params evaluation.control=false
    python benchmarks/accuracy/methods.py
    kedro run --pipeline=comparison --params set=wise_ft,evaluation.control=false
    python benchmarks/accuracy/methods.py --set wise_ft
    kedro run --pipeline=comparison --params set=methods_2025,evaluation.control=false
    python benchmarks/accuracy/methods.py --set methods_2025 \
        --pair "NegCLIP + READ" NegCLIP --pair "FSC-CLIP + READ" FSC-CLIP --pair LabCLIP NegCLIP

Reads the runs that are there: a method may have more seeds than another. Differences from the base
are paired on the same items; intervals are over seeds and images; p is corrected by Holm over all
methods and metrics. Writes benchmarks/results/methods.json and methods.md, and
docs/images/methods.png; of another set those named after it (methods_2025.json,
methods_wise_ft.json), .md and .png. Differences between two cells (`--pair`) are over equal seeds.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Mapping
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow.parquet as pq

from compo_pipeline.core.files import read_json
from compo_pipeline.core.provenance import CommandOptions
from compo_pipeline.core.records import Score
from compo_pipeline.core.settings import parse
from compo_pipeline.core.tables import Table
from compo_pipeline.evaluation.comparison import BASE
from compo_pipeline.evaluation.evaluate import Comparison
from compo_pipeline.evaluation.suite import compare_runs
from compo_pipeline.models.weights import read_record
from compo_pipeline.pages import report
from compo_pipeline.tuning.cells import COMPARISON, DONE, SCORES, find_cells
from shared import RESULTS, configured, stored

IMAGES = Path("docs/images")
METHODS = "methods"


def finished(folder: Path) -> list[Path]:
    """The folders of a cell's finished runs, by seed."""
    return sorted(done.parent for done in folder.glob(f"seed=*/{DONE}"))


def losses_of(runs: list[Path]) -> Any:
    """`first` and `last` value of each loss in a cell's curves, as means over its seeds."""
    curves = [pd.read_csv(run / "curves.csv") for run in runs]
    ends = {
        name: pd.concat(curve.iloc[[place]] for curve in curves).mean(numeric_only=True)
        for name, place in (("first", 0), ("last", -1))
    }
    other = ["step", "lr", "scale", "gradient_norm"]
    return pd.DataFrame(ends).drop(index=other).T.to_dict()


def caption_similarities(scores: Iterable[Score]) -> dict[str, float]:
    """Mean similarity of captions with swapped attributes: two true ones, and one with the false.

    It is that of fine-tuned models, on SugarCrepe++'s items without an image.
    """
    asked = ("sugar_crepe_pp", "tot", "swap_att")
    of_items = [
        one.similarities
        for one in scores
        if (one.benchmark, one.metric, one.subtask) == asked and one.model != BASE
    ]
    both_true, *with_false = np.mean(of_items, axis=0)
    return {"both true": float(both_true), "true and false": float(np.mean(with_false))}


def trained_on(cell: Mapping[str, str], dataset: str) -> Any:
    """Device, hardware and precision of a cell's first training."""
    run = Path("data/06_models", dataset, cell["method"], cell["variant"], "seed=0")
    return read_record(run / "checkpoint")["training"]["compute"]


def main() -> None:
    """Compare the runs that are there, write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--set", default=METHODS, help="of conf/base/parameters_comparison.yml")
    parser.add_argument("--pair", nargs=2, action="append", default=[], help="cells to compare")
    arguments = parser.parse_args()
    chosen, pairs = arguments.set, [(one, other) for one, other in arguments.pair]
    name = chosen if chosen.startswith(METHODS) else f"{METHODS}_{chosen}"
    parameters = configured("base")
    command = CommandOptions()
    dataset = parameters["dataset"]
    cells = find_cells(chosen, parameters["comparison_sets"], dataset, command).cells
    runs, seeds, losses = {}, {}, {}
    for label, cell in cells.items():
        named = cell["params"]
        folder = Path("data/07_model_output", dataset, named["method"], named["variant"])
        found = finished(folder)
        if not found:
            raise SystemExit(f"{folder}: there is no finished run; run the comparison first")
        seeds[label], losses[label] = len(found), losses_of(found)
        runs[label] = [
            (
                list(Table(Score, pq.read_table(run / SCORES))),
                parse(Comparison, read_json(run / COMPARISON), COMPARISON),
            )
            for run in found
        ]
    suite = compare_runs(runs, pairs)
    content = {
        "seeds": seeds,
        "losses": losses,
        "caption similarities": {
            label: caption_similarities(chain.from_iterable(scores for scores, _ in own))
            for label, own in runs.items()
        },
        "compute": trained_on(next(iter(cells.values()))["params"], dataset),
        "models": {
            model: {"/".join(row.key): stored(row, model) for row in suite.rows}
            for model in suite.models
        },
    }
    if pairs:
        content["pairs"] = {
            f"{one} - {other}": {
                "/".join(row.key): stored(row, one, other)["vs_control"] for row in suite.rows
            }
            for one, other in pairs
        }
    (RESULTS / f"{name}.json").write_text(json.dumps(content, indent=1), encoding="utf-8")
    compute = content["compute"]
    facts = {
        "training seeds": ", ".join(f"{label} {count}" for label, count in seeds.items()),
        "trained": f"{compute['precision']} on {compute['device']} ({compute['hardware']})",
    }
    page = report.suite_page(suite, f"Runs of the set {chosen} on the scenes", facts)
    files: dict[str, Any] = page.files(report.MARKDOWN)
    (IMAGES / f"{name}.png").write_bytes(files[report.FRONTIER])
    image = f"](../../{IMAGES}/{name}.png)"
    text = files[report.MARKDOWN].replace(f"]({report.FRONTIER})", image)
    (RESULTS / f"{name}.md").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
