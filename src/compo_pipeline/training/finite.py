"""Training stops at the first number that is not finite."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path

from click import ClickException


class TrainingError(ClickException, RuntimeError):
    """Training cannot go on; the last good checkpoint is kept.

    Attributes:
        problem: what is wrong, without what can be done about it.
    """

    def __init__(self, problem: str, advice: str = "") -> None:
        super().__init__(problem + advice)
        self.problem = problem


def wrong_figures(figures: Mapping[str, float]) -> list[str]:
    """Names of the figures that are not finite."""
    return [name for name, value in figures.items() if not math.isfinite(value)]


def refuse_non_finite(
    figures: Mapping[str, float], step: int, *, state: Path | None, advice: str
) -> None:
    """Stop where a loss or the gradient of a step is not finite.

    Args:
        figures: losses and the norm of the gradient, by name.
        step: counted from 0.
        state: the file that a run resumes from, where it keeps one.
        advice: which keys to change, for the error.

    Raises:
        TrainingError: naming what is not finite.
    """
    if wrong := wrong_figures(figures):
        saved = state is not None and state.exists()
        kept = f"the state of an earlier step is kept in {state}" if saved else "no state"
        raise TrainingError(
            f"step {step}: {', '.join(wrong)} is not finite ({dict(figures)})",
            f"; {kept}. {advice}",
        )
