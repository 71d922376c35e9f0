"""What a comparison says, in a few lines: computed from the intervals, never from the values."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

from compo_pipeline.evaluation.comparison import BASE, CONTROL, Difference, Row

Standing = Literal["above", "below", "level"]

# The first of these that was scored is what the verdict is about; the others follow it.
FOREMOST = (
    ("sugar_crepe_pp", "itt", "average"),
    ("sugar_crepe", "accuracy", "average"),
)
_BESIDE = (("sugar_crepe_pp", "tot", "average"),)


def standing(difference: Difference) -> Standing:
    """Above or below where the interval of the difference is clear of zero, else level."""
    if difference.low > 0:
        return "above"
    return "below" if difference.high < 0 else "level"


def verdict(rows: Sequence[Row], models: Mapping[str, str]) -> tuple[str, ...]:
    """A line on each figure that a run is judged by, the foremost first, and on each that it cost.

    Args:
        rows: all figures.
        models: names by role.
    """
    by_key = {(row.benchmark, row.metric, row.name): row for row in rows}
    foremost = next((by_key[key] for key in FOREMOST if key in by_key), None)
    told = [foremost] if foremost else []
    told += [by_key[key] for key in _BESIDE if key in by_key]
    told += [row for row in rows if row.metric in ("i2t_r1", "t2i_r1")]
    headlines = [row for row in rows if row.headline and row not in told]
    told += [row for row in headlines if not told or standing(row.vs_base) == "below"]
    return tuple(_line(row, models) for row in told)


def sentence(rows: Sequence[Row]) -> str:
    """What a run came to, in a plain sentence: what it is judged by, and what fell.

    Only intervals clear of zero are called a difference.
    """
    headlines = [row for row in rows if row.headline]
    main = foremost(rows)
    if main is None:
        return "Nothing could be scored, so there is nothing to compare"
    # Without a compositional benchmark, the first headline.
    compositional = (main.benchmark, main.metric, main.name) in FOREMOST
    subject = "composition" if compositional else _plain(main)
    parts = [_SENTENCES[standing(main.vs_base)].format(subject)]
    if standing(main.vs_base) == "above" and main.vs_control is not None:
        parts += _BESIDE_CONTROL[standing(main.vs_control)]
    fell = sorted(
        (row for row in headlines if row is not main and standing(row.vs_base) == "below"),
        key=lambda row: row.vs_base.value,
    )
    parts += [f"{_plain(row)} fell {-row.vs_base.value:.1f} points" for row in fell[:_TOLD]]
    if len(fell) > _TOLD:
        parts.append(f"{len(fell) - _TOLD} more figures fell")
    return "; ".join(parts)


_SENTENCES: dict[Standing, str] = {
    "above": "Better at {}",
    "below": "Worse at {}",
    "level": "No significant difference from the base at {}",
}
_BESIDE_CONTROL: dict[Standing, list[str]] = {
    "above": [],
    "below": ["the control is better still"],
    "level": ["no significant difference from the control"],
}
_TOLD = 3


def _plain(row: Row) -> str:
    """A figure's label within a sentence."""
    label = row.label.removesuffix(" top-1")
    return label[0].lower() + label[1:] if row.benchmark in ("zero_shot", "retrieval") else label


def _line(row: Row, models: Mapping[str, str]) -> str:
    against = [(BASE, row.vs_base), (CONTROL, row.vs_control)]
    parts = [
        f"{_words(standing(difference))} {models[role]} {signed(difference)}"
        for role, difference in against
        if difference is not None
    ]
    return f"{row.label}: {'; '.join(parts)}"


def _words(found: Standing) -> str:
    return "no significant difference from" if found == "level" else found


def foremost(rows: Sequence[Row]) -> Row | None:
    """The figure that speaks for a run in one line; None where nothing was scored."""
    by_key = {(row.benchmark, row.metric, row.name): row for row in rows}
    headlines = (row for row in rows if row.headline)
    return next((by_key[key] for key in FOREMOST if key in by_key), next(headlines, None))


def signed(difference: Difference) -> str:
    """A difference with its interval: `+3.1 [+1.2, +5.0]`."""
    return f"{difference.value:+.1f} [{difference.low:+.1f}, {difference.high:+.1f}]"


def tally(rows: Iterable[Row]) -> dict[Standing, int]:
    """How many figures stand above, below and level with the base."""
    counts: dict[Standing, int] = {"above": 0, "below": 0, "level": 0}
    for row in rows:
        counts[standing(row.vs_base)] += 1
    return counts
