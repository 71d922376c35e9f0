"""FSC-CLIP's components on the scenes: what each loss and each calibration does.

    python benchmarks/components.py --seeds 3

Trains, for each seed and on the same views, plain CLIP (the control), NegCLIP, FSC-CLIP and the
rows of the paper's Table 2 (global and local hard-negative loss, focal weight, label smoothing),
with the recipe of conf/fsc_scenes. Needs what `kedro run --pipelines=raw,ingest,validation` makes.
Views and scores are kept under data/*/scenes/components; what is there is not made again.
Differences are paired on the same items, intervals are over seeds and images. Writes
benchmarks/results/components.json and components.md.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import study
import tables
from compo_pipeline.methods.fsc_clip import FscClip
from compo_pipeline.training.run import control_of
from study import Arm, Study
from tables import Compared

# Global and local hard-negative loss, focal weight, label smoothing: the paper's Table 2 by id.
COMPONENTS = {
    "global": (True, False, False, False),
    "local": (False, True, False, False),
    "global + local": (True, True, False, False),
    "global + local, focal": (True, True, True, False),
    "global + local, smoothed": (True, True, False, True),
    "FSC-CLIP": (True, True, True, True),
    "FSC-CLIP without local": (True, False, True, True),
    "FSC-CLIP without global": (False, True, True, True),
}
# The paper's claims as differences: what is claimed, and the two rows that it compares.
CLAIMS = {
    "the local loss in place of the global one": ("local", "global"),
    "the local loss beside the global one": ("global + local", "global"),
    "focal weight": ("global + local, focal", "global + local"),
    "label smoothing": ("global + local, smoothed", "global + local"),
    "both calibrations": ("FSC-CLIP", "global + local"),
    "the local loss in FSC-CLIP": ("FSC-CLIP", "FSC-CLIP without local"),
    "FSC-CLIP against NegCLIP": ("FSC-CLIP", "NegCLIP"),
    "FSC-CLIP against the control": ("FSC-CLIP", "control"),
}
FIGURES = {
    ("sugar_crepe", "accuracy", "average"): "SugarCrepe",
    ("sugar_crepe", "accuracy", "swap_att"): "swapped attributes",
    ("sugar_crepe", "accuracy", "replace_rel"): "replaced relations",
    **tables.COMMON,
}


def arms(parameters: Mapping[str, Any]) -> dict[str, Arm]:
    """The rows to train, by name."""
    full, negclip = study.build("fsc_clip", parameters), study.build("negclip", parameters)
    rows = {"NegCLIP": Arm(negclip, negclip)}
    for name, (of_all, of_patches, focal, smoothed) in COMPONENTS.items():
        weights = full.objective.weights
        kept = dataclasses.replace(
            weights,
            global_hn=weights.global_hn if of_all else 0.0,
            local_hn=weights.local_hn if of_patches else 0.0,
        )
        objective = dataclasses.replace(
            full.objective,
            weights=kept,
            gamma=full.objective.gamma if focal else 0.0,
            beta=full.objective.beta if smoothed else 0.0,
        )
        rows[name] = Arm(FscClip(full.settings, objective), full)
    return {**rows, "control": Arm(control_of(full), full)}


def markdown(rows: Compared, claims: Compared, seeds: int) -> list[str]:
    """Three tables: values, differences to the base, differences that test the claims."""
    heads = list(FIGURES.values())
    return [
        *tables.introduction(seeds),
        *tables.table(heads, tables.values(rows)),
        "Difference to the base:",
        "",
        *tables.table(heads, [*tables.differences(rows), tables.least_detectable(rows)]),
        "What each component changes:",
        "",
        *tables.table(heads, tables.differences(claims)),
    ]


def main() -> None:
    """Train and score what is missing, compare, write."""
    asked = study.arguments(__doc__.splitlines()[0]).parse_args()
    parameters = study.configured("fsc_scenes", asked.params)
    parts, trained = Study("components", parameters, asked.split), arms(parameters)
    seeds = [
        [
            score
            for name, model in parts.trained(seed, trained)
            for score in parts.scores(seed, name, model)
        ]
        for seed in range(asked.seeds)
    ]
    rows = tables.against_base(seeds, trained, FIGURES)
    claims = tables.tested(seeds, CLAIMS, FIGURES)
    content = {
        "seeds": asked.seeds,
        "against base": tables.plain(rows),
        "claims": tables.plain(claims),
    }
    tables.save("components", asked.split, content, markdown(rows, claims, asked.seeds))


if __name__ == "__main__":
    main()
