"""Plots of pages in the colours of their theme, beside the page as PNG files."""

from __future__ import annotations

import io
import re
from collections.abc import Mapping, Sequence
from importlib.resources import files

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.transforms import Bbox

from compo_pipeline.evaluation.comparison import Row
from compo_pipeline.pages.pages import Plot

# The light theme of page.css, by the names of its variables.
THEME = {
    "ink": "#22201c",
    "soft": "#6b675e",
    "line": "#e4e0d6",
    "base": "#8a8f98",
    "control": "#c08a2d",
    "ours": "#0f6b6f",
}
# By role of a model.
COLOURS = {"base": THEME["base"], "control": THEME["control"], "fine_tuned": THEME["ours"]}
STYLE = str(files(__package__) / "templates" / "page.mplstyle")
_NO_METADATA = dict.fromkeys(("Creator", "Date", "Format", "Type"))
_FONT = re.compile(r"'DejaVu Sans'[^;\"]*")
_DOTTED = 40  # points of a curve, at most
# Places of a name beside its point, in points, with the alignment.
_BESIDE = {(6, 0): "left", (-6, 0): "right", (0, 8): "center", (0, -8): "center"}


def save(figure: Figure, file: str, label: str, title: str = "", note: str = "") -> Plot:
    """A section with a figure: SVG in the CSS colours of a page, and a PNG file on white.

    Call it within `rc_context(fname=STYLE)`.

    Args:
        figure: drawn in the colours of `THEME`.
        file: name of the PNG file.
        label: label of what the figure shows.
        title: heading of the section.
        note: note of the section.
    """
    image, buffer = io.BytesIO(), io.StringIO()
    figure.savefig(image, format="png", facecolor="white")
    figure.savefig(buffer, format="svg", transparent=True, metadata=_NO_METADATA)
    svg = buffer.getvalue()
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r' xmlns(:\w+)?="[^"]*"', "", svg)
    svg = _FONT.sub("inherit", svg)
    css = {to_hex(colour): f"var(--{name})" for name, colour in THEME.items()}
    svg = re.sub(r"#[0-9a-f]{6}\b", lambda found: css.get(found.group(), found.group()), svg)
    return Plot(svg, label, file, image.getvalue(), title=title, note=note)


@mpl.rc_context(fname=STYLE)
def subtasks(rows: Sequence[Row], models: Mapping[str, str]) -> list[Plot]:
    """Plot every subtask of SugarCrepe and SugarCrepe++: each model's value with its interval.

    Args:
        rows: metrics of the compared models, a row each.
        models: names by role.

    Returns:
        A section; none if there is nothing to draw.
    """
    panels: dict[str, list[Row]] = {}
    for row in filter(is_subtask, rows):
        title = row.label.removesuffix(f" {row.name.replace('_', ' ')}")
        panels.setdefault(title, []).append(row)
    if not panels:
        return []
    heights = [len(panel) for panel in panels.values()]
    figure = Figure(figsize=(5.2, 0.36 * sum(heights) + 0.5 * len(panels)))
    axes = figure.subplots(len(panels), 1, height_ratios=heights, squeeze=False, sharex=True)
    for ax, (title, panel) in zip(axes[:, 0], panels.items(), strict=True):
        _plot_intervals(ax, panel, models)
        ax.set_title(title)
    axes[-1, 0].set_xlabel("per cent right, with 95% interval; the tick is the chance level")
    axes[0, 0].legend(loc="lower right", bbox_to_anchor=(1, 1.0), ncols=3, handletextpad=0.1)
    figure.subplots_adjust(hspace=0.4)
    label = "Accuracy of every model on every subtask, with intervals and chance levels"
    return [save(figure, "subtasks.png", label, title="Subtask by subtask")]


def is_subtask(row: Row) -> bool:
    """Whether a metric is the accuracy on one subtask of a compositional benchmark."""
    return row.metric in ("accuracy", "itt", "tot") and not row.averaged


def _plot_intervals(ax: Axes, panel: Sequence[Row], models: Mapping[str, str]) -> None:
    """Plot metric values with their intervals, a colour for each model, and chance levels."""
    places = np.arange(len(panel))
    for shift, (role, name) in enumerate(models.items()):
        own = np.array(
            [[one.value, one.low, one.high] for one in (row.values[role] for row in panel)]
        )
        spread = np.maximum([own[:, 0] - own[:, 1], own[:, 2] - own[:, 0]], 0)
        ax.errorbar(
            *(own[:, 0], places + 0.22 * (shift - (len(models) - 1) / 2)),
            xerr=spread,
            fmt="o",
            ms=4,
            lw=1.4,
            color=COLOURS[role],
            label=name,
        )
    chances = [float("nan") if row.chance is None else row.chance for row in panel]
    ax.scatter(chances, places, marker="|", s=160, color=THEME["soft"], lw=1)
    ax.set_yticks(places, [row.name.replace("_", " ") for row in panel])
    ax.invert_yaxis()
    ax.tick_params(axis="y", length=0)
    ax.grid(visible=False, axis="y")


@mpl.rc_context(fname=STYLE)
def curves(frame: pd.DataFrame) -> list[Plot]:
    """Plot training curves: a panel per column but `step` and `model`, a line per model.

    Where a model's steps alternate between objectives, a column of its name has its own loss, and
    the mixture `loss` is left out.

    Returns:
        A section; none if there is nothing to draw.
    """
    if frame.empty:
        return []
    own = [name for name in frame["model"].unique() if name in frame.columns]
    mixed = frame["model"].isin([name for name in own if frame[name].notna().any()])
    frame = frame.assign(loss=frame["loss"].mask(mixed)).dropna(axis="columns", how="all")
    names = [name for name in frame.columns if name not in ("model", "step")]
    down = -(-len(names) // 3)
    figure = Figure(figsize=(7.8, 2.0 * down), layout="tight")
    for place, name in enumerate(names, 1):
        ax = figure.add_subplot(down, 3, place, title=name.replace("_", " "))
        models = frame.groupby("model", sort=False)
        for role, (label, part) in zip(("fine_tuned", "control"), models, strict=False):
            values = part.set_index("step")[name].dropna()
            if len(values):
                marker = "." if len(values) <= _DOTTED else ""
                ax.plot(values, marker=marker, lw=1, color=COLOURS[role], label=str(label))
    figure.axes[0].legend()
    return [save(figure, "curves.png", "Training curves", title="Training")]


@mpl.rc_context(fname=STYLE)
def scatter(
    frame: pd.DataFrame, file: str, title: str, note: str, *, joined: bool = False
) -> list[Plot]:
    """Plot models as points: the first column of a table against each of the others, in per cent.

    Args:
        frame: a row for each model, the baseline first.
        file: name of the PNG file.
        title: heading of the section.
        note: note of the section.
        joined: whether a line goes through the points.

    Returns:
        A section; none if the table has one column or one row.
    """
    if min(frame.shape) < 2:
        return []
    up, *across = frame.columns
    figure = Figure(figsize=(3.9 * len(across), 3.2))
    axes = figure.subplots(1, len(across), squeeze=False, sharey=True)[0]
    for ax, name in zip(axes, across, strict=True):
        points = frame[[name, up]].to_numpy()
        ax.plot(*points.T, "o-" if joined else "o", ms=5, color=COLOURS["fine_tuned"])
        ax.plot(*points[:1].T, "s", ms=6, color=COLOURS["base"])
        ax.margins(0.12)
        ax.set_xlabel(f"{name}, %")
    axes[0].set_ylabel(f"{up}, %")
    figure.tight_layout()
    for ax, name in zip(axes, across, strict=True):
        _name_points(ax, frame[[name, up]])
    return [save(figure, file, f"{up} against {' and '.join(across)}", title, note)]


def _name_points(ax: Axes, points: pd.DataFrame) -> None:
    """Write names beside their points, where they cover no point and no other name."""
    taken = [Bbox([centre - 4, centre + 4]) for centre in ax.transData.transform(points)]
    for name, across, up in points.itertuples():
        for offset, align in _BESIDE.items():
            text = ax.annotate(
                str(name), (across, up), offset, textcoords="offset points",
                fontsize=7, ha=align, va="center", parse_math=False,
            )  # fmt: skip
            box = text.get_window_extent()
            if not any(map(box.overlaps, taken)):
                taken.append(box)
                break
            text.remove()  # it is in the table
