"""How often a page marks a difference where no model differs from the base, by simulation.

    python benchmarks/significance.py

A page compares two models with the base by 67 metrics: 60 subtasks of one seed each, whose p is
McNemar's, and seven averages over five subtasks. An item is right if a sum of normal variables is
positive: of its image (two items each), of the item, and of model and item together; all models
are as accurate. Counts the pages with a mark by the corrected p (`with_holm`) and by the
raw 95% intervals, and, where the models are five points better in ten metrics, the share of these
that is marked. Writes benchmarks/results/significance.json and .md.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy import special, stats

from compo_pipeline.evaluation.comparison import (
    BASE,
    Row,
    row_statistics,
    with_holm,
)
from compo_pipeline.evaluation.statistics import Part

RESULTS = Path("benchmarks/results")
SINGLE, AVERAGES, PARTS, BETTER, MODELS = 60, 7, 5, 10, 2
ITEMS = 300
IMAGES = np.repeat(np.arange(ITEMS // 2), 2)
OF_IMAGE, OF_ITEM = 0.3, 0.4
GENERATOR = np.random.default_rng(0)

Floats = NDArray[np.floating]


def verdicts(common: Floats, accuracy: float) -> Part:
    """A model's verdicts on the items, per cent, [1, items]."""
    own = (1 - OF_IMAGE - OF_ITEM) ** 0.5 * GENERATOR.standard_normal(ITEMS)
    return Part(100.0 * (common + own > -special.ndtri(accuracy))[None], IMAGES)


def page(gain: float) -> list[Row]:
    """The rows of two models, of which each is better by `gain` in the first ten metrics."""
    shapes = [1] * SINGLE + [PARTS] * AVERAGES
    names = [f"model {place}" for place in range(MODELS)]
    rows = []
    for place, parts in enumerate(shapes):
        normal = GENERATOR.standard_normal
        commons = [
            OF_IMAGE**0.5 * normal(ITEMS // 2)[IMAGES] + OF_ITEM**0.5 * normal(ITEMS)
            for _ in range(parts)
        ]
        base = [verdicts(common, 0.7) for common in commons]
        accuracy = 0.7 + gain * (place < BETTER)
        ours = {name: [verdicts(common, accuracy) for common in commons] for name in names}
        values, differences = row_statistics(
            {BASE: base, **ours},
            [(name, BASE) for name in names],
            [1 / parts] * parts,
            exact=parts == 1,
        )
        row = Row(
            benchmark="simulated",
            metric="accuracy",
            name=f"{place}",
            label=f"{place}",
            headline=False,
            averaged=parts > 1,
            items=ITEMS,
            skipped=0,
            images=ITEMS // 2,
            chance=None,
            values=values,
            differences=differences,
        )
        rows.append(row)
    return with_holm(rows)


def share(count: int, total: int) -> dict[str, float]:
    """A share in per cent, with its exact 95% interval."""
    found = stats.binomtest(count, total).proportion_ci()
    return {"value": 100 * count / total, "low": 100 * found.low, "high": 100 * found.high}


def main() -> None:
    """Simulate, write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pages", type=int, default=2000)
    parser.add_argument("--better", type=int, default=200, help="pages with true differences")
    asked = parser.parse_args()
    corrected = raw = marks = 0
    for _ in range(asked.pages):
        differences = [each for row in page(0.0) for each in row.differences]
        corrected += any(one.significance != "level" for one in differences)
        excluding = [one for one in differences if one.low > 0 or one.high < 0]
        raw, marks = raw + bool(excluding), marks + len(excluding)
    found = [
        each.significance == "above"
        for _ in range(asked.better)
        for row in page(0.05)[:BETTER]
        for each in row.differences
    ]
    content = {
        "pages": asked.pages,
        "comparisons a page": MODELS * (SINGLE + AVERAGES),
        "items a subtask": ITEMS,
        "pages with a mark": share(corrected, asked.pages),
        "pages with an interval that excludes zero": share(raw, asked.pages),
        "such intervals a page": marks / asked.pages,
        "true differences of 5 points that are marked": share(sum(found), len(found)),
    }
    (RESULTS / "significance.json").write_text(json.dumps(content, indent=1), encoding="utf-8")
    lines = ["| | |", "| --- | --- |"]
    for name, value in content.items():
        shown = f"{value:.4g}" if not isinstance(value, dict) else (
            f"{value['value']:.1f}% [{value['low']:.1f}, {value['high']:.1f}]"
        )  # fmt: skip
        lines.append(f"| {name} | {shown} |")
    (RESULTS / "significance.md").write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
