import re
from dataclasses import replace

import numpy as np
import pytest

from compo_pipeline.evaluation.comparison import Difference, Estimate, Row, row_statistics
from compo_pipeline.evaluation.conclusions import (
    coverage_lines,
    main_metric,
    summary_lines,
    summary_sentence,
)
from compo_pipeline.evaluation.statistics import Part


def _difference(low: float, high: float, against: str = "base") -> Difference:
    """With a corrected p that is significant where the interval excludes zero."""
    p = 0.01 if low * high > 0 else 0.1
    return Difference("fine_tuned", against, (low + high) / 2, low, high, p, p, 1.0, 3, 1)


def _row(low: float, high: float) -> Row:
    values = dict.fromkeys(("base", "fine_tuned"), Estimate(50.0, 49.0, 51.0))
    return Row(
        "sugar_crepe_pp", "itt", "average", "ITT average", True, True, 10, 0, 10, 33.3,
        values, (_difference(low, high),),
    )  # fmt: skip


GAIN = _row(1.0, 3.0)
FALL = replace(
    _row(-4.4, -2.0),
    benchmark="zero_shot",
    metric="top1",
    name="colours",
    label="Zero-shot colours top-1",
)


@pytest.mark.parametrize(
    ("low", "high", "words"),
    [
        (1.0, 3.0, "above base +2.0 [+1.0, +3.0]"),
        (-3.0, -1.0, "below base -2.0 [-3.0, -1.0]"),
        (-1.0, 3.0, "no significant difference from base +1.0 [-1.0, +3.0]"),
        (0.0, 3.0, "no significant difference from base +1.5 [+0.0, +3.0]"),
    ],
)
def test_a_line_follows_the_interval(low: float, high: float, words: str) -> None:
    assert summary_lines([_row(low, high)]) == (f"ITT average: {words}",)


def test_what_was_measured_and_what_not_are_the_last_lines() -> None:
    retrieval = replace(FALL, benchmark="retrieval", metric="i2t_r1", name="raw", images=16)
    assert coverage_lines([GAIN, FALL, retrieval]) == [
        "Measured: composition on 10 images, zero-shot classification on 10 images, "
        "retrieval on 16 images."
    ]
    first, composition, zero_shot = coverage_lines([retrieval], "100 items are needed")
    assert first == "Measured: retrieval on 16 images."
    assert "composition: 100 items are needed" in composition and "needed" not in zero_shot
    assert "benchmarks.sets.zero_shot_sets.root=<folder>" in zero_shot


def test_a_line_needs_a_p_that_is_significant_after_correction() -> None:
    row = _row(1.0, 3.0)
    row = replace(row, differences=(replace(row.difference, p=0.01, p_holm=0.06),))
    assert "no significant difference" in summary_lines([row])[0]


def test_lines_name_the_headlines_that_fell() -> None:
    unsure = replace(FALL, differences=(_difference(-0.5, 0.5),))
    assert len(summary_lines([GAIN, FALL])) == 2
    assert len(summary_lines([GAIN, unsure])) == 1
    assert len(summary_lines([GAIN, replace(FALL, headline=False)])) == 1


def test_the_sentence_follows_the_intervals() -> None:
    assert summary_sentence([GAIN, FALL]) == (
        "Better at composition; zero-shot colours fell 3.2 points"
    )
    assert summary_sentence([GAIN, replace(FALL, headline=False)]) == "Better at composition"
    unsure = replace(FALL, differences=(_difference(-7.0, 0.6),))
    assert summary_sentence([_row(-1.0, 3.0), unsure]) == (
        "No significant difference from the base at composition"
    )
    assert summary_sentence([_row(-3.0, -1.0)]) == "Worse at composition"
    control = replace(GAIN, differences=(GAIN.difference, _difference(-7.0, 0.6, "control")))
    assert summary_sentence([control]).endswith("; no significant difference from the control")
    falls = [replace(FALL, name=f"set {k}") for k in range(5)]
    assert summary_sentence([GAIN, *falls]).endswith("; 2 more metrics fell")
    # Without a compositional benchmark: the first headline.
    assert summary_sentence([FALL]) == "Worse at zero-shot colours"
    assert main_metric([]) is None and "Nothing could be scored" in summary_sentence([])


def _with_statistics(row: Row, parts: list[Part]) -> Row:
    """The row of two models that both have these values."""
    models, pairs = {"base": parts, "fine_tuned": parts}, [("fine_tuned", "base")]
    values, differences = row_statistics(models, pairs, [1.0], exact=True)
    return replace(row, items=len(parts[0].image), values=values, differences=differences)


def test_few_items_are_the_conclusion_where_nothing_could_show() -> None:
    """Of twelve pairs, none of which changed sides, by the statistics of a real comparison."""
    part = [Part(np.full((1, 12), 50.0), np.arange(12))]
    row = _with_statistics(_row(-1.0, 1.0), part)
    assert row.difference.coarse
    sentence = summary_sentence([row])
    assert sentence.startswith("Too few images to tell: composition rests on 12 items")
    (points,) = re.findall(r"some (\d+) points", sentence)
    # With as many items again and again, the same difference becomes visible, and is said.
    assert float(points) == pytest.approx(row.difference.least_detectable, abs=0.5)
    assert f"(detectable: {points})" in summary_lines([row])[0]
    many = [Part(np.full((1, 4000), 50.0), np.arange(4000))]
    row = _with_statistics(row, many)
    assert "Too few" not in summary_sentence([row])
    assert "detectable" not in summary_lines([row])[0]


def test_a_large_difference_of_few_items_is_said_as_one() -> None:
    gain = replace(GAIN, differences=(replace(GAIN.difference, least_detectable=40.0),))
    assert summary_sentence([gain]) == "Better at composition"
