"""The page of a WiSE-FT sweep: which ratio to take, the trade-off, and every figure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from compo_pipeline.evaluation.conclusions import MAIN_METRICS
from compo_pipeline.presentation import pages

if TYPE_CHECKING:
    import pandas as pd

PAGE = "wise_ft.html"


def write(
    frame: pd.DataFrame,
    figure: str,
    facts: Mapping[str, str],
    links: Sequence[pages.Link],
    folder: Path,
) -> Path:
    """Write `wise_ft.html`.

    Args:
        frame: rows of `wise_ft.Figure`.
        figure: the trade-off as SVG; empty where none could be drawn.
        facts: what the page says of the run.
        links: related pages.
        folder: for the page.
    """
    headlines = frame[frame.headline]
    context = {
        "title": "Between base and fine-tuned",
        "facts": facts,
        "links": links,
        "sentence": sentence(frame),
        "figure": figure,
        "ratios": sorted(frame.ratio.unique()),
        "labels": list(dict.fromkeys(headlines.label)),
        "cells": {(row.label, row.ratio): row for row in headlines.itertuples()},
        "standing": _standing,
    }
    page = pages.render(PAGE, context)
    (folder / PAGE).write_text(page, encoding="utf-8")
    return folder / PAGE


def sentence(frame: pd.DataFrame) -> str:
    """The ratio with the largest gain in composition among those that cost no main figure.

    Args:
        frame: rows of `wise_ft.Figure`.
    """
    keys = list(zip(frame.benchmark, frame.metric, frame.name, strict=True))
    foremost = next((key for key in MAIN_METRICS if key in keys), None)
    if foremost is None:
        return "No compositional benchmark was scored, so no ratio is recommended"
    fell = set(frame[frame.headline & (frame.against_base_high < 0)].ratio)
    own = frame[[key == foremost for key in keys]]
    found = own[(own.against_base_low > 0) & ~own.ratio.isin(fell)]
    if found.empty:
        return "No ratio is better at composition without a main figure below the base"
    best = found.sort_values("against_base").iloc[-1]
    return (
        f"Ratio {best.ratio:g} is {best.against_base:.1f} points better at composition than the "
        "base, and no main figure is significantly below the base"
    )


def _standing(low: float, high: float) -> str:
    """A CSS class: above or below where the interval of a difference is clear of zero."""
    return "above" if low > 0 else "below" if high < 0 else "level"
