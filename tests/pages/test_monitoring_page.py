"""The page of monitoring says what was compared, and draws it."""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import numpy as np

from compo_pipeline.pages.monitoring_page import draw
from compo_pipeline.serving.monitoring.distances import Distances
from compo_pipeline.serving.monitoring.drift import FIGURES, Compared, FigureDrift
from compo_pipeline.serving.monitoring.report import Measured


def figure(name: str, p: float | None) -> FigureDrift:
    return FigureDrift(name, 30, 90, p, p, None if p is None else 0.75, (0.25, 0.5), (-0.5, 0.1))


def report(p: Mapping[str, float]) -> dict[str, Any]:
    drifted = [name for name in FIGURES if p.get(name, 1) <= 0.05]
    return {
        "figures": [asdict(figure(name, p.get(name))) for name in FIGURES],
        "drifted": drifted,
        "alarm": bool(drifted),
        "outside": [],
        "alpha": 0.05,
    }


def test_numbers_that_were_compared_are_drawn() -> None:
    values = {name: np.random.default_rng(0).standard_normal(120) for name in FIGURES}
    values["tokens"] = np.ones(120)
    compared = Compared(values, np.arange(120) < 30)
    nothing = Distances(np.zeros(0), np.zeros(0), {})

    def measured(*tested: str) -> Measured:
        figures = [figure(name, 0.5 if name in tested else None) for name in FIGURES]
        return Measured(compared, figures, nothing, [], {})

    (plot,) = draw(measured("images", "cosines", "tokens", "words"))
    assert "cosine of image and text" in plot.svg and "words of the text" in plot.svg
    assert "tokens of the text" not in plot.svg and plot.png
    assert draw(measured("images", "tokens")) == []
