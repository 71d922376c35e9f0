"""The figure and the table of a WiSE-FT sweep: what compositionality costs in the rest."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from compo_pipeline.console import table as plain_table
from compo_pipeline.console import terminal
from compo_pipeline.presentation.figures import COLOURS, STYLE, THEME, save

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from rich.console import Console


class Quantity(NamedTuple):
    """A figure of the trade-off: the mean over some metrics of a benchmark.

    `name` picks an average or a subtask, None takes the mean of all there are.
    """

    key: str
    label: str
    benchmark: str
    metrics: tuple[str, ...]
    name: str | None = None

    def rows(self, frame: pd.DataFrame) -> pd.DataFrame:
        """The rows of `wise_ft.Figure` that it is made of."""
        wanted = (frame.benchmark == self.benchmark) & frame.metric.isin(self.metrics)
        return frame[wanted if self.name is None else wanted & (frame.name == self.name)]

    def title(self, frame: pd.DataFrame) -> str:
        """Its name for readers: an average has its rows' own, which say whose benchmark it is."""
        if self.name is None:
            return self.label
        return str(self.rows(frame).label.iloc[0]).removesuffix(f" {self.name}")


# What fine-tuning is for, upwards in the figure, and what it may cost, to the right.
COMPOSITIONALITY = (
    Quantity("sugar_crepe", "SugarCrepe", "sugar_crepe", ("accuracy",), "average"),
    Quantity("sugar_crepe_pp_itt", "SugarCrepe++ ITT", "sugar_crepe_pp", ("itt",), "average"),
    Quantity("sugar_crepe_pp_tot", "SugarCrepe++ TOT", "sugar_crepe_pp", ("tot",), "average"),
)
KNOWLEDGE = (
    Quantity("zero_shot", "Zero-shot top-1", "zero_shot", ("top1",)),
    Quantity("retrieval_r1", "Retrieval R@1, both ways", "retrieval", ("i2t_r1", "t2i_r1")),
)

# Marker, size and name of the two ends of the line.
ENDS = {0.0: ("s", 34, "base"), 1.0: ("D", 30, "fine-tuned")}


def summary(frame: pd.DataFrame) -> pd.DataFrame:
    """The figures of the trade-off: a row per ratio, a column per quantity that was scored.

    Args:
        frame: rows of `wise_ft.Figure`.
    """
    import pandas as pd

    columns = {
        quantity.key: quantity.rows(frame).groupby("ratio").value.mean()
        for quantity in (*COMPOSITIONALITY, *KNOWLEDGE)
    }
    return pd.DataFrame({key: column for key, column in columns.items() if len(column)})


def draw(frame: pd.DataFrame, path: Path) -> str:
    """Compositionality against zero-shot accuracy and retrieval, along the ratios.

    Args:
        frame: rows of `wise_ft.Figure`.
        path: of the PNG file.

    Returns:
        SVG for a page; empty where there is nothing to draw.
    """
    means = summary(frame)
    up = [quantity for quantity in COMPOSITIONALITY if quantity.key in means]
    right = [quantity for quantity in KNOWLEDGE if quantity.key in means]
    if not up or not right:
        return ""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    shades = {ratio: _shade(ratio) for ratio in means.index}
    # Within a page the mixed colours follow its theme too.
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
    from matplotlib.colors import LinearSegmentedColormap, to_hex

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
        marker, size, label = ENDS.get(ratio, ("o", 16, ""))
        place = ([across[ratio]], [above[ratio]])
        ax.scatter(*place, color=shades[ratio], marker=marker, s=size, label=label, zorder=3)
    ax.grid(lw=0.8)
    ax.set_axisbelow(True)


def show(frame: pd.DataFrame, console: Console | None = None) -> None:
    """Print the figures of the trade-off, a line per ratio."""
    means = summary(frame)
    table = plain_table("per cent, by the share of the fine-tuned weights")
    scored = [one for one in (*COMPOSITIONALITY, *KNOWLEDGE) if one.key in means]
    for name in ("ratio", *(quantity.title(frame) for quantity in scored)):
        table.add_column(name, justify="right")
    for ratio, values in zip(means.index, means.to_numpy(), strict=True):
        table.add_row(f"{ratio:g}", *(f"{value:.1f}" for value in values))
    terminal(console).print(table)
