"""A model's figures under the names that MLflow shows, and in a line."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from compo_pipeline.evaluation.comparison import FINE_TUNED, Estimate, Row
from compo_pipeline.evaluation.verdict import signed

# The first of these that was scored speaks for a model in one line.
_FOREMOST = (
    ("sugar_crepe_pp", "itt", "average"),
    ("sugar_crepe", "accuracy", "average"),
)


def metrics(rows: Iterable[Row], role: str) -> dict[str, float]:
    """All figures of one model as metrics, per cent.

    `headline/...` are the few that a summary shows; `headline_vs_base/...`, of the fine-tuned
    model, their differences from the base in points; `test/...` are all. The base's own figures
    are the same in every run: they are in the artefact comparison.json.

    Args:
        rows: of the comparison.
        role: base, control or fine_tuned.
    """
    found: dict[str, float] = {}
    for row in rows:
        estimate: Estimate | None = getattr(row, role)
        if estimate is None:
            continue
        found[f"test/{row.benchmark}/{row.metric}/{row.name}"] = round(estimate.value, 3)
        if row.headline:
            # Dots, for MLflow makes a section of its charts of all that is before the last slash.
            name = f"{row.benchmark}.{row.metric}.{row.name}"
            found[f"headline/{name}"] = round(estimate.value, 3)
            if role == FINE_TUNED:
                found[f"headline_vs_base/{name}"] = round(row.vs_base.value, 3)
    return found


def line(rows: Sequence[Row]) -> str:
    """The foremost figure with its difference from the base; empty where nothing was scored."""
    headlines = {(row.benchmark, row.metric, row.name): row for row in rows if row.headline}
    wanted = next((key for key in _FOREMOST if key in headlines), next(iter(headlines), None))
    if wanted is None:
        return ""
    row = headlines[wanted]
    return f"{row.label} {row.fine_tuned.value:.1f}, against base {signed(row.vs_base)}"
