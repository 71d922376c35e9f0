"""Page of a WiSE-FT sweep: which ratio to take, the trade-off plot, and the metrics by ratio."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap, to_hex
from matplotlib.figure import Figure
from rich.console import Console

from compo_pipeline.benchmarks.items import Role
from compo_pipeline.evaluation.analysis.wise_ft import COMPOSITION, MEANS, best_ratio
from compo_pipeline.evaluation.roles import ROLE_LABELS
from compo_pipeline.presentation.pages import Cell, Link, Page, Plot, Section, Table, Text
from compo_pipeline.presentation.plots import COLOURS, STYLE, THEME, save
from compo_pipeline.run.console import table as plain_table
from compo_pipeline.run.console import terminal

PAGE = "wise_ft.html"


# What a row was measured on: the column `measured_on`.
REPORTED, VALIDATION = "reported", "validation"

# The first of these that was scored is on the vertical axis: what fine-tuning improves. The others
# are what it may cost, on the horizontal ones.
_AXES: tuple[Role, ...] = ("composition", "zero_shot", "retrieval")

# Marker, size and label of the two ends of the line.
_ENDS = {0.0: ("s", 34, "base"), 1.0: ("D", 30, "fine-tuned")}


def write(
    frame: pd.DataFrame,
    plot: str,
    facts: Mapping[str, str],
    links: Sequence[Link],
    folder: Path,
) -> Path:
    """Write `wise_ft.html`, with the metrics of each ratio of base and fine-tuned weights.

    Args:
        frame: rows of `wise_ft.RatioResult`, with `measured_on`.
        plot: the trade-off as SVG; empty if none could be drawn.
        facts: about the run.
        links: related pages.
        folder: for the page.
    """
    reported = frame[frame.measured_on == REPORTED]
    headlines = reported[reported.headline]
    ratios = sorted(reported.ratio.unique())
    found = {(row["label"], row["ratio"]): row for row in headlines.to_dict("records")}

    def value(row: Mapping[Hashable, Any]) -> Cell:
        return Cell(f"{row['value']:.1f}", row["significance"])

    def difference(row: Mapping[Hashable, Any]) -> Cell:
        interval = f"[{row['against_base_low']:+.1f}, {row['against_base_high']:+.1f}]"
        return Cell(f"{row['against_base']:+.1f}", row["significance"], interval)

    def rows(cell: Callable[[Mapping[Hashable, Any]], Cell], some: Sequence[float]) -> Any:
        labels = dict.fromkeys(headlines.label)
        return [[label, *(cell(found[label, ratio]) for ratio in some)] for label in labels]

    axes = axis_sets(reported)
    means = " ".join(f"{role}: {sets}." for role, sets in axes.items())
    sections: list[Section] = [
        Plot(
            plot,
            label=" against ".join(axes) + ", along the ratios",
            title="The trade-off",
            note=f"Each is the mean of its sets. {means}",
        ),
        Table(
            ["metric", *(f"{ratio:g}" for ratio in ratios)],
            rows(value, ratios),
            title="Headline metrics by ratio",
            note="Per cent. Green is above the base and red below it, where the paired difference "
            "is significant at 5% after Holm's correction over all metrics and ratios.",
        ),
        Table(
            ["metric", *(f"{ratio:g}" for ratio in ratios if ratio)],
            rows(difference, [ratio for ratio in ratios if ratio]),
            title="Differences from the base, with 95% intervals",
            folded=True,
        ),
        Text(
            "All metrics are in `figures.csv` beside this page. A run with `--params "
            "training.wise_ft.ratio=0.5` stores the model at that ratio."
        ),
    ]
    return Page(
        "Between base and fine-tuned",
        "WiSE-FT: weights between the base (ratio 0) and the fine-tuned model (ratio 1)",
        sections if plot else sections[1:],
        [
            f"{describe_choice(frame)}.",
            "The figure and the tables are of the reported items, which choose nothing.",
        ],
        facts,
        links,
    ).write(folder / PAGE)


def describe_choice(frame: pd.DataFrame) -> str:
    """A sentence on the WiSE-FT ratio chosen on the validation items, or why there is none.

    Args:
        frame: rows of `wise_ft.RatioResult`, with `measured_on`.
    """
    validation, reported = (frame[frame.measured_on == one] for one in (VALIDATION, REPORTED))
    if validation.empty:
        return (
            "No ratio is chosen: there are no validation items, which tuning.benchmarks names, and "
            "the reported ones choose nothing"
        )
    if _role_means(validation, COMPOSITION).empty:
        return "No ratio is chosen: no set of composition is among the validation items"
    best = best_ratio(validation)
    if best is None:
        return (
            "No ratio is chosen: on the validation items none is better at composition with no "
            "headline metric below the base"
        )
    sentence = (
        f"Ratio {best.ratio:g}, chosen on the validation items: there it is "
        f"{best.against_base:.1f} points better at composition than the base, and no headline "
        "metric has its 95% interval below the base"
    )
    means = _role_means(reported, COMPOSITION)
    for row in means[means.ratio == best.ratio].itertuples():
        sentence += (
            f". On the reported items its composition is {row.against_base:+.1f} "
            f"[{row.against_base_low:+.1f}, {row.against_base_high:+.1f}]"
        )
    return sentence


def _role_means(frame: pd.DataFrame, role: str) -> pd.DataFrame:
    """Rows of a WiSE-FT sweep with the mean over a benchmark role's sets."""
    return frame[(frame.benchmark == MEANS) & (frame.name == role)]


def axis_sets(frame: pd.DataFrame) -> dict[str, str]:
    """Label of each scored benchmark role, with the names of the sets whose mean it is."""
    found = {role: _role_means(frame, role) for role in _AXES}
    return {ROLE_LABELS[role]: own.sets.iloc[0] for role, own in found.items() if len(own)}


def summary(frame: pd.DataFrame) -> pd.DataFrame:
    """Table of means in per cent: a row per WiSE-FT ratio, a column per benchmark role.

    Args:
        frame: rows of `wise_ft.RatioResult`, of the reported or of the validation items.
    """
    columns = {role: _role_means(frame, role).set_index("ratio").value for role in _AXES}
    return pd.DataFrame({role: column for role, column in columns.items() if len(column)})


def trade_off(frame: pd.DataFrame, path: Path) -> str:
    """Plot the trade-off between composition, zero-shot accuracy and retrieval by WiSE-FT ratio.

    The first of these roles that was scored is plotted against the others; against the ratio if it
    is the only one.

    Args:
        frame: rows of `wise_ft.RatioResult`, of the reported or of the validation items.
        path: of the PNG file.

    Returns:
        SVG for a page; empty if there is nothing to draw.
    """
    means = summary(frame)
    if means.empty:
        return ""
    up, *right = means.columns
    shades = {ratio: _ratio_colour(ratio) for ratio in means.index}
    # In a page, the mixed colours follow its theme too.
    mixed = {
        shade: f"color-mix(in srgb, var(--ours) {100 * ratio:.0f}%, var(--base))"
        for ratio, shade in shades.items()
    }
    across = {f"{ROLE_LABELS[role]}, %": means[role] for role in right}
    across = across or {"share of the fine-tuned weights": means.index.to_series()}
    interval = _role_means(frame, up).set_index("ratio")[["low", "high"]]
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(2.9 * len(across) + 0.3, 2.7))
        axes = figure.subplots(1, len(across), squeeze=False, sharey="row")[0]
        for ax, (label, values) in zip(axes, across.items(), strict=True):
            _plot_ratios(ax, values, means[up], interval, shades)
            ax.set_xlabel(label)
        axes[0].set_ylabel(f"{ROLE_LABELS[up]}, %")
        figure.tight_layout()
        # After the layout, which would make room beside the panels for a legend above them.
        axes[0].legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=3)
        return save(figure, path, mixed)


def _ratio_colour(ratio: float) -> str:
    """Colour of a WiSE-FT ratio, between the base's and the fine-tuned model's."""
    shades = LinearSegmentedColormap.from_list("", [COLOURS["base"], COLOURS["fine_tuned"]])
    return to_hex(shades(ratio))


def _plot_ratios(
    ax: Axes,
    across: pd.Series[float],
    above: pd.Series[float],
    interval: pd.DataFrame,
    shades: Mapping[float, str],
) -> None:
    """Plot one panel: a dot for each WiSE-FT ratio, with the interval of its value."""
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
    """Print the trade-off on the reported items, a line per WiSE-FT ratio, and the chosen ratio."""
    means = summary(frame[frame.measured_on == REPORTED])
    table = plain_table("per cent, by the share of the fine-tuned weights")
    for name in ("ratio", *(ROLE_LABELS[role] for role in means.columns)):
        table.add_column(name, justify="right")
    for ratio, values in zip(means.index, means.to_numpy(), strict=True):
        table.add_row(f"{ratio:g}", *(f"{value:.1f}" for value in values))
    console = terminal(console)
    console.print(table)
    console.print(f"{describe_choice(frame)}.", markup=False, highlight=False, soft_wrap=True)
