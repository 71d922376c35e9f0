"""Page of a WiSE-FT sweep: which ratio to take, the trade-off plot, and the metrics by ratio."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import pandas as pd

from compo_pipeline.benchmarks.items import Role
from compo_pipeline.evaluation.analysis.wise_ft import COMPOSITION, MEANS, best_ratio
from compo_pipeline.evaluation.roles import ROLE_LABELS
from compo_pipeline.pages.pages import Cell, Link, Page, Table, Text, interval
from compo_pipeline.pages.plots import scatter

PAGE, BY_RATIO = "wise_ft.html", "Metrics by ratio"

# What a row was measured on: the column `measured_on`.
REPORTED, VALIDATION = "reported", "validation"

# The first of these that was scored is on the vertical axis: what fine-tuning improves. The others
# are what it may cost, on the horizontal ones.
_AXES: tuple[Role, ...] = (COMPOSITION, "zero_shot", "retrieval")


def wise_ft_page(
    frame: pd.DataFrame, facts: Mapping[str, str], links: Sequence[Link], command: str
) -> Page:
    """The page with the metrics of each ratio of base and fine-tuned weights.

    Args:
        frame: table that `wise_ft.sweep` returns, with the column `measured_on`.
        facts: about the run.
        links: related pages.
        command: command that makes a missing page, with NAME for the pipeline.
    """
    reported = frame[frame.measured_on == REPORTED]
    shown = reported[reported.headline | (reported.benchmark == MEANS)]
    ratios = sorted(reported.ratio.unique())
    found = {(row["label"], row["ratio"]): row for row in shown.to_dict("records")}

    def cell(row: Mapping[Hashable, Any]) -> Cell:
        return Cell(row["value"], row["significance"], _against_base(row) if row["ratio"] else "")

    table = Table(
        ["metric", *(f"{ratio:g}" for ratio in ratios)],
        [
            [label, *(cell(found[label, ratio]) for ratio in ratios)]
            for label in dict.fromkeys(shown.label)
        ],
        title=BY_RATIO,
        note="Per cent, with the paired difference from the base and its 95% interval. Green is "
        "above the base and red below it, where the difference is significant at 5% after "
        "Holm's correction over all metrics and ratios.",
    )
    means = means_by_ratio(reported)
    roles = reported[reported.benchmark == MEANS]
    sets = dict(zip(roles["name"], roles["sets"], strict=True))
    note = "Each point is a ratio, the square the base; each axis is the mean of its sets."
    note += "".join(f" {ROLE_LABELS[role]}: {sets[role]}." for role in map(str, means))
    means = means.rename(columns=ROLE_LABELS)
    sections = [
        *scatter(means, "trade_off.png", list(means.index[:1]), title="The trade-off", note=note),
        table,
        Text(
            "All metrics are in `figures.csv` beside this page. A run with `--params "
            "training.wise_ft.ratio=0.5` stores the model at that ratio."
        ),
    ]
    summary = [
        f"{describe_choice(frame)}.",
        "The figure and the tables are of the reported items, which choose nothing.",
    ]
    over = "WiSE-FT: weights between the base (ratio 0) and the fine-tuned model (ratio 1)"
    return Page("Between base and fine-tuned", over, sections, summary, facts, links, command)


def describe_choice(frame: pd.DataFrame) -> str:
    """A sentence on the WiSE-FT ratio chosen on the validation items, or why there is none.

    Args:
        frame: table that `wise_ft.sweep` returns, with the column `measured_on`.
    """
    validation, reported = (frame[frame.measured_on == one] for one in (VALIDATION, REPORTED))
    best = best_ratio(validation)
    if best is None:
        why = "none is better at composition with no headline metric below the base"
        if validation.empty:
            why = "there are none (tuning.benchmarks names them)"
        elif _role_means(validation, COMPOSITION).empty:
            why = "no set of composition is among them"
        return f"No ratio is chosen on the validation items: {why}"
    sentence = (
        f"Ratio {best.ratio:g}, chosen on the validation items: there it is "
        f"{best.against_base:.1f} points better at composition than the base, and no headline "
        "metric has its 95% interval below the base"
    )
    means = _role_means(reported, COMPOSITION)
    for row in means[means.ratio == best.ratio].to_dict("records"):
        sentence += f". On the reported items its composition is {_against_base(row)}"
    return sentence


def _against_base(row: Mapping[Hashable, Any]) -> str:
    """The difference from the base in a row of a sweep, with its interval."""
    ends = interval(row["against_base_low"], row["against_base_high"], "+.1f")
    return f"{row['against_base']:+.1f} {ends}"


def _role_means(frame: pd.DataFrame, role: str) -> pd.DataFrame:
    """Rows of a WiSE-FT sweep with the mean over a benchmark role's sets."""
    return frame[(frame.benchmark == MEANS) & (frame.name == role)]


def means_by_ratio(frame: pd.DataFrame) -> pd.DataFrame:
    """Table of means in per cent: a row per WiSE-FT ratio, a column per benchmark role.

    Args:
        frame: table that `wise_ft.sweep` returns, of the reported or of the validation items.
    """
    means = frame[frame.benchmark == MEANS].pivot(index="ratio", columns="name", values="value")
    return means[[role for role in _AXES if role in means]]
