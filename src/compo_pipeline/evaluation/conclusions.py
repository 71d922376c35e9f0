"""Conclusions of a comparison as text, computed from the intervals."""

from __future__ import annotations

from collections.abc import Sequence

from compo_pipeline.benchmarks.items import Role
from compo_pipeline.benchmarks.settings import BENCHMARKS
from compo_pipeline.evaluation.comparison import CONTROL, Row, Significance
from compo_pipeline.evaluation.roles import EXAMPLES, ROLE_LABELS, absent_roles

# The first of these that was scored is a run's main metric.
MAIN_METRICS = (
    ("sugar_crepe_pp", "itt", "average"),
    ("sugar_crepe", "accuracy", "average"),
)
TEXT_ONLY = ("sugar_crepe_pp", "tot", "average")
_MOST_NAMED = 3

_AGAINST_BASE: dict[Significance, str] = {
    "above": "Better at {}",
    "below": "Worse at {}",
    "level": "No significant difference from the base at {}",
}
_AGAINST_CONTROL: dict[Significance, str] = {
    "below": "the control is better still",
    "level": "no significant difference from the control",
}


def main_metric(rows: Sequence[Row]) -> Row | None:
    """Row of the metric that represents a run, or None if nothing was scored."""
    by_key = {row.key: row for row in rows}
    headlines = (row for row in rows if row.headline)
    return next((by_key[key] for key in MAIN_METRICS if key in by_key), next(headlines, None))


def headline(rows: Sequence[Row]) -> str:
    """Text of the main metric and its difference from the base, empty without scores."""
    row = main_metric(rows)
    if row is None:
        return ""
    return f"{row.label} {row.estimate.value:.1f} ({row.difference.format()})"


def summary_lines(rows: Sequence[Row]) -> tuple[str, ...]:
    """A line of text for each summary metric, the main one first, and for each metric that fell."""
    by_key = {row.key: row for row in rows}
    chosen = [by_key[key] for key in MAIN_METRICS if key in by_key][:1]
    chosen += [by_key[TEXT_ONLY]] if TEXT_ONLY in by_key else []
    chosen += [row for row in rows if row.metric in ("i2t_r1", "t2i_r1")]
    headlines = [row for row in rows if row.headline and row not in chosen]
    chosen += [row for row in headlines if not chosen or row.difference.significance == "below"]
    return tuple(map(_differences_in_words, chosen))


def _differences_in_words(row: Row) -> str:
    """One line of text: a row's label, and its difference from each other model."""
    parts = []
    for difference in row.differences:
        found = difference.significance
        words = "no significant difference from" if found == "level" else found
        limit = f" (detectable: {difference.least_detectable:.0f})" if difference.coarse else ""
        parts.append(f"{words} {difference.against} {difference.format()}{limit}")
    return f"{row.label}: {'; '.join(parts)}"


def summary_sentence(rows: Sequence[Row]) -> str:
    """One sentence: the change of the main metric, and which metrics fell.

    Only differences that are significant after correction count.
    """
    main = main_metric(rows)
    if main is None:
        return "Nothing could be scored, so there is nothing to compare"
    # Without a compositional benchmark the main metric is the first headline.
    subject = "composition" if main.key in MAIN_METRICS else _inline_label(main)
    found, control = main.difference.significance, main.against(CONTROL)
    parts = [_AGAINST_BASE[found].format(subject)]
    if found == "level" and main.difference.coarse:
        parts = [_few_items_text(main, subject)]
    if found == "above" and control and control.significance != "above":
        parts.append(_AGAINST_CONTROL[control.significance])
    others = [row for row in rows if row.headline and row is not main]
    below = [row for row in others if row.difference.significance == "below"]
    fell = sorted(below, key=lambda row: row.difference.value)
    parts += [
        f"{_inline_label(row)} fell {-row.difference.value:.1f} points"
        for row in fell[:_MOST_NAMED]
    ]
    if len(fell) > _MOST_NAMED:
        parts.append(f"{len(fell) - _MOST_NAMED} more metrics fell")
    return "; ".join(parts)


def coverage_lines(rows: Sequence[Row], foils: str = "") -> list[str]:
    """Lines on the measured roles, with numbers of images, and on the missing roles.

    Args:
        rows: rows of a comparison.
        foils: why no foils measure composition.
    """
    images: dict[Role, int] = {}
    for row in rows:
        role = BENCHMARKS[row.benchmark].role if row.benchmark in BENCHMARKS else None
        if role is not None:
            images[role] = max(row.images, images.get(role, 0))
    found = (f"{ROLE_LABELS[role].lower()} on {count:,} images" for role, count in images.items())
    lines = [f"Measured: {', '.join(found)}."] if images else []
    for role in absent_roles(row.benchmark for row in rows):
        reason = f": {foils}" if role == "composition" and foils else ""
        lines.append(
            f"Not measured: {ROLE_LABELS[role].lower()}{reason}. With the files of a benchmark: "
            f"`--params benchmarks.sets.{EXAMPLES[role]}.root=<folder>`."
        )
    return lines


def _few_items_text(row: Row, subject: str) -> str:
    """Text for a metric that has too few items to show any but large differences."""
    return (
        f"Too few images to tell: {subject} rests on {row.items} items, where only differences "
        f"from some {row.difference.least_detectable:.0f} points on could show"
    )


def _inline_label(row: Row) -> str:
    """A metric's label as written within a sentence."""
    label = row.label.removesuffix(" top-1")
    return label[0].lower() + label[1:] if row.benchmark in ("zero_shot", "retrieval") else label
