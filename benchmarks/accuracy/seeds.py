"""A method, its control and the base over several training seeds, on the held-out test scenes.

    python benchmarks/accuracy/seeds.py --seeds 5 --precision fp32
    python benchmarks/accuracy/seeds.py --seeds 5 --precision fp32 --env relations_scenes
    python benchmarks/accuracy/seeds.py --seeds 5 --precision fp32 --env long_scenes

Runs `kedro run --pipelines=counterfactuals,views,training,evaluation` for each seed (after
`ingest,validation,foils` once), then compares the seeds' per-item scores: differences paired on
the same items, intervals over seeds and images, the least detectable difference beside them. A
second table says what the promotion gate decides of each seed's model against the base. Writes
benchmarks/results/seeds_<precision>.json and .md, of another environment than base
seeds_<environment>_<precision>. Finished seeds are not run again. In the base environment each
precision is a variant of that name.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow.parquet as pq

from compo_pipeline.core.files import read_json
from compo_pipeline.core.records import Score
from compo_pipeline.core.settings import parse
from compo_pipeline.core.tables import Table
from compo_pipeline.evaluation.comparison import (
    BASE,
    CONTROL,
    FINE_TUNED,
    Row,
    compare,
    run_pairs,
)
from compo_pipeline.evaluation.contamination import Overlap
from compo_pipeline.evaluation.evaluate import Comparison
from compo_pipeline.methods.registry import label as method_label
from compo_pipeline.registry.gate import Check, judge
from compo_pipeline.registry.settings import PromotionSettings
from shared import RESULTS, configured, stored

BASE_ENV = "base"


class Seed(NamedTuple):
    """What the evaluation of a seed found."""

    scores: list[Score]
    """Of every item under every model."""

    overlaps: Sequence[Overlap]
    """Of the benchmarks with the training data."""


class Setup(NamedTuple):
    """What is trained: an environment, its parameters, the precision, and perhaps a control."""

    env: str
    precision: str
    parameters: Mapping[str, Any]
    control: bool = True

    @property
    def models(self) -> dict[str, str]:
        """Roles to the names in the scores."""
        control = {CONTROL: CONTROL} if self.control else {}
        return {BASE: BASE, **control, FINE_TUNED: self.parameters["method"]}

    @property
    def variant(self) -> str:
        """The variant under which the runs lie."""
        return self.precision if self.env == BASE_ENV else self.parameters["variant"]

    @property
    def result(self) -> str:
        """Name of the files of results."""
        return "_".join(["seeds", *([] if self.env == BASE_ENV else [self.env]), self.precision])

    def kedro(self, pipelines: str, *parameters: str) -> None:
        """Run pipelines of the environment; stops where one fails."""
        command = [sys.executable, "-m", "kedro", "run", f"--env={self.env}"]
        command.append(f"--pipelines={pipelines}")
        if parameters:
            command.append(f"--params={','.join(parameters)}")
        subprocess.run(command, check=True)

    def evaluated(self, seed: int) -> Seed:
        """What the evaluation of a seed found; it is trained if that was not done before."""
        run = Path(self.parameters["dataset"], self.parameters["method"], self.variant)
        folder = Path("data/07_model_output") / run / f"seed={seed}"
        if not (folder / "metrics.json").exists():
            recipe = [f"seed={seed}", f"training.precision={self.precision}"]
            if not self.control:
                recipe.append("evaluation.control=false")
            if self.env == BASE_ENV:
                recipe.append(f"variant={self.variant}")
            self.kedro("counterfactuals,views,training,evaluation", *recipe)
        scores = list(Table(Score, pq.read_table(folder / "scores.parquet")))
        return Seed(
            scores, parse(Comparison, read_json(folder / "comparison.json"), "comparison").overlaps
        )


def decisions(setup: Setup, seeds: list[Seed]) -> list[tuple[Check, ...]]:
    """What the configured gate makes of each seed's model against the base."""
    gate = parse(PromotionSettings, setup.parameters["promotion"], "promotion").gate
    return [
        judge(
            [score for score in seed.scores if score.model == setup.models["fine_tuned"]],
            [score for score in seed.scores if score.model == setup.models["base"]],
            seed.overlaps,
            gate,
        )
        for seed in seeds
    ]


def markdown(rows: list[Row], decided: list[tuple[Check, ...]], setup: Setup) -> str:
    """The figures as a table, per cent, and the gate's decision on each seed."""
    label = method_label(setup.parameters["method"])
    lines = [
        f"{len(decided)} training seeds in {setup.precision}; per cent; 95% intervals "
        "over seeds and images; differences paired on the same items; LDD: least "
        "detectable difference.",
        "",
        f"| benchmark | items | base | control | {label} | {label} - base | {label} - control "
        "| LDD |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for row in rows:
        control, against = row.values.get(CONTROL), row.against(CONTROL)
        cells = [
            f"{row.benchmark} {row.metric}: {row.label}",
            str(row.items),
            f"{row.values[BASE].value:.1f}",
            f"{control.value:.1f}" if control else "",
            f"{row.estimate.value:.1f}",
            row.difference.format(),
            against.format() if against else "",
            f"{row.difference.least_detectable:.1f}",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    figures = [check for check in decided[0] if check.numbers is not None]
    lines += [
        "",
        "The promotion gate on each seed's model: lower ends of 95% intervals against the base.",
        "",
        f"| seed | gate | {' | '.join(f'{each.subject} ({each.finding})' for each in figures)} |",
        "| --- " * (2 + len(figures)) + "|",
    ]
    for seed, checks in enumerate(decided):
        failed = dict.fromkeys(check.rule for check in checks if not check.passed)
        passed = f"refused: {', '.join(failed)}" if failed else "passed"
        lows = [f"{check.numbers.low:+.1f}" for check in checks if check.numbers is not None]
        lines.append(f"| {seed} | {passed} | {' | '.join(lows)} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Train what is missing, compare, write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--precision", choices=("fp32", "bf16"), default="fp32")
    parser.add_argument("--env", default=BASE_ENV)
    parser.add_argument("--without-control", action="store_true")
    arguments = parser.parse_args()
    parameters = configured(arguments.env)
    control = not arguments.without_control
    setup = Setup(arguments.env, arguments.precision, parameters, control)
    if not Path("data/05_model_input", parameters["dataset"], "foils.parquet").exists():
        setup.kedro("ingest,validation,foils")
    seeds = [setup.evaluated(seed) for seed in range(arguments.seeds)]
    root = Path(parameters["data"]["root"]) / "benchmarks" / "test"
    models = setup.models
    scores = [seed.scores for seed in seeds]
    titles = read_json(root / "benchmarks.json")["titles"]
    rows = compare(scores, models, run_pairs(models), chance={}, titles=titles)
    decided = decisions(setup, seeds)
    content: dict[str, Any] = {
        "seeds": arguments.seeds,
        "rows": [stored(row, FINE_TUNED, CONTROL) for row in rows],
        "gate": [[asdict(check) for check in checks] for checks in decided],
    }
    (RESULTS / f"{setup.result}.json").write_text(json.dumps(content, indent=1), encoding="utf-8")
    table = markdown(rows, decided, setup)
    (RESULTS / f"{setup.result}.md").write_text(table, encoding="utf-8")


if __name__ == "__main__":
    main()
