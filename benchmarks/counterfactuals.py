"""SPARCL's parts on the scenes: synthetic images, margins, and what is wrong with images.

    python benchmarks/counterfactuals.py --seeds 3

Trains, for each seed and on the same edited captions, plain SigLIP (the control), SPARCL and its
ablations, TripletCLIP and NegCLIP, with the recipe of conf/sparcl_scenes. The renderer's images
are exact and look like the real ones, which no text-to-image model's do; so SPARCL also trains on
images with the faults that the paper's feature injection, AdaIN and adaptive margin are there
for: drawn from the text alone, in a foreign style, or wrong. `--rows` picks rows by name, `--seed`
does one seed and stops: two processes can share the work. Needs what
`kedro run --pipelines=raw,ingest,validation` makes. Images, models and scores are kept under
data/*/scenes/counterfactuals/<variant>; what is there is not made again. Writes
benchmarks/results/counterfactuals.json and counterfactuals.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import study
import tables
from compo_pipeline.methods.contract import Method
from compo_pipeline.methods.sparcl import Sparcl
from compo_pipeline.methods.triplet_clip import TripletClip
from compo_pipeline.storage.records import Score
from compo_pipeline.training.run import control_of
from study import Arm, Study
from tables import BASE

ENV = "sparcl_scenes"
CONTROL, FULL, FIXED, TEXTS = "SigLIP fine-tuning", "SPARCL", "fixed margin", "no images"
ALONE, FOREIGN, STYLED, WRONG = "from text alone", "foreign style", "foreign, AdaIN", "wrong"
EXACT = "exact"
NEGCLIP = "NegCLIP on the same texts"
# Margins are in logits, and the base's scale is a quarter of the paper's; trained only where
# `--rows` asks for them.
QUARTER, QUARTER_FIXED = "margins at a quarter", "... fixed"
EXTRA = {QUARTER, QUARTER_FIXED}

# What a set of counterfactuals changes of the configured settings.
EDITS: dict[str, dict[str, Any]] = {
    EXACT: {},
    ALONE: {"scenes": {"faithful": False}},
    FOREIGN: {"scenes": {"cast": 1.0}},
    STYLED: {"scenes": {"cast": 1.0, "adain": {"weight": 0.5, "space": "pixels"}}},
    WRONG: {"scenes": {"wrong": 0.3}},
}
# Rows that train on images which are not exact: the set, and whether margins adapt.
FAULTY = {
    "images from text alone": (ALONE, True),
    "images in a foreign style": (FOREIGN, True),
    "... with AdaIN": (STYLED, True),
    "30% of the images wrong": (WRONG, True),
    "... with a fixed margin": (WRONG, False),
}

# The paper's claims as differences: what is claimed, and the two rows that it compares.
CLAIMS = {
    "SPARCL against the base": (FULL, BASE),
    "SPARCL against the control": (FULL, CONTROL),
    "synthetic images": (FULL, TEXTS),
    "the margin loss": (FULL, "no margin loss"),
    "adaptive margins": (FULL, FIXED),
    "adaptive margins, 30% of the images wrong": (
        "30% of the images wrong",
        "... with a fixed margin",
    ),
    "adaptive margins at a quarter": (QUARTER, QUARTER_FIXED),
    "margins at a quarter": (QUARTER, FULL),
    "faithful images (injection's end)": (FULL, "images from text alone"),
    "the style of real images (AdaIN's end)": (FULL, "images in a foreign style"),
    "AdaIN": ("... with AdaIN", "images in a foreign style"),
    "faulty images against none": ("images from text alone", TEXTS),
    "the images of TripletCLIP": ("TripletCLIP", NEGCLIP),
    "SPARCL against TripletCLIP": (FULL, "TripletCLIP"),
    "SPARCL's texts against NegCLIP's": (TEXTS, NEGCLIP),
}
FIGURES = {
    ("sugar_crepe", "accuracy", "average"): "SugarCrepe",
    ("sugar_crepe", "accuracy", "swap_att"): "swapped attributes",
    ("sugar_crepe", "accuracy", "swap_obj"): "swapped things",
    ("sugar_crepe", "accuracy", "add_att"): "added attributes",
    ("sugar_crepe", "accuracy", "replace_rel"): "replaced relations",
    **tables.COMMON,
}


def arms(parameters: Mapping[str, Any]) -> dict[str, Arm]:
    """All rows by name; the views are SPARCL's for all of them."""
    full: Sparcl = study.build("sparcl", parameters)
    triplet: TripletClip = study.build("triplet_clip", parameters)

    def sparcl(**changes: Any) -> Sparcl:
        return Sparcl(full.views_type(), replace(full.objective, **changes))

    objective = full.objective
    margins = objective.margins
    fixed = sparcl(margins=replace(margins, adaptive=False))
    quarter = replace(margins, m0=margins.m0 / 4, beta=margins.beta / 4)
    without = TripletClip(triplet.views_type(), replace(triplet.objective, images=False))
    exact: dict[str, Method] = {
        CONTROL: control_of(full),
        FULL: full,
        TEXTS: sparcl(images=False),
        "no margin loss": sparcl(weights=replace(objective.weights, margin=0.0)),
        FIXED: fixed,
        QUARTER: sparcl(margins=quarter),
        QUARTER_FIXED: sparcl(margins=replace(quarter, adaptive=False)),
        "TripletCLIP": triplet,
        NEGCLIP: without,
    }
    rows = {name: Arm(method, full, EXACT) for name, method in exact.items()}
    for name, (edits, adaptive) in FAULTY.items():
        rows[name] = Arm(full if adaptive else fixed, full, edits)
    return rows


def measured(parts: Study, seed: int, rows: Mapping[str, Arm]) -> list[Score]:
    """Scores under a seed; trains what is missing."""
    scores = []
    for name, model in parts.trained(seed, rows):
        scores += parts.scores(seed, name, model)
    return scores


def main() -> None:
    """Train and score what is missing, compare, write."""
    parser = study.arguments(__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int, help="train and score this seed alone, then stop")
    parser.add_argument("--rows", default="", help="names separated by semicolons")
    asked = parser.parse_args()
    parameters = study.configured(ENV, asked.params)
    rows, variant = study.chosen(arms(parameters), asked.rows, EXTRA), parameters["variant"]
    if asked.params and variant == ENV:
        raise SystemExit("--params: another recipe has a place of its own: add variant=<name>")
    parts = Study(f"counterfactuals/{variant}", parameters, asked.split, EDITS)
    if asked.seed is not None:
        measured(parts, asked.seed, rows)
        return
    seeds = [measured(parts, seed, rows) for seed in range(asked.seeds)]
    name = "counterfactuals" if variant == ENV else f"counterfactuals_{variant}"
    tables.conclude(name, asked.split, seeds, rows, CLAIMS, FIGURES)


if __name__ == "__main__":
    main()
