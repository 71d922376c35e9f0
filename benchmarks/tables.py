"""What studies say in the end: arms against the base, claims tested, as tables and as JSON.

Differences are paired on the same items; intervals are over seeds and images.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from compo_pipeline.benchmarks.averages import Key
from compo_pipeline.evaluation.comparison import Row, compare
from compo_pipeline.storage.records import Score

RESULTS = Path(__file__).parent / "results"
BASE = "base"

Figures = Mapping[Key, str]
"""The figures that a study shows: (benchmark, metric, name) to the column's head."""

COMMON: Figures = {
    ("sugar_crepe_pp", "itt", "average"): "ITT",
    ("sugar_crepe_pp", "tot", "average"): "TOT",
    ("zero_shot", "top1", "colours"): "ZS colours",
    ("zero_shot", "top1", "things"): "ZS things",
    ("retrieval", "i2t_r1", "raw"): "I2T R@1",
    ("retrieval", "t2i_r1", "raw"): "T2I R@1",
}
"""What every study shows beside figures of its own."""

Claims = Mapping[str, tuple[str, str]]
"""What is claimed, and the two arms that it compares: ours, theirs."""

Compared = dict[str, dict[str, Row]]
"""Comparisons by what is compared, each with a row for every figure by its column's head."""


def against_base(
    seeds: Sequence[Sequence[Score]], names: Iterable[str], figures: Figures
) -> Compared:
    """Each arm against the base."""
    return {name: _differences(seeds, name, BASE, figures) for name in names}


def tested(seeds: Sequence[Sequence[Score]], claims: Claims, figures: Figures) -> Compared:
    """The two arms of each claim against each other."""
    return {
        f"{claim} ({ours} - {theirs})": _differences(seeds, ours, theirs, figures)
        for claim, (ours, theirs) in claims.items()
    }


def _differences(
    seeds: Sequence[Sequence[Score]], ours: str, theirs: str, figures: Figures
) -> dict[str, Row]:
    rows = compare(seeds, {theirs: theirs, ours: ours}, [(ours, theirs)], {})
    found = {(row.benchmark, row.metric, row.name): row for row in rows}
    return {label: found[key] for key, label in figures.items()}


def values(compared: Compared, digits: int = 1) -> list[list[str]]:
    """Lines of a table: the base's figures and each arm's."""
    first = next(iter(compared.values()))
    return [
        [BASE, *(f"{row.values[BASE].value:.{digits}f}" for row in first.values())],
        *(
            [name, *(f"{row.estimate.value:.{digits}f}" for row in rows.values())]
            for name, rows in compared.items()
        ),
    ]


def differences(compared: Compared, digits: int = 1) -> list[list[str]]:
    """Lines of a table: differences with their intervals."""
    return [
        [name, *(row.difference.format(digits) for row in rows.values())]
        for name, rows in compared.items()
    ]


def least_detectable(compared: Compared, digits: int = 1) -> list[str]:
    """The last line of a table of differences: the largest of each column."""
    columns = zip(*(rows.values() for rows in compared.values()), strict=True)
    return [
        "least detectable",
        *(
            f"{max(row.difference.least_detectable for row in column):.{digits}f}"
            for column in columns
        ),
    ]


def stored(row: Row, ours: str, control: str | None = None) -> dict[str, Any]:
    """A row as the results have it: one model against the first, and perhaps against a control."""
    found = dataclasses.asdict(row)
    values, pairs = found.pop("values"), found.pop("differences")
    base = next(iter(values))
    named = {"base": base, "control": control, "fine_tuned": ours}
    for name, model in named.items():
        found[name] = values.get(model)
    for name, model in (("vs_base", base), ("vs_control", control)):
        both = {"model": ours, "against": model}
        found[name] = next((each for each in pairs if both.items() <= each.items()), None)
    return found


def table(head: Iterable[str], lines: Iterable[Sequence[str]]) -> list[str]:
    """Lines of a markdown table whose first column has no head."""
    heads = ["", *head]
    return [
        f"| {' | '.join(heads)} |",
        f"|{' --- |' * len(heads)}",
        *(f"| {' | '.join(line)} |" for line in lines),
        "",
    ]


def introduction(seeds: int) -> list[str]:
    """What a reader of the tables must know."""
    return [
        f"{seeds} training seeds; per cent; 95% intervals over seeds and "
        "images; differences paired on the same items. `least detectable` is the largest "
        "of its column.",
        "",
    ]


def conclude(
    name: str,
    split: str,
    seeds: Sequence[Sequence[Score]],
    names: Iterable[str],
    claims: Claims,
    figures: Figures,
) -> None:
    """Write values, differences to the base and the claims that can be tested.

    Args:
        name: of the files.
        split: whose questions were asked.
        seeds: the scores of each.
        names: of the arms.
        claims: by what is claimed; one that needs an arm that is not there is left out.
        figures: the columns.
    """
    names, heads = list(names), list(figures.values())
    told = {claim: pair for claim, pair in claims.items() if {*pair} <= {BASE, *names}}
    rows, tests = against_base(seeds, names, figures), tested(seeds, told, figures)
    lines = [*introduction(len(seeds)), *table(heads, values(rows))]
    for title, compared in (
        ("Difference to the base:", rows),
        ("What each part changes:", tests),
    ):
        moved = [*differences(compared), least_detectable(compared)]
        lines += [title, "", *table(heads, moved)] if compared else []
    content = {"seeds": len(seeds), "against base": plain(rows), "claims": plain(tests)}
    save(name, split, content, lines)


def plain(compared: Compared) -> dict[str, dict[str, Any]]:
    """Comparisons as JSON holds them."""
    return {
        name: {label: stored(row, row.difference.model) for label, row in rows.items()}
        for name, rows in compared.items()
    }


def save(name: str, split: str, content: Mapping[str, Any], lines: Iterable[str]) -> None:
    """Write <name>.json and <name>.md; what is of the validation scenes says so."""
    name = name if split == "test" else f"{name}_{split}"
    RESULTS.mkdir(parents=True, exist_ok=True)
    (RESULTS / f"{name}.json").write_text(json.dumps(content, indent=1), encoding="utf-8")
    (RESULTS / f"{name}.md").write_text("\n".join(lines), encoding="utf-8")
