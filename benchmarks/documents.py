"""Figures in README.md and in the pages of findings and departures, from benchmarks/results.

    python benchmarks/documents.py

What is between `<!-- results: <name> -->` and `<!-- /results -->` is a table, written by the
function of that name below. What is between `<!-- figure: <file> > <key> > ... -->` and
`<!-- /figure -->` is one figure: what stands in benchmarks/results/<file>.json under these keys,
a difference with its interval or a number. A test compares the committed files with what this
script writes, and finds figures that stand in neither.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"
DOCUMENTS = ("README.md", "docs/explanation/findings.md", "docs/explanation/departures.md")
_TABLE = re.compile(r"(<!-- results: (\w+) -->)(.*?)(<!-- /results -->)", re.DOTALL)
_FIGURE = re.compile(r"(<!-- figure: ([^\n]+?) -->)(.*?)(<!-- /figure -->)", re.DOTALL)
# A percentage, a difference, an interval: what somebody measured.
_MEASURED = re.compile(r"\d(?:\.\d+)?%|(?<![\w.])[+-]\d+\.\d|\[[+-]?\d+\.\d|\d+\.\d+ points")
_LEVEL = re.compile(r"\b95% intervals?|\bat 5%")

Names = Mapping[str, str]
"""Keys of rows or columns of a result file to their heads in a document."""

ITT, TOT = "sugar_crepe_pp/itt/average", "sugar_crepe_pp/tot/average"
SWAPPED, COLOURS = "sugar_crepe/accuracy/swap_att", "zero_shot/top1/colours"
RELATION, ADDED = "sugar_crepe/accuracy/replace_rel", "sugar_crepe/accuracy/add_att"
TO_TEXT, TO_IMAGE = "retrieval/i2t_r1/raw", "retrieval/t2i_r1/raw"

README = {
    ITT: "ITT, mean of five subtasks",
    TOT: "TOT, mean of five subtasks",
    RELATION: "replaced relations",
    "sugar_crepe/accuracy/swap_obj": "swapped objects",
    SWAPPED: "swapped attributes",
    ADDED: "added attributes",
    TO_TEXT: "R@1, image to text",
    TO_IMAGE: "R@1, text to image",
    COLOURS: "zero-shot colours",
}
RELATIONS = {
    RELATION: "replaced relations",
    "sugar_crepe/accuracy/swap_obj": "swapped objects",
    SWAPPED: "swapped attributes",
    ADDED: "added attributes",
    ITT: "ITT, mean of five",
    TOT: "TOT, mean of five",
    COLOURS: "zero-shot colours",
    TO_TEXT: "R@1 image to text",
    TO_IMAGE: "R@1 text to image",
}
METHODS = {
    ITT: "ITT",
    TOT: "TOT",
    SWAPPED: "swapped attributes",
    RELATION: "replaced relations",
    ADDED: "added attributes",
    COLOURS: "zero-shot colours",
    TO_TEXT: "R@1 image to text",
    TO_IMAGE: "R@1 text to image",
}
TUNED = {
    ITT: "ITT",
    TOT: "TOT",
    "sugar_crepe/accuracy/average": "SugarCrepe, mean of seven",
    COLOURS: "zero-shot colours",
    TO_TEXT: "R@1 image to text",
    TO_IMAGE: "R@1 text to image",
}
# Columns of the studies (`tables.py`).
COMMON = {
    "ITT": "ITT",
    "TOT": "TOT",
    "swapped attributes": "swapped attributes",
    "ZS colours": "zero-shot colours",
    "I2T R@1": "R@1 image to text",
    "T2I R@1": "R@1 text to image",
}
OF_EDITS = {**COMMON, "added attributes": "added attributes"}
OF_CONCEPTS = {
    "ITT": "ITT",
    "swapped attributes": "swapped attributes",
    "... phrase by phrase": "phrase by phrase",
    "added attributes": "added attributes",
    "ZS colours": "zero-shot colours",
    "I2T R@1": "R@1 image to text",
}
OF_SEARCH = {
    "replace_rel": "replaced relations",
    "swap_obj": "swapped objects",
    "swap_att": "swapped attributes",
    "itt": "ITT",
    "zs_colours": "zero-shot colours",
    "i2t": "R@1 image to text",
}
ONE_EDIT, CANDIDATE = "Softmax contrast, one edit a caption", "300 steps, around the candidate"
GRID = "300 steps, rate, first phase, pairs and scale"
PAIRS, SCALES = "Ranking of a sample's own pairs", "Scale, bias and weight of the contrast"
SYNTHETIC, LENGTHS = "Synthetic images and rephrased captions", "Lengths of the candidate"
SHARE, NEAR = "Share of rows that ask", "Staying near the base"
# Labels of configurations: question and name in relations_search.json.
CAUSES = {
    "**180 steps on rows that ask, then all**": ("Rows that ask first", "(reference)"),
    "no such steps: a third of the rows asks": ("Rows that ask first", "first 0"),
    "60 such steps": ("Rows that ask first", "first 60"),
    "half of the rows asks, all along": (SHARE, "first 0, asking 0.5"),
    "three quarters": (SHARE, "first 0, asking 0.75"),
    "all": (SHARE, "first 0, asking 1"),
    "no pair ranking": (PAIRS, "pairs 0"),
    "no synthetic images": (SYNTHETIC, "images no"),
    "no rephrased captions": (SYNTHETIC, "positives no"),
    "softmax contrast": ("Softmax contrast", "(reference)"),
    "TripletCLIP's contrast, pair ranking": ("TripletCLIP", "pairs 1"),
    "rate 0.001": ("Rate and its schedule", "rate 0.001"),
    "rate 0.004": ("Rate and its schedule", "rate 0.004"),
    "batch 64, 900 steps": ("Batch", "steps 900, batch 64, first 360"),
    "batch 256, 225 steps, rate 0.004": ("Batch", "steps 225, batch 256, rate 0.004, first 90"),
    "batch 512, 112 steps, rate 0.006": ("Batch", "steps 112, batch 512, rate 0.006, first 45"),
    "scale 12": (SCALES, "scale 12"),
    "scale 50": (SCALES, "scale 50"),
    "fixed image projection": ("Image projection", "projection rate 0"),
}
COSTS = {
    "sigmoid": ("Rows that ask first", "(reference)"),
    "sigmoid, colour swaps too": ("Kinds of edits after the first phase", "kinds (1, 1, 1, 0)"),
    "softmax": ("Softmax contrast", "(reference)"),
    "softmax, colour swaps too": ("Softmax contrast", "kinds (1, 1, 1, 0)"),
    "... one edit a caption, no margin loss, no pair ranking": (ONE_EDIT, "(reference)"),
    "... with the pair ranking": (ONE_EDIT, "pairs 1"),
    "... in 300 steps, 120 first, rate 0.004": (GRID, "rate 0.004, first 120"),
    "... at scale 12": (CANDIDATE, "(reference)"),
    "... and pair weight 0.5": (CANDIDATE, "pairs 0.5"),
    "... or 375 steps": (LENGTHS, "steps 375, rate 0.004, first 120"),
    "... or 225 steps": (LENGTHS, "steps 225, rate 0.004, first 90"),
}
TRIED = {
    "the first table's reference": ("Rows that ask first", "(reference)"),
    "no margin loss": ("Margin loss", "margin 0"),
    "margin weight 0.5": ("Margin loss", "margin 0.5"),
    "average of weights, decay 0.99": (NEAR, "ema 0.99"),
    "average of weights, decay 0.995": (NEAR, "ema 0.995"),
    "distillation of the base, weight 1": (NEAR, "distillation 1"),
    "pull to the base's weights, 3": (NEAR, "l2 3"),
    "no weight decay": (NEAR, "weight decay 0"),
    "weight decay 0.2": (NEAR, "weight decay 0.2"),
    "warm-up 0.02": ("Rate and its schedule", "warmup 0.02"),
    "warm-up 0.2": ("Rate and its schedule", "warmup 0.2"),
    "peak rate for longer": ("Rate and its schedule", "flat yes"),
    "whitened image projection": ("Image projection", "whitening 0.25"),
    "image projection at ten times the rate": ("Image projection", "projection rate 10"),
    "image projection later": ("Image projection", "projection from 0.4"),
    "2,000 scenes": ("Scenes and edits", "scenes 2000"),
    "6,000 scenes": ("Scenes and edits", "scenes 6000"),
    "fp32": ("Precision", "bf16 no"),
}


@cache
def stored(file: str) -> Any:
    """The content of a result file."""
    return json.loads((RESULTS / f"{file}.json").read_text(encoding="utf-8"))


@cache
def rows_of(file: str) -> Mapping[str, Mapping[str, Any]]:
    """The rows of a comparison, by `benchmark/metric/name`."""
    return {
        f"{row['benchmark']}/{row['metric']}/{row['name']}": row for row in stored(file)["rows"]
    }


def value_of(found: Any) -> str:
    """A difference with its interval; the value of a model; a number."""
    if not isinstance(found, Mapping):
        return f"{found:.1f}" if isinstance(found, float) else f"{found}"
    if "p" in found:
        return f"{found['value']:+.1f} [{found['low']:+.1f}, {found['high']:+.1f}]"
    return f"{found['value']:.1f}"


def figure(place: str) -> str:
    """The figure at `<file> > <key> > ...`, with a format where one is given (`... | {:.0%}`).

    A claim is named without the two rows behind it.

    Raises:
        KeyError: there is no such figure.
    """
    path, _, form = place.partition(" | ")
    file, *keys = path.split(" > ")
    found = stored(file)
    for key in keys:
        if isinstance(found, list):
            found = rows_of(file)[key]
        else:
            (exact,) = {name for name in found if key in (name, name.rpartition(" (")[0])} or {key}
            found = found[exact]
    return form.format(found) if form else value_of(found)


def table(heads: Iterable[str], lines: Iterable[Sequence[str]]) -> str:
    """A table whose first column has no head."""
    heads = ["", *heads]
    rows = [f"| {' | '.join(line)} |" for line in (heads, ["---"] * len(heads), *lines)]
    return "\n".join(["", *rows, ""]).replace("|  |", "| |")


def seeds_table(file: str, label: str, names: Names) -> str:
    """Base, control and method side by side, and the method's differences from both."""
    count = stored(file)["seeds"]
    lines = []
    for key, name in names.items():
        row = rows_of(file)[key]
        base, control, ours = (value_of(row[role]) for role in ("base", "control", "fine_tuned"))
        if row["vs_base"]["low"] > 0 and row["vs_control"]["low"] > 0:
            ours = f"**{ours}**"
        against = [value_of(row[f"vs_{role}"]) for role in ("base", "control")]
        lines.append([name, base, control, ours, *against])
    heads = [f"{label} - {role} ({count} seeds)" for role in ("base", "control")]
    return table(["base", "control", label, *heads], lines)


def values_table(sections: Sequence[tuple[Any, Names]], names: Names) -> str:
    """Base and rows of a study.

    Args:
        sections: of the stored file, with the columns of each.
        names: of the rows.
    """
    first = next(iter(names))
    wanted = [("base", first, "base")]
    wanted += [(label, key, "fine_tuned") for key, label in names.items()]
    lines = [
        [
            label,
            *(
                value_of(section[key][column][role])
                for section, columns in sections
                for column in columns
            ),
        ]
        for label, key, role in wanted
    ]
    return table([head for _, columns in sections for head in columns.values()], lines)


def claims_table(sections: Sequence[tuple[Any, Names]], claims: Iterable[str] = ()) -> str:
    """What components change: differences between two rows of a study.

    Args:
        sections: of the stored file, with the columns of each.
        claims: those to show, all by default; stored with the two rows behind it.
    """
    first, _ = sections[0]
    keys = {key.rpartition(" (")[0]: key for key in first}
    lines = [
        [
            claim,
            *(
                value_of(section[keys[claim]][column]["vs_base"])
                for section, columns in sections
                for column in columns
            ),
        ]
        for claim in claims or keys
    ]
    return table([head for _, columns in sections for head in columns.values()], lines)


def readme() -> str:
    """The demo's models side by side, and what CLIC changes on the same items."""
    ours, clic = rows_of("seeds_relations_scenes_fp32"), rows_of("seeds_fp32")
    lines = [
        [
            name,
            *(value_of(ours[key][role]) for role in ("base", "control", "fine_tuned")),
            *(value_of(rows[key]["vs_base"]) for rows in (ours, clic)),
        ]
        for key, name in README.items()
    ]
    return table(["base", "control", "demo", "demo - base", "CLIC - base"], lines)


def clic() -> str:
    """CLIC's table."""
    return seeds_table("seeds_fp32", "CLIC", RELATIONS)


def relations() -> str:
    """The table of the recipe that asks for relations."""
    return seeds_table("seeds_relations_scenes_fp32", "SPARCL", RELATIONS)


def relation_shares() -> str:
    """What recipes gain over the base by the share of their weights, and what the gate says."""
    files = {
        "0.5": "seeds_relations_scenes_fp32",
        "0.6": "seeds_relations_scenes_share_06_fp32",
        "0.7": "seeds_relations_scenes_share_07_fp32",
        "0.55, 558 steps": "seeds_relations_scenes_558_fp32",
        "0.55, 6,000 scenes": "seeds_relations_scenes_6000_fp32",
    }
    names = {**RELATIONS, "retrieval/i2t_r5/raw": "R@5 image to text"}
    lines = [
        [name, *(value_of(rows_of(file)[key]["vs_base"]) for file in files.values())]
        for key, name in names.items()
    ]
    passed = [
        sum(all(check["passed"] for check in checks) for checks in stored(file)["gate"])
        for file in files.values()
    ]
    return table(files, [*lines, ["seeds that pass the gate", *map(str, passed)]])


def relation_lengths() -> str:
    """What more steps and more scenes gain over the base on validation scenes."""
    return validated("relations_length")


def methods_mixed() -> str:
    """What methods gain over the base on validation scenes, by the share of their weights."""
    return validated("methods_mixed")


def validated(file: str) -> str:
    """Differences from the base on validation scenes, a line a recipe and share."""
    found = stored(file)
    lines = [
        [f"{one['recipe']}, share {one['share']:g}", f"{one['seeds']}"]
        + [f"{value:+.1f}" for value in one["against_base"].values()]
        for one in found
    ]
    return table(["seeds", *found[0]["against_base"]], lines)


def methods() -> str:
    """All methods against the base, those that gain most in ITT first."""
    models = stored("methods")["models"]
    order = sorted(models, key=lambda name: -models[name][ITT]["fine_tuned"]["value"])
    order.remove("base")
    lines = []
    for name in ("base", *order):
        rows = [models[name][key] for key in METHODS]
        seeds = "" if name == "base" else f"{stored('methods')['seeds'][name]}"
        marked = [
            value_of(row["fine_tuned"])
            + ("*" if name != "base" and row["vs_base"]["p_holm"] < 0.05 else "")
            for row in rows
        ]
        lines.append([name, seeds, *marked])
    return table(["seeds", *METHODS.values()], lines)


def components() -> str:
    """FSC-CLIP's components."""
    names = {
        "control": "control (plain CLIP)",
        "NegCLIP": "NegCLIP",
        "global": "global loss",
        "local": "local loss",
        "global + local": "global + local",
        "global + local, focal": "... with focal weight",
        "global + local, smoothed": "... with label smoothing",
        "FSC-CLIP": "**FSC-CLIP** (all four)",
        "FSC-CLIP without local": "FSC-CLIP without the local loss",
    }
    return values_table([(stored("components")["against base"], COMMON)], names)


def component_claims() -> str:
    """What each of FSC-CLIP's components changes."""
    claims = (
        "the local loss in place of the global one",
        "the local loss beside the global one",
        "focal weight",
        "label smoothing",
        "both calibrations",
        "the local loss in FSC-CLIP",
    )
    return claims_table([(stored("components")["claims"], COMMON)], claims)


def counterfactuals() -> str:
    """SPARCL's components and the faults of images."""
    names = {
        "SigLIP fine-tuning": "SigLIP fine-tuning (control)",
        "SPARCL": "**SPARCL**",
        "no images": "without synthetic images",
        "no margin loss": "without the margin loss",
        "fixed margin": "one margin for all",
        "TripletCLIP": "TripletCLIP",
        "NegCLIP on the same texts": "NegCLIP on the same edited captions",
        "images from text alone": "SPARCL, images from text alone",
        "images in a foreign style": "SPARCL, images in a foreign style",
        "... with AdaIN": "... with AdaIN",
        "30% of the images wrong": "SPARCL, 30% of the images wrong",
        "... with a fixed margin": "... with one margin for all",
    }
    return values_table([(stored("counterfactuals")["against base"], OF_EDITS)], names)


def counterfactual_claims() -> str:
    """What each of SPARCL's components changes."""
    claims = (
        "synthetic images",
        "the images of TripletCLIP",
        "the margin loss",
        "adaptive margins",
        "adaptive margins, 30% of the images wrong",
        "faithful images (injection's end)",
        "faulty images against none",
        "AdaIN",
    )
    return claims_table([(stored("counterfactuals")["claims"], OF_EDITS)], claims)


def margin_claims() -> str:
    """SPARCL with edits whose things stand as in real scenes, and margins for the base's scale."""
    claims = ("SPARCL against the base", "SPARCL against the control", "margins at a quarter")
    return claims_table([(stored("counterfactuals_margins")["claims"], OF_EDITS)], claims)


def concepts() -> str:
    """C2LIP's components."""
    names = {
        "CLIP fine-tuning": "CLIP fine-tuning",
        "SigLIP fine-tuning": "SigLIP fine-tuning (control)",
        "+ npc": "+ noun-phrase loss",
        "C2LIP": "+ cross-attended loss: **C2LIP**",
        "C2LIP, lambda_xac 0.5": "... at a weight of 0.5, not 0.01",
        "C2LIP, phrases pooled from the caption's tokens": "... phrases pooled from the caption",
    }
    found = stored("concepts")
    return values_table([(found["against base"], OF_CONCEPTS)], names)


def concept_claims() -> str:
    """What each of C2LIP's components changes."""
    found = stored("concepts")
    return claims_table(
        [(found["claims"], OF_CONCEPTS)],
        (
            "the noun-phrase loss",
            "the cross-attended loss beside it",
            "a larger weight, 0.5",
            "phrases as texts of their own",
            "C2LIP against the control",
            "C2LIP against the base",
        ),
    )


def departures() -> str:
    """What training changes if it does as the authors' code."""
    return claims_table([(stored("departures")["theirs against ours"], COMMON)])


def hard_negatives() -> str:
    """What the methods' hard negatives change."""
    kinds = {"relation": "relation", "binding": "binding", "other": "other", "no negative": "none"}
    found = stored("relations")["data"]
    lines = [
        [name, *(value_of(row.get(kind, 0.0)) for kind in kinds)] for name, row in found.items()
    ]
    return table(kinds.values(), lines)


def searched(configurations: Mapping[str, tuple[str, str]]) -> str:
    """Configurations of the search for relations, on validation scenes.

    Args:
        configurations: question and name of each, by label.
    """
    found = stored("relations_search")
    lines = [["base", "", *(value_of(found["base"][key]) for key in OF_SEARCH), ""]]
    for label, (question, name) in configurations.items():
        row = found["questions"][question]["configurations"][name]
        mixed = [value_of(row["figures"]["0.7"][key][0]) for key in OF_SEARCH]
        unmixed = value_of(row["figures"]["1.0"]["i2t"][0])
        lines.append([label, f"{row['learnt at step'] or 'never'}", *mixed, unmixed])
    return table(["learnt at step", *OF_SEARCH.values(), "... unmixed"], lines)


def relation_causes() -> str:
    """What makes relations early or late."""
    return searched(CAUSES)


def relation_costs() -> str:
    """What the contrast and the scale keep of the base."""
    return searched(COSTS)


def relation_trials() -> str:
    """What else was tried."""
    return searched(TRIED)


def tuning() -> str:
    """Configured and tuned recipe of CLIC."""
    lines = []
    for key, name in TUNED.items():
        row = rows_of("tuning_confirmation")[key]
        values = [value_of(row[role]) for role in ("base", "control", "fine_tuned")]
        gain = row["vs_control"]
        lines.append([name, *values, value_of(gain), f"{gain['least_detectable']:.1f}"])
    return table(["base", "configured", "tuned", "tuned - configured", "least detectable"], lines)


TABLES: Mapping[str, Callable[[], str]] = {
    writer.__name__: writer
    for writer in (
        *(
            readme,
            clic,
            relations,
            relation_lengths,
            methods_mixed,
            relation_shares,
            methods,
            components,
            component_claims,
            counterfactuals,
        ),
        *(counterfactual_claims, margin_claims, concepts, concept_claims, hard_negatives, tuning),
        *(departures, relation_causes, relation_costs, relation_trials),
    )
}


def written(text: str) -> str:
    """A document with its tables and figures written anew.

    Raises:
        KeyError: there is no such table or figure.
    """
    text = _TABLE.sub(lambda found: f"{found[1]}{TABLES[found[2]]()}{found[4]}", text)
    return _FIGURE.sub(lambda found: f"{found[1]}{figure(found[2])}{found[4]}", text)


def unsupported(text: str) -> list[str]:
    """Lines of prose with a measured figure that is not written from a result."""
    text = _FIGURE.sub("", _TABLE.sub("", text))
    return [line for line in text.splitlines() if _MEASURED.search(_LEVEL.sub("", line))]


def main() -> None:
    """Write all documents."""
    for name in DOCUMENTS:
        path = ROOT / name
        path.write_text(written(path.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
