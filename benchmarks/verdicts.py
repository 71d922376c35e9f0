"""The README's image: a few test scenes, their true and false captions, and each model's verdict.

    python benchmarks/verdicts.py data/07_model_output/scenes/clic/default/seed=0/scores.parquet

Takes the first items of each kind (mended, still wrong, broken) in the order of the benchmark's
files, so nothing is picked by eye. Writes docs/images/verdicts.png.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import matplotlib.pyplot as plt
import pyarrow.parquet as pq
from PIL import Image

from compo_pipeline.storage.records import Score, from_table

BENCHMARKS = Path("data/01_raw/scenes/benchmarks/test")
SHOWN = (
    ("swap_att", (False, True), 3),
    ("replace_rel", (False, True), 1),
    ("swap_obj", (False, False), 1),
    ("add_att", (True, False), 1),
)
MARKS = {True: ("right", "#1b7f3b"), False: ("wrong", "#b3261e")}


def main() -> None:
    """Draw the figure."""
    verdicts: dict[tuple[str, str], dict[str, bool | None]] = {}
    for score in from_table(pq.read_table(sys.argv[1]), Score):
        if score.benchmark == "sugar_crepe":
            verdicts.setdefault((score.subtask, score.item), {})[score.model] = score.correct
    chosen = []
    for subtask, (base, clic), count in SHOWN:
        found = [
            (subtask, item)
            for (task, item), said in verdicts.items()
            if task == subtask and (said["base"], said["clic"]) == (base, clic)
        ]
        chosen += found[:count]
    figure, axes = plt.subplots(2, 3, figsize=(10.5, 7.4))
    for axis, (subtask, item) in zip(axes.flat, chosen, strict=True):
        path = BENCHMARKS / "sugar_crepe" / f"{subtask}.json"
        asked = json.loads(path.read_text(encoding="utf-8"))[item]
        axis.imshow(Image.open(BENCHMARKS / "images" / asked["filename"]))
        axis.set_axis_off()
        said = verdicts[subtask, item]
        lines = [
            ("true", asked["caption"], "#222222"),
            ("false", asked["negative_caption"], "#222222"),
        ]
        for model, name in (("base", "base"), ("clic", "CLIC")):
            word, colour = MARKS[bool(said[model])]
            lines.append((name, word, colour))
        for place, (name, text, colour) in enumerate(lines):
            axis.text(
                *(0.5, -0.05 - 0.09 * place),
                f"{name}: {text}",
                color=colour,
                ha="center",
                va="top",
                transform=axis.transAxes,
                fontsize=8.5,
                weight="bold" if place > 1 else "normal",
            )
    figure.subplots_adjust(0.04, 0.13, 0.96, 0.98, hspace=0.5, wspace=0.35)
    Path("docs/images").mkdir(parents=True, exist_ok=True)
    figure.savefig("docs/images/verdicts.png", dpi=110)


if __name__ == "__main__":
    main()
