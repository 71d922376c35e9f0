"""CLIC, its control and the base over several training seeds, on the held-out test scenes.

    python benchmarks/seeds.py --seeds 5

Runs `kedro run --pipelines=counterfactuals,views,training,evaluation` for each seed (after
`raw,ingest,validation` once), then compares the seeds' per-item scores: differences paired on the
same items, intervals from two levels of resampling (seeds, then pictures), the least detectable
difference beside them. Writes benchmarks/results/seeds.json and seeds.md. Finished seeds are not
run again.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from compo_pipeline.evaluation.comparison import Row, compare
from compo_pipeline.evaluation.settings import Bootstrap
from compo_pipeline.records import Score, from_table

RESULTS = Path("benchmarks/results")
MODELS = {"base": "base", "control": "control", "fine_tuned": "clic"}


def kedro(pipelines: str, *parameters: str) -> None:
    """Run pipelines of the base environment; stops where one fails."""
    command = [sys.executable, "-m", "kedro", "run", "--env=base", f"--pipelines={pipelines}"]
    if parameters:
        command.append(f"--params={','.join(parameters)}")
    subprocess.run(command, check=True)


def scores_of(seed: int, variant: str) -> list[Score]:
    """Per-item scores of a seed, which is trained and evaluated where that was not done before."""
    folder = Path(f"data/07_model_output/scenes/clic/{variant}/seed={seed}")
    if not (folder / "metrics.json").exists():
        kedro("counterfactuals,views,training,evaluation", f"seed={seed}", f"variant={variant}")
    return list(from_table(pq.read_table(folder / "scores.parquet"), Score))


def markdown(rows: list[Row], seeds: int) -> str:
    """The rows as a table, per cent."""
    lines = [
        f"{seeds} training seeds; per cent; 95% intervals from two levels of resampling (seeds, "
        "then pictures); differences paired on the same items; LDD: least detectable difference.",
        "",
        "| benchmark | items | base | control | CLIC | CLIC - base | CLIC - control | LDD |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for row in rows:
        control, against = row.control, row.vs_control
        cells = [
            f"{row.benchmark} {row.metric}: {row.label}",
            str(row.items),
            f"{row.base.value:.1f}",
            f"{control.value:.1f}" if control else "",
            f"{row.fine_tuned.value:.1f}",
            f"{row.vs_base.value:+.1f} [{row.vs_base.low:+.1f}, {row.vs_base.high:+.1f}]",
            f"{against.value:+.1f} [{against.low:+.1f}, {against.high:+.1f}]" if against else "",
            f"{row.vs_base.least_detectable:.1f}",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Train what is missing, compare, write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--variant", default="default")
    arguments = parser.parse_args()
    if not Path("data/03_primary/scenes/captions.parquet").exists():
        kedro("raw,ingest,validation")
    seeds = [scores_of(seed, arguments.variant) for seed in range(arguments.seeds)]
    rows = compare(seeds, MODELS, Bootstrap(), chance={})
    name = "seeds" if arguments.variant == "default" else f"seeds_{arguments.variant}"
    RESULTS.mkdir(parents=True, exist_ok=True)
    content: dict[str, Any] = {"seeds": arguments.seeds, "rows": [asdict(row) for row in rows]}
    (RESULTS / f"{name}.json").write_text(json.dumps(content, indent=1), encoding="utf-8")
    (RESULTS / f"{name}.md").write_text(markdown(rows, arguments.seeds), encoding="utf-8")


if __name__ == "__main__":
    main()
