"""Figures of a report: a PNG file each, and SVG for the page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from compo_pipeline.evaluation.comparison import ROLES, Estimate, Row
from compo_pipeline.presentation.figures import COLOURS, STYLE, THEME, save

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes


def subtasks(rows: Sequence[Row], models: Mapping[str, str], path: Path) -> str:
    """Every subtask of the choice benchmarks: each model's figure with its interval.

    Args:
        rows: all figures.
        models: names by role.
        path: of the PNG file.

    Returns:
        SVG for a page; empty where there is nothing to draw.
    """
    panels: dict[str, list[Row]] = {}
    for row in rows:
        if row.metric in ("accuracy", "itt", "tot") and not row.averaged:
            title = row.label.removesuffix(f" {row.name.replace('_', ' ')}")
            panels.setdefault(title, []).append(row)
    if not panels:
        return ""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    lines = sum(len(panel) for panel in panels.values())
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(5.2, 0.36 * lines + 0.5 * len(panels)))
        heights = [len(panel) for panel in panels.values()]
        axes = figure.subplots(len(panels), 1, height_ratios=heights, squeeze=False, sharex=True)
        for ax, (title, panel) in zip(axes[:, 0], panels.items(), strict=True):
            _dots(ax, panel, models)
            ax.set_title(title)
        axes[-1, 0].set_xlabel("per cent right, with 95% interval; the tick is the chance level")
        axes[0, 0].legend(loc="lower right", bbox_to_anchor=(1, 1.0), ncols=3, handletextpad=0.1)
        figure.subplots_adjust(hspace=0.4)
        return save(figure, path)


def _dots(ax: Axes, panel: Sequence[Row], models: Mapping[str, str]) -> None:
    roles = [role for role in ROLES if role in models]
    places = range(len(panel))
    for shift, role in enumerate(roles):
        found: list[Estimate] = [getattr(row, role) for row in panel]
        centre = [place + 0.22 * (shift - (len(roles) - 1) / 2) for place in places]
        values = [estimate.value for estimate in found]
        spread = [
            [max(0.0, e.value - e.low) for e in found],
            [max(0.0, e.high - e.value) for e in found],
        ]
        ax.errorbar(
            values, centre, xerr=spread, fmt="o", ms=4, lw=1.4, color=COLOURS[role],
            label=models[role],
        )  # fmt: skip
    known = [(row.chance, place) for place, row in enumerate(panel) if row.chance is not None]
    ax.scatter(
        [level for level, _ in known],
        [place for _, place in known],
        marker="|",
        s=160,
        color=THEME["soft"],
        lw=1,
    )
    ax.set_yticks(list(places), [row.name.replace("_", " ") for row in panel])
    ax.invert_yaxis()
    ax.tick_params(axis="y", length=0)
    ax.grid(axis="x", lw=0.8)
    ax.set_axisbelow(True)


def curves(frame: pd.DataFrame, path: Path) -> str:
    """Training curves: a panel per column but `step`, a line per value of a text column.

    Args:
        frame: the curves.
        path: of the PNG file.

    Returns:
        SVG for a page; empty where there is nothing to draw.
    """
    names = [name for name in frame.columns if frame[name].dtype.kind in "if" and name != "step"]
    if "step" not in frame.columns or not names or frame.empty:
        return ""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    labels = [name for name in frame.columns if frame[name].dtype.kind not in "ifb"]
    parts: list[tuple[Any, Any]] = [("", frame)]
    if labels:
        parts = list(frame.groupby(labels[0], sort=False))
    palette = [*(COLOURS[role] for role in ("fine_tuned", "control", "base")), THEME["other"]]
    across = min(3, len(names))
    down = -(-len(names) // across)
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(2.6 * across, 2.0 * down))
        axes = figure.subplots(down, across, squeeze=False).ravel()
        for ax, name in zip(axes, names, strict=False):
            for colour, (label, part) in zip(palette * len(parts), parts, strict=False):
                drawn = part[["step", name]].dropna()
                if len(drawn):
                    # Validations are few: without a mark a single one would not be seen.
                    style = {"lw": 1.3, "marker": "." if name.startswith("val/") else ""}
                    ax.plot(drawn["step"], drawn[name], color=colour, label=str(label), **style)
            ax.set_title(name.replace("_", " "))
            ax.grid(lw=0.8)
        for ax in axes[len(names) :]:
            ax.set_visible(False)
        if labels:
            axes[0].legend()
        figure.tight_layout()
        return save(figure, path)
