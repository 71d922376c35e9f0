"""The search for a recipe of relations, as a table of results, a page and a picture of curves.

    python benchmarks/relations_results.py data/relations_search.jsonl

Reads trainings that benchmarks/relations_search.py wrote and groups them by the plan's questions.
Writes benchmarks/results/relations_search.json and .md, and docs/images/relations_curves.png.
"""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt

from relations_search import WATCHED, Recipe, planned, recipe

RESULTS, PICTURE = Path("benchmarks/results"), Path("docs/images/relations_curves.png")
SHARES = ("0.6", "0.7", "0.8", "1.0")
SHOWN = "0.7"
REFERENCE = "(reference)"
FIGURES = {
    "replace_rel": "replaced relations",
    "swap_obj": "swapped objects",
    "swap_att": "swapped attributes",
    "add_att": "added attributes",
    "itt": "ITT",
    "tot": "TOT",
    "zs_colours": "zero-shot colours",
    "i2t": "R@1 image to text",
    "t2i": "R@1 text to image",
}
# Of the base: the share 0.
BASE = {
    "replace_rel": 50.0,
    "swap_obj": 52.4,
    "swap_att": 71.7,
    "add_att": 84.5,
    "itt": 58.5,
    "tot": 42.2,
    "zs_colours": 90.6,
    "i2t": 83.6,
    "t2i": 81.0,
}
BY_SAMPLES = "Batch, as many samples"
LEARNT = 75.0  # accuracy of replaced relations from which they count as learnt
# By title of a panel and label of a curve: question, and the configuration's place in it.
PANELS: Mapping[str, Mapping[str, tuple[str, int]]] = {
    "Steps on rows that ask, before all rows": {
        "0": ("Rows that ask first", 1),
        "60": ("Rows that ask first", 2),
        "120": ("Rows that ask first", 3),
        "180": ("Rows that ask first", 0),
        "240": ("Rows that ask first", 4),
    },
    "Share of rows that ask, all along": {
        "a third": ("Rows that ask first", 1),
        "half": ("Share of rows that ask", 1),
        "three quarters": ("Share of rows that ask", 2),
        "all": ("Share of rows that ask", 3),
    },
    "Weight of the pair ranking": {
        "0": ("Ranking of a sample's own pairs", 1),
        "0.3": ("Ranking of a sample's own pairs", 2),
        "1": ("Ranking of a sample's own pairs", 0),
        "3": ("Ranking of a sample's own pairs", 3),
    },
    "Synthetic pairs": {
        "all": ("Synthetic images and rephrased captions", 0),
        "no rephrased captions": ("Synthetic images and rephrased captions", 2),
        "no synthetic images": ("Synthetic images and rephrased captions", 1),
        "real pairs alone": ("Synthetic images and rephrased captions", 3),
    },
    "Contrast": {
        "sigmoid": ("Rows that ask first", 0),
        "softmax": ("Softmax contrast", 0),
        "sigmoid, no pair ranking": ("Ranking of a sample's own pairs", 1),
        "softmax, no pair ranking": ("Softmax contrast", 2),
    },
    "Rate": {
        "0.001": ("Rate and its schedule", 1),
        "0.002": ("Rate and its schedule", 0),
        "0.003": ("Rate and its schedule", 3),
        "0.004": ("Rate and its schedule", 4),
    },
    BY_SAMPLES: {
        "64, rate 0.002": ("Batch", 9),
        "128, rate 0.002": ("Batch", 0),
        "256, rate 0.004": ("Batch", 3),
        "512, rate 0.004": ("Batch", 5),
    },
    "Scale of the logits": {
        "12": ("Scale, bias and weight of the contrast", 1),
        "18": ("Scale, bias and weight of the contrast", 2),
        "25 (base)": ("Scale, bias and weight of the contrast", 0),
        "50": ("Scale, bias and weight of the contrast", 4),
    },
    "Edits of a caption": {
        "one, pair ranking": ("Softmax contrast, one edit a caption", 1),
        "one": ("Softmax contrast, one edit a caption", 0),
        "drawn anew, margin loss": ("Softmax contrast, one edit a caption", 23),
        "drawn anew": ("Softmax contrast, one edit a caption", 22),
    },
}

Run = Mapping[str, Any]


def by_recipe(path: Path) -> dict[Recipe, list[Run]]:
    """Trainings of each configuration."""
    found = defaultdict(list)
    for line in path.read_text(encoding="utf-8").splitlines():
        run = json.loads(line)
        found[recipe(run["recipe"])].append(run)
    return found


def summary(runs: Sequence[Run]) -> dict[str, Any]:
    """Mean, least and most of each figure by share of the tuned weights, and the mean curve."""
    curves = [run["curve"] for run in runs]
    curve = {"step": [point["step"] for point in curves[0]]}
    for task in WATCHED:
        at = zip(*([point[task] for point in one] for one in curves), strict=True)
        curve[task] = [_mean(values) for values in at]
    figures = {
        share: {name: _spread([run["figures"][share][name] for run in runs]) for name in FIGURES}
        for share in SHARES
    }
    return {
        "seeds": sorted(run["seed"] for run in runs),
        "learnt at step": learnt(curve),
        "figures": figures,
        "curve": curve,
    }


def learnt(curve: Mapping[str, Sequence[Any]]) -> int | None:
    """The first step with an accuracy at which replaced relations count as learnt."""
    pairs = zip(curve["step"], curve["replace_rel"], strict=True)
    return next((step for step, value in pairs if value >= LEARNT), None)


def _mean(values: Iterable[float]) -> float:
    found = list(values)
    return round(sum(found) / len(found), 1)


def _spread(values: Sequence[float]) -> list[float]:
    return [_mean(values), round(min(values), 1), round(max(values), 1)]


def changed(one: Recipe, other: Recipe) -> dict[str, Any]:
    """The values of a configuration that differ from another's."""
    names = [field.name for field in fields(Recipe)]
    return {name: value for name in names if (value := getattr(one, name)) != getattr(other, name)}


def phrase(changes: Mapping[str, Any]) -> str:
    """Changed values in words."""
    return ", ".join(f"{k.replace('_', ' ')} {_word(v)}" for k, v in changes.items()) or REFERENCE


def _word(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:g}"
    return "as it is" if value is None else f"{value}"


def page(content: Mapping[str, Any]) -> str:
    """All configurations by question."""
    lines = [
        f"{content['configurations']} configurations, {content['trainings']} trainings, on "
        "validation scenes: per cent, mean over seeds, of weights "
        f"{SHOWN} of the way from the base. *Learnt at*: the step from which replaced relations "
        f"stand at {LEARNT:.0f} in the mean curve. The shares 0.6, 0.8 and 1, least and most of "
        "the seeds, and the curves are in [relations_search.json](relations_search.json).",
        "",
        "The first reference, of which the other configurations change a value or more: "
        f"{phrase(vars(Recipe()))}.",
        "",
        "`first`: steps on rows whose edit asks for a relation, before all rows. `kinds`: odds of "
        "the edits afterwards (replaced relation, exchanged things, exchanged colours, any). "
        "`asking`: share of rows that ask, afterwards. `fixed`: one edit a caption, drawn once. "
        "`several`: no scenes of one thing. Others: `Recipe` in "
        "[relations_search.py](../relations_search.py).",
        "",
        "![Replaced relations by step](../../docs/images/relations_curves.png)",
    ]
    heads = ["configuration", "seeds", "learnt at", *FIGURES.values()]
    base = ["base", "", "", *(f"{BASE[name]:.1f}" for name in FIGURES)]
    for question, part in content["questions"].items():
        common = f"All: {phrase(part['common'])}." if part["common"] else ""
        lines += ["", f"## {question}", "", *([common, ""] if common else [])]
        lines += [_line(heads), _line(["---"] * len(heads)), _line(base)]
        for name, row in part["configurations"].items():
            step = row["learnt at step"]
            figures = row["figures"][SHOWN]
            values = [f"{figures[name][0]:.1f}" for name in FIGURES]
            cells = [name, f"{len(row['seeds'])}", f"{step or 'never'}"]
            lines.append(_line([*cells, *values]))
    return "\n".join(lines) + "\n"


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def draw(content: Mapping[str, Any]) -> None:
    """Replaced relations by step, a panel a question."""
    figure, axes = plt.subplots(3, 3, figsize=(12, 9.6), sharey=True, layout="constrained")
    for axis, (title, curves) in zip(axes.flat, PANELS.items(), strict=True):
        for place, (label, (question, index)) in enumerate(curves.items()):
            row = list(content["questions"][question]["configurations"].values())[index]
            samples = row["changes"].get("batch", Recipe().batch) / 1000
            at = [step * samples if title == BY_SAMPLES else step for step in row["curve"]["step"]]
            colour = plt.get_cmap("viridis")(0.9 * place / (len(curves) - 1))
            axis.plot(at, row["curve"]["replace_rel"], label=label, color=colour, linewidth=1.8)
        axis.axhline(50, color="grey", linewidth=0.8, linestyle=":")
        axis.set(title=title, ylim=(40, 100))
        axis.set_xlabel("samples, thousands" if title == BY_SAMPLES else "step")
        axis.legend(fontsize=8, frameon=False, loc="best", handlelength=1.2)
        axis.spines[["top", "right"]].set_visible(False)
    for axis in axes[:, 0]:
        axis.set_ylabel("replaced relations, per cent")
    figure.savefig(PICTURE, dpi=100)


def main() -> None:
    """Summarise, write, draw."""
    runs = by_recipe(Path(sys.argv[1]))
    questions = {}
    for question, recipes, _ in planned():
        common = changed(_shared(recipes), Recipe())
        reference = recipe(common)
        questions[question] = {
            "common": common,
            "configurations": {
                phrase(changes): {"changes": changes, **summary(runs[one])}
                for one in recipes
                for changes in [changed(one, reference)]
            },
        }
    content = {
        "configurations": len(runs),
        "trainings": sum(len(some) for some in runs.values()),
        "base": BASE,
        "questions": questions,
    }
    RESULTS.mkdir(parents=True, exist_ok=True)
    written = json.dumps(content, separators=(",", ":")).replace('"curve":', '\n"curve":')
    (RESULTS / "relations_search.json").write_text(f"{written}\n", encoding="utf-8")
    (RESULTS / "relations_search.md").write_text(page(content), encoding="utf-8")
    draw(content)


def _shared(recipes: Sequence[Recipe]) -> Recipe:
    """The first configuration's values, where all others have them or none is the reference."""
    first = recipes[0]
    if all(len(changed(one, first)) <= 2 for one in recipes):
        return first
    names = [
        name for name in changed(first, Recipe()) if len({getattr(r, name) for r in recipes}) == 1
    ]
    return recipe({name: getattr(first, name) for name in names})


if __name__ == "__main__":
    main()
