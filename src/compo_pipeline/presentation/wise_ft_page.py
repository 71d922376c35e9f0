"""Page of a WiSE-FT sweep: which ratio to take, the trade-off plot, and the metrics by ratio."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import matplotlib as mpl
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap, to_hex
from matplotlib.figure import Figure
from rich.console import Console

from compo_pipeline.evaluation.conclusions import MAIN_METRICS
from compo_pipeline.presentation import pages
from compo_pipeline.presentation.plots import COLOURS, STYLE, THEME, save
from compo_pipeline.run.console import table as plain_table
from compo_pipeline.run.console import terminal

PAGE = "wise_ft.html"


class TradeOffAxis(NamedTuple):
    """A quantity of the trade-off: the mean over some metrics of a benchmark.

    `name` selects an average or a subtask; None is the mean over all subtasks.
    """

    key: str
    label: str
    benchmark: str
    metrics: tuple[str, ...]
    name: str | None = None

    def rows(self, frame: pd.DataFrame) -> pd.DataFrame:
        """Its rows among those of `wise_ft.RatioResult`."""
        wanted = (frame.benchmark == self.benchmark) & frame.metric.isin(self.metrics)
        return frame[wanted if self.name is None else wanted & (frame.name == self.name)]

    def title(self, frame: pd.DataFrame) -> str:
        """Its label; an average has the label of its rows, which names the benchmark's variant."""
        if self.name is None:
            return self.label
        return str(self.rows(frame).label.iloc[0]).removesuffix(f" {self.name}")


# What fine-tuning improves, on the vertical axes, and what it may cost, on the horizontal ones.
COMPOSITIONALITY = (
    TradeOffAxis("sugar_crepe", "SugarCrepe", "sugar_crepe", ("accuracy",), "average"),
    TradeOffAxis("sugar_crepe_pp_itt", "SugarCrepe++ ITT", "sugar_crepe_pp", ("itt",), "average"),
    TradeOffAxis("sugar_crepe_pp_tot", "SugarCrepe++ TOT", "sugar_crepe_pp", ("tot",), "average"),
)
KNOWLEDGE = (
    TradeOffAxis("zero_shot", "Zero-shot top-1", "zero_shot", ("top1",)),
    TradeOffAxis("retrieval_r1", "Retrieval R@1, both ways", "retrieval", ("i2t_r1", "t2i_r1")),
)

# Marker, size and label of the two ends of the line.
_ENDS = {0.0: ("s", 34, "base"), 1.0: ("D", 30, "fine-tuned")}


def write(
    frame: pd.DataFrame,
    plot: str,
    facts: Mapping[str, str],
    links: Sequence[pages.Link],
    folder: Path,
) -> Path:
    """Write `wise_ft.html`.

    Args:
        frame: rows of `wise_ft.RatioResult`.
        plot: the trade-off as SVG; empty if none could be drawn.
        facts: about the run.
        links: related pages.
        folder: for the page.
    """
    headlines = frame[frame.headline]
    context = {
        "title": "Between base and fine-tuned",
        "facts": facts,
        "links": links,
        "sentence": recommendation(frame),
        "plot": plot,
        "ratios": sorted(frame.ratio.unique()),
        "labels": list(dict.fromkeys(headlines.label)),
        "cells": {(row.label, row.ratio): row for row in headlines.itertuples()},
    }
    return pages.write(folder / PAGE, PAGE, context)


def recommendation(frame: pd.DataFrame) -> str:
    """The ratio with the largest significant gain in composition at which no headline metric has
    an interval below the base, corrected or not.

    Args:
        frame: rows of `wise_ft.RatioResult`.
    """
    keys = list(zip(frame.benchmark, frame.metric, frame.name, strict=True))
    main = next((key for key in MAIN_METRICS if key in keys), None)
    if main is None:
        return "No compositional benchmark was scored, so no ratio is recommended"
    fell = set(frame[frame.headline & (frame.against_base_high < 0)].ratio)
    own = frame[[key == main for key in keys]]
    found = own[(own.significance == "above") & ~own.ratio.isin(fell)]
    if found.empty:
        return "No ratio is better at composition with no headline metric below the base"
    best = found.sort_values("against_base").iloc[-1]
    return (
        f"Ratio {best.ratio:g} is {best.against_base:.1f} points better at composition than the "
        "base, and no headline metric has its 95% interval below the base"
    )


def summary(frame: pd.DataFrame) -> pd.DataFrame:
    """The trade-off in per cent: a row per ratio, a column per scored axis.

    Args:
        frame: rows of `wise_ft.RatioResult`.
    """
    columns = {
        axis.key: axis.rows(frame).groupby("ratio").value.mean()
        for axis in (*COMPOSITIONALITY, *KNOWLEDGE)
    }
    return pd.DataFrame({key: column for key, column in columns.items() if len(column)})


def trade_off(frame: pd.DataFrame, path: Path) -> str:
    """Plot compositionality against zero-shot accuracy and retrieval, at each WiSE-FT ratio.

    Args:
        frame: rows of `wise_ft.RatioResult`.
        path: of the PNG file.

    Returns:
        SVG for a page; empty if there is nothing to draw.
    """
    means = summary(frame)
    up = [axis for axis in COMPOSITIONALITY if axis.key in means]
    right = [axis for axis in KNOWLEDGE if axis.key in means]
    if not up or not right:
        return ""
    shades = {ratio: _shade(ratio) for ratio in means.index}
    # In a page, the mixed colours follow its theme too.
    mixed = {
        shade: f"color-mix(in srgb, var(--ours) {100 * ratio:.0f}%, var(--base))"
        for ratio, shade in shades.items()
    }

    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(2.9 * len(right) + 0.3, 2.3 * len(up) + 0.4))
        axes = figure.subplots(len(up), len(right), squeeze=False, sharex="col", sharey="row")
        for line, above in zip(axes, up, strict=True):
            interval = above.rows(frame).set_index("ratio")[["low", "high"]]
            for ax, across in zip(line, right, strict=True):
                _path(ax, means[across.key], means[above.key], interval, shades)
            line[0].set_ylabel(f"{above.title(frame)}, %")
        for ax, across in zip(axes[-1], right, strict=True):
            ax.set_xlabel(f"{across.label}, %")
        figure.tight_layout()
        # After the layout, which would make room beside the panels for a legend above them.
        axes[0, 0].legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=3)
        return save(figure, path, mixed)


def _shade(ratio: float) -> str:
    """The colour of a ratio, from the base's to the fine-tuned model's."""
    shades = LinearSegmentedColormap.from_list("", [COLOURS["base"], COLOURS["fine_tuned"]])
    return to_hex(shades(ratio))


def _path(
    ax: Axes,
    across: pd.Series[float],
    above: pd.Series[float],
    interval: pd.DataFrame,
    shades: Mapping[float, str],
) -> None:
    """One panel: a dot per ratio."""
    ends = (interval.low, interval.high)
    ax.vlines(across, *ends, color=COLOURS["base"], lw=0.7, label="95% interval")
    ax.plot(across, above, color=THEME["soft"], lw=1)
    for ratio in above.index:
        marker, size, label = _ENDS.get(ratio, ("o", 16, ""))
        place = ([across[ratio]], [above[ratio]])
        ax.scatter(*place, color=shades[ratio], marker=marker, s=size, label=label, zorder=3)
    ax.grid(lw=0.8)
    ax.set_axisbelow(True)


def show(frame: pd.DataFrame, console: Console | None = None) -> None:
    """Print the trade-off, a line per ratio."""
    means = summary(frame)
    table = plain_table("per cent, by the share of the fine-tuned weights")
    scored = [one for one in (*COMPOSITIONALITY, *KNOWLEDGE) if one.key in means]
    for name in ("ratio", *(axis.title(frame) for axis in scored)):
        table.add_column(name, justify="right")
    for ratio, values in zip(means.index, means.to_numpy(), strict=True):
        table.add_row(f"{ratio:g}", *(f"{value:.1f}" for value in values))
    terminal(console).print(table)
