"""Figures in README.md and docs/findings.md, written from benchmarks/results.

    python benchmarks/documents.py

What is between `<!-- results: <name> -->` and `<!-- /results -->` is written by the function of
that name below; a test compares the committed files with what this script writes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"
DOCUMENTS = ("README.md", "docs/findings.md")
_MARKED = re.compile(r"(<!-- results: (\w+) -->)(.*?)(<!-- /results -->)", re.DOTALL)

Rows = Mapping[str, Mapping[str, Any]]
"""Rows of a comparison, by `benchmark/metric/name`."""

DEMO = {
    "sugar_crepe_pp/itt/average": "SugarCrepe++-style ITT, mean of five",
    "sugar_crepe_pp/tot/average": "SugarCrepe++-style TOT, mean of five",
    "sugar_crepe/accuracy/average": "SugarCrepe-style accuracy, mean of seven",
    "sugar_crepe/accuracy/swap_att": "... swapped attributes",
    "sugar_crepe/accuracy/replace_rel": "... replaced relations",
    "sugar_crepe/accuracy/add_att": "... added attributes",
    "retrieval/i2t_r1/raw": "retrieval R@1, image to text",
    "retrieval/t2i_r1/raw": "retrieval R@1, text to image",
    "zero_shot/top1/colours": "zero-shot colours",
}
RELATIONS = {
    "sugar_crepe/accuracy/replace_rel": "replaced relations",
    "sugar_crepe/accuracy/swap_obj": "swapped objects",
    "sugar_crepe/accuracy/swap_att": "swapped attributes",
    "sugar_crepe/accuracy/add_att": "added attributes",
    "sugar_crepe_pp/itt/average": "ITT, mean of five",
    "sugar_crepe_pp/tot/average": "TOT, mean of five",
    "zero_shot/top1/colours": "zero-shot colours",
    "retrieval/i2t_r1/raw": "R@1 image to text",
    "retrieval/t2i_r1/raw": "R@1 text to image",
}


def rows_of(file: str) -> Rows:
    """The rows that `seeds.py` stored."""
    content = json.loads((RESULTS / file).read_text(encoding="utf-8"))
    return {f"{row['benchmark']}/{row['metric']}/{row['name']}": row for row in content["rows"]}


def difference(found: Mapping[str, float]) -> str:
    """A difference with its interval."""
    return f"{found['value']:+.1f} [{found['low']:+.1f}, {found['high']:+.1f}]"


def seeds_table(file: str, label: str, names: Mapping[str, str]) -> str:
    """Base, control and method side by side, and the method's differences from both."""
    lines = [
        f"| | base | control | {label} | {label} - base (5 seeds) | {label} - control (5 seeds) |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    rows = rows_of(file)
    for key, name in names.items():
        row = rows[key]
        base, control, ours = (row[role]["value"] for role in ("base", "control", "fine_tuned"))
        shown = f"{ours:.1f}"
        if row["vs_base"]["low"] > 0 and row["vs_control"]["low"] > 0:
            shown = f"**{shown}**"
        cells = [f"{base:.1f}", f"{control:.1f}", shown]
        cells += [difference(row["vs_base"]), difference(row["vs_control"])]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(["", *lines, ""])


def demo() -> str:
    """The demo's table."""
    return seeds_table("seeds_fp32.json", "CLIC", DEMO)


def relations() -> str:
    """The table of the recipe that asks for relations."""
    return seeds_table("seeds_relations_scenes_fp32.json", "SPARCL", RELATIONS)


def relations_line() -> str:
    """The same recipe in one line."""
    rows = rows_of("seeds_relations_scenes_fp32.json")
    parts = [
        f"{name} {difference(rows[key]['vs_base'])}"
        for key, name in (
            ("sugar_crepe/accuracy/replace_rel", "replaced relations"),
            ("sugar_crepe/accuracy/swap_obj", "swapped objects"),
            ("sugar_crepe/accuracy/swap_att", "swapped attributes"),
            ("sugar_crepe_pp/itt/average", "ITT"),
            ("sugar_crepe_pp/tot/average", "TOT"),
            ("zero_shot/top1/colours", "zero-shot colours"),
        )
    ]
    control = rows["sugar_crepe/accuracy/replace_rel"]["control"]["value"]
    return f"{', '.join(parts)}; a plain control has {control:.1f}% of replaced relations right"


WRITERS: Mapping[str, Callable[[], str]] = {
    writer.__name__: writer for writer in (demo, relations, relations_line)
}


def written(text: str) -> str:
    """A document with its marked parts written anew.

    Raises:
        KeyError: a marked part has a name that no writer has.
    """
    return _MARKED.sub(lambda found: f"{found[1]}{WRITERS[found[2]]()}{found[4]}", text)


def main() -> None:
    """Write all documents."""
    for name in DOCUMENTS:
        path = ROOT / name
        path.write_text(written(path.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
