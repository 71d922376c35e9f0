"""A model's figures under the names that MLflow shows, and in a line."""

from __future__ import annotations

from collections.abc import Sequence

from compo_pipeline.evaluation.comparison import FINE_TUNED, Estimate, Row
from compo_pipeline.evaluation.conclusions import main_metric


def metrics(rows: Sequence[Row], role: str) -> dict[str, float]:
    """All figures of one model as metrics, per cent.

    `headline/...` are the few that a summary shows; `headline_vs_base/...`, of the fine-tuned
    model, their differences from the base in points; `test/...` are all. The base's own figures
    are the same in every run: they are in the artefact comparison.json.

    Args:
        rows: of the comparison.
        role: control or fine_tuned.
    """
    values: dict[Row, Estimate] = {
        row: estimate for row in rows if (estimate := getattr(row, role)) is not None
    }
    headlines = [row for row in values if row.headline]
    found = {f"headline/{_flat(row)}": values[row].value for row in headlines}
    if role == FINE_TUNED:
        found |= {f"headline_vs_base/{_flat(row)}": row.vs_base.value for row in headlines}
    for row, estimate in values.items():
        found[f"test/{row.benchmark}/{row.metric}/{row.name}"] = estimate.value
    return {name: round(value, 3) for name, value in found.items()}


def line(rows: Sequence[Row]) -> str:
    """The foremost figure and, in brackets, its difference from the base; empty where none is."""
    row = main_metric(rows)
    if row is None:
        return ""
    return f"{row.label} {row.fine_tuned.value:.1f} ({row.vs_base.format()})"


def _flat(row: Row) -> str:
    """Dots: MLflow puts all before the last slash into a section of charts of its own."""
    return f"{row.benchmark}.{row.metric}.{row.name}"
