"""Whether the diagnosis names weaknesses that were planted, and none where there is none.

    python benchmarks/diagnosis.py --seeds 1 2 3

SPARCL trains on scenes whose captions name relations, with edits of five kinds, those that are
seldom possible before others. A weakness is planted by leaving the edits of one kind out; one model
of each seed has them all. Each is diagnosed by the foils of the test scenes. Writes conf/planted,
an environment, and benchmarks/results/diagnosis.json and .md. Finished trainings are not run again.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import yaml

from compo_pipeline.configuration.settings import parse
from compo_pipeline.diagnosis.diagnose import Diagnosis
from compo_pipeline.diagnosis.weaknesses import RULE
from compo_pipeline.storage.files import read_json, write_text

ENV = "planted"
RESULTS = Path("benchmarks/results")
HEALTHY = "healthy"
# Edits of the scenes by the kind of change that they are.
EDITS = {
    "swapped_attributes": "swap_colours",
    "swapped_objects": "swap_things",
    "replaced_relation": "replace_relation",
    "replaced_object": "replace_kind",
    "replaced_attribute": "replace_colour",
}
# Those that are possible of the fewest captions come first.
RARE = {
    kind: EDITS[kind] for kind in ("swapped_attributes", "swapped_objects", "replaced_relation")
}
PLANTED = ("swapped_attributes", "replaced_relation", "replaced_object", "replaced_attribute")
GLOBALS = {"dataset": ENV, "method": "sparcl", "data": {"root": f"data/01_raw/{ENV}"}}
PARAMETERS: dict[str, Any] = {
    "scenes": {"relations": 1.0},
    "views": {"epochs": 1},
    "foils": {"splits": {"test": "test"}},
    "benchmarks": {
        "sets": {"sugar_crepe": None, "sugar_crepe_pp": None, "zero_shot": None},
        "retrieval": {"split": None},
        "foils": {"split": "test"},
    },
    "evaluation": {"control": False, "attention": 0},
    "training": {
        "epochs": 30,
        "batch_size": 128,
        "optimizer": {"lr": 2.0e-3, "lr_start": 2.0e-5, "lr_end": 2.0e-5},
        "frozen": ["token_embedding", "visual.trunk"],
        "wise_ft": {"ratio": 1.0},
    },
    "sparcl": {"objective": {"weights": {"margin": 0.1}, "trains": ["image", "text"]}},
    "variants": {
        "sparcl": {
            name: {
                "counterfactuals.scenes.edits": [e for k, e in EDITS.items() if k != name],
                "counterfactuals.scenes.preferred": [e for k, e in RARE.items() if k != name],
            }
            for name in (HEALTHY, *EDITS)
        }
    },
}


def run(pipelines: str, variant: str, seed: int) -> None:
    """Run pipelines of the environment; stops where one fails."""
    command = [sys.executable, "-m", "kedro", "run", f"--env={ENV}", f"--pipelines={pipelines}"]
    subprocess.run([*command, f"--params=variant={variant},seed={seed}"], check=True)


def diagnosed(variant: str, seed: int) -> Diagnosis:
    """The diagnosis of a model, which is trained and evaluated if that was not done before."""
    folder = Path("data/07_model_output", ENV, "sparcl", variant, f"seed={seed}")
    if not (folder / "metrics.json").exists():
        run("counterfactuals,views,training,evaluation", variant, seed)
    return parse(Diagnosis, read_json(folder / "diagnosis.json"), "diagnosis")


def markdown(found: Sequence[tuple[str, int, Diagnosis]]) -> str:
    """A row for each model: what was planted, what is named, and the kinds' figures."""
    kinds = list(EDITS)
    planted = [(variant, one) for variant, _, one in found if variant != HEALTHY]
    healthy = [one for variant, _, one in found if variant == HEALTHY]
    first = sum(one.weak[:1] == (variant,) for variant, one in planted)
    none = sum(not one.weak for one in healthy)
    lines = [
        f"The planted kind is first in {first} of {len(planted)}; none is named in {none} of "
        f"{len(healthy)} without a planted one. By kind: accuracy on its foils (the base's), per "
        "cent, and the share of the training captions with such a negative.",
        "",
        RULE,
        "",
        f"| planted | seed | named | {' | '.join(kind.replace('_', ' ') for kind in kinds)} |",
        f"| --- | --- | --- |{' --- |' * len(kinds)}",
    ]
    for variant, seed, one in found:
        by_kind = {each.kind: each for each in one.kinds}
        cells = [
            f"{each.model.value:.1f} ({each.base.value:.1f}), {each.asked:.0%}"
            for each in (by_kind[kind] for kind in kinds)
        ]
        named = ", ".join(kind.replace("_", " ") for kind in one.weak) or "none"
        lines.append(f"| {variant.replace('_', ' ')} | {seed} | {named} | {' | '.join(cells)} |")
    return "\n".join([*lines, ""])


def main() -> None:
    """Train, diagnose, and write the results."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--kinds", nargs="+", choices=tuple(EDITS), default=PLANTED)
    arguments = parser.parse_args()
    folder = Path("conf", ENV)
    folder.mkdir(exist_ok=True)
    for name, values in (("globals", GLOBALS), ("parameters", PARAMETERS)):
        write_text(folder / f"{name}.yml", yaml.safe_dump(values, sort_keys=False))
    if not Path("data/05_model_input", ENV, "foils.parquet").exists():
        run("raw,ingest,validation,foils", HEALTHY, 0)
    found = [
        (variant, seed, diagnosed(variant, seed))
        for seed in arguments.seeds
        for variant in (HEALTHY, *arguments.kinds)
    ]
    stored = [{"planted": variant, "seed": seed, **asdict(one)} for variant, seed, one in found]
    write_text(RESULTS / "diagnosis.json", json.dumps(stored, indent=1) + "\n")
    text = markdown(found)
    write_text(RESULTS / "diagnosis.md", text)
    print(text)


if __name__ == "__main__":
    main()
