"""Figures of pages: subtasks, training curves, and models as points."""

from __future__ import annotations

import io
from collections.abc import Collection, Mapping, Sequence
from importlib.resources import files
from typing import Any

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from compo_pipeline.evaluation.comparison import Row
from compo_pipeline.pages.pages import Plot, data_uri

STYLE = str(files(__package__) / "templates" / "page.mplstyle")
# By role of a model.
COLOURS = {"base": "#8a8f98", "control": "#c08a2d", "fine_tuned": "#0f6b6f"}


def plot(figure: Figure, label: str, file: str = "", kind: str = "png", **section: Any) -> Plot:
    """A section with a figure.

    Args:
        figure: the figure.
        label: label of what it shows.
        file: name of a file of the figure beside the page; empty for none.
        kind: image format, `png` or `jpeg`.
        section: title and note of the section.
    """
    buffer = io.BytesIO()
    figure.savefig(buffer, format=kind)
    content = buffer.getvalue()
    return Plot(label, data_uri(content, kind), file=file, content=content, **section)


@mpl.rc_context(fname=STYLE)
def subtasks(rows: Sequence[Row], models: Mapping[str, str]) -> list[Plot]:
    """Plot every subtask of compositional benchmarks: each model's accuracy with its interval.

    Args:
        rows: metrics of the compared models, a row each.
        models: names by role.

    Returns:
        A section; none if there is nothing to draw.
    """
    shown = [row for row in rows if row.metric in ("accuracy", "itt", "tot") and not row.averaged]
    if not shown:
        return []
    figure = Figure(figsize=(7.8, 1.0 + 0.3 * len(shown)))
    ax = figure.add_subplot(
        xlabel="per cent right, with 95% interval; the tick is the chance level"
    )
    places = np.arange(len(shown))
    for shift, (role, name) in enumerate(models.items()):
        estimates = [row.values[role] for row in shown]
        low, value, high = np.array([[one.low, one.value, one.high] for one in estimates]).T
        beside = places + 0.22 * (shift - (len(models) - 1) / 2)
        ends = np.abs([value - low, high - value])
        ax.errorbar(value, beside, xerr=ends, fmt="o", color=COLOURS[role], label=name)
    chances = [np.nan if row.chance is None else row.chance for row in shown]
    ax.scatter(chances, places, marker="|", s=120, color="#6b675e")
    ax.set_yticks(places, [row.label.replace("_", " ") for row in shown])
    ax.invert_yaxis()
    ax.grid(visible=False, axis="y")
    figure.legend(loc="outside upper right", ncols=len(models))
    label = "Accuracy of every model on every subtask, with intervals and chance levels"
    return [plot(figure, label, "subtasks.png", title="Subtask by subtask")]


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
    figure = Figure(figsize=(7.8, 2.0 * down))
    for place, name in enumerate(names, 1):
        ax = figure.add_subplot(down, 3, place, title=name.replace("_", " "))
        models = frame.groupby("model", sort=False)
        for role, (label, part) in zip(("fine_tuned", "control"), models, strict=False):
            values = part.set_index("step")[name].dropna()
            if len(values):
                ax.plot(values, ".-", ms=3, color=COLOURS[role], label=str(label))
    figure.axes[0].legend()
    return [plot(figure, "Training curves", "curves.png", title="Training")]


@mpl.rc_context(fname=STYLE)
def scatter(frame: pd.DataFrame, file: str, bases: Collection[Any], **section: Any) -> list[Plot]:
    """Plot models as points: the first column of a table against each of the others, in per cent.

    Args:
        frame: a row for each model.
        file: name of the PNG file.
        bases: models that are drawn as squares.
        section: title and note of the section.

    Returns:
        A section; none if the table has one column or one row.
    """
    if min(frame.shape) < 2:
        return []
    up, *across = frame.columns
    figure = Figure(figsize=(3.6 * len(across) + 1.6, 3.2))
    axes = figure.subplots(1, len(across), squeeze=False, sharey=True)[0]
    colours = mpl.colormaps["viridis_r"](np.linspace(0.1, 1, len(frame)))
    for ax, name in zip(axes, across, strict=True):
        for place, (label, point) in enumerate(frame.iterrows()):
            marker = "s" if label in bases else "o"
            ax.plot(point[name], point[up], marker, color=colours[place], label=str(label))
        ax.set(xlabel=f"{name}, %", ylabel=f"{up}, %" if ax is axes[0] else "")
        ax.margins(0.12)
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside right upper")
    return [plot(figure, f"{up} against {' and '.join(across)}", file, **section)]
