"""Figures in README.md and the pages of DOCUMENTS, from benchmarks/results and the code.

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

import structure

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"
DOCUMENTS = (
    "README.md",
    *(f"docs/explanation/{name}.md" for name in ("findings", "departures", "architecture")),
    "docs/reference/models.md",
)
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
TO_TEXT = "retrieval/i2t_r1/raw"

README = {
    ITT: "ITT, mean of five subtasks",
    TOT: "TOT, mean of five subtasks",
    RELATION: "replaced relations",
    "sugar_crepe/accuracy/swap_obj": "swapped objects",
    SWAPPED: "swapped attributes",
    ADDED: "added attributes",
    TO_TEXT: "R@1, image to text",
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
}
METHODS = {
    ITT: "ITT",
    TOT: "TOT",
    SWAPPED: "swapped attributes",
    RELATION: "replaced relations",
    ADDED: "added attributes",
    COLOURS: "zero-shot colours",
    TO_TEXT: "R@1 image to text",
}
# Columns of the studies of components.
OF_COMPONENTS = {
    "ITT": "ITT",
    "TOT": "TOT",
    "swapped attributes": "swapped attributes",
    "ZS colours": "zero-shot colours",
    "I2T R@1": "R@1 image to text",
}
OF_CONCEPTS = {
    "ITT": "ITT",
    "swapped attributes": "swapped attributes",
    "... phrase by phrase": "phrase by phrase",
    "ZS colours": "zero-shot colours",
    "I2T R@1": "R@1 image to text",
}
OF_SEARCH = {
    "replace_rel": "replaced relations",
    "swap_att": "swapped attributes",
    "itt": "ITT",
    "zs_colours": "zero-shot colours",
    "i2t": "R@1 image to text",
}
FIRST, SOFTMAX, SHARE = "Rows that ask first", "Softmax contrast", "Share of rows that ask"
# Labels of configurations: question and name in relations_search.json.
SEARCHED = {
    "**180 steps on rows that ask, then all**": (FIRST, "(reference)"),
    "a third of the rows asks, all along": (FIRST, "first 0"),
    "three quarters": (SHARE, "first 0, asking 0.75"),
    "no pair ranking": ("Ranking of a sample's own pairs", "pairs 0"),
    "no synthetic images": ("Synthetic images and rephrased captions", "images no"),
    "rate 0.004": ("Rate and its schedule", "rate 0.004"),
    "colour swaps too": ("Kinds of edits after the first phase", "kinds (1, 1, 1, 0)"),
    "softmax contrast": (SOFTMAX, "(reference)"),
    "softmax contrast, colour swaps too": (SOFTMAX, "kinds (1, 1, 1, 0)"),
    "... one edit a caption, 300 steps, scale 12, pair weight 0.5": (
        "300 steps, around the candidate",
        "pairs 0.5",
    ),
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


def claims_table(found: Mapping[str, Any], columns: Names, claims: Names | None = None) -> str:
    """What components change: differences between two rows of a study, all by default."""
    keys = {key.rpartition(" (")[0]: key for key in found}
    lines = [
        [label, *(value_of(found[keys[claim]][column]["vs_base"]) for column in columns)]
        for claim, label in (claims or dict(zip(keys, keys, strict=True))).items()
    ]
    return table(columns.values(), lines)


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


def methods() -> str:
    """All methods against the base, those that gain most in ITT first."""
    found = stored("methods")
    order = sorted(
        found["seeds"], key=lambda name: -found["models"][name][ITT]["fine_tuned"]["value"]
    )
    return methods_table([("base", found, "base"), *((name, found, name) for name in order)])


def methods_wise_ft() -> str:
    """Methods against the base, with weights that are mixed with the base's."""
    return cells_table("methods_wise_ft")


def methods_2025() -> str:
    """READ and LabCLIP beside the methods that they add to."""
    return cells_table("methods_2025")


def additions() -> str:
    """What READ adds to methods, over the same seeds."""
    pairs = {name: pair for name, pair in stored("methods_2025")["pairs"].items() if "READ" in name}
    lines = [[name, *(value_of(pair[key]) for key in METHODS)] for name, pair in pairs.items()]
    return table(METHODS.values(), lines)


def cells_table(file: str) -> str:
    """All cells of a set against the base."""
    found = stored(file)
    return methods_table([(name, found, name) for name in ("base", *found["seeds"])])


def methods_table(models: Iterable[tuple[str, Any, str]]) -> str:
    """Models by label, results of methods.py and name; a star marks a significant difference."""
    lines = []
    for label, found, name in models:
        rows = [found["models"][name][key] for key in METHODS]
        marked = [
            value_of(row["fine_tuned"])
            + ("*" if name != "base" and row["vs_base"]["p_holm"] < 0.05 else "")
            for row in rows
        ]
        lines.append([label, str(found["seeds"].get(name, "")), *marked])
    return table(["seeds", *METHODS.values()], lines)


def components() -> str:
    """What each of FSC-CLIP's components changes."""
    claims = {
        "the local loss in place of the global one": "local loss in place of the global one",
        "the local loss beside the global one": "local loss beside the global one",
        "focal weight": "focal weight",
        "label smoothing": "label smoothing",
        "both calibrations": "focal weight and label smoothing",
        "FSC-CLIP against the control": "FSC-CLIP against the control",
    }
    return claims_table(stored("components")["claims"], OF_COMPONENTS, claims)


def counterfactuals() -> str:
    """What each of SPARCL's components changes."""
    claims = {
        "SPARCL against the base": "SPARCL against the base",
        "synthetic images": "synthetic images",
        "the images of TripletCLIP": "synthetic images in TripletCLIP",
        "the margin loss": "margin loss",
        "adaptive margins": "adaptive margins",
        "adaptive margins, 30% of the images wrong": "adaptive margins, 30% of the images wrong",
        "faithful images (injection's end)": "images faithful to the original",
        "faulty images against none": "images from the text alone, against none",
        "AdaIN": "AdaIN on images in a foreign style",
    }
    return claims_table(stored("counterfactuals")["claims"], OF_COMPONENTS, claims)


def concepts() -> str:
    """What each of C2LIP's components changes."""
    claims = {
        "the noun-phrase loss": "noun-phrase loss",
        "the cross-attended loss beside it": "cross-attended loss beside it",
        "phrases as texts of their own": "phrases as texts of their own",
        "C2LIP against the control": "C2LIP against the control",
        "C2LIP against the base": "C2LIP against the base",
    }
    return claims_table(stored("concepts")["claims"], OF_CONCEPTS, claims)


def departures() -> str:
    """What training changes if it does as the authors' code."""
    return claims_table(stored("departures")["theirs against ours"], OF_COMPONENTS)


def hard_negatives() -> str:
    """What the methods' hard negatives change."""
    kinds = {"relation": "relation", "binding": "binding", "other": "other", "no negative": "none"}
    found = stored("relations")["data"]
    lines = [
        [name, *(value_of(row.get(kind, 0.0)) for kind in kinds)] for name, row in found.items()
    ]
    return table(kinds.values(), lines)


def relation_search() -> str:
    """What makes relations early or late, and what keeps the base's abilities."""
    found = stored("relations_search")
    lines = [["base", "", *(value_of(found["base"][key]) for key in OF_SEARCH), ""]]
    for label, (question, name) in SEARCHED.items():
        row = found["questions"][question]["configurations"][name]
        mixed = [value_of(row["figures"]["0.7"][key][0]) for key in OF_SEARCH]
        unmixed = value_of(row["figures"]["1.0"]["i2t"][0])
        lines.append([label, f"{row['learnt at step'] or 'never'}", *mixed, unmixed])
    return table(["learnt at step", *OF_SEARCH.values(), "... unmixed"], lines)


def photos() -> str:
    """Minutes from a folder of photos to a registered model."""
    lines = []
    for one in stored("photos"):
        processor = one["machine"].rpartition("(")[2].rstrip(")")
        counts = [str(one[key]) for key in ("photos", "captions", "minutes")]
        lines.append([f"{one['cores']} cores, {processor}", *counts])
    return table(["photos", "captions", "minutes"], lines)


def bases() -> str:
    """What people start from: size, cost, and what fits."""
    heads = ["parameters", "GFLOPs of an image", "of a text", "tokens", "transformers", "not for"]
    lines = []
    for one in stored("bases"):
        numbers = [f"{one['parameters'][1]:.0f} M", *(f"{each:.0f}" for each in one["gflops"])]
        cells = [*numbers, str(one["tokens"]), one["transformers"] or "no"]
        unfit = ", ".join(one["misfits"]) or "-"
        lines.append(
            [f"`{one['name']}`", *cells, unfit]
            if not one["problem"]
            else [f"`{one['name']}`", *["?"] * len(heads)]
        )
    return table(heads, lines)


def house() -> str:
    """The packages by floor: each imports from floors below its own."""
    floors = structure.house(structure.arrows_between_rooms(structure.import_graph(ROOT)))
    lines = [
        [f"floor {level}", ", ".join(f"`{room}`" for room in floors[level - 1])]
        for level in range(len(floors), 0, -1)
    ]
    return table(["rooms"], lines)


TABLES: Mapping[str, Callable[[], str]] = {
    writer.__name__: writer
    for writer in (
        *(readme, clic, components, counterfactuals, methods, methods_wise_ft),
        *(methods_2025, additions),
        *(hard_negatives, relation_search, relations, concepts),
        *(departures, photos, bases, house),
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
