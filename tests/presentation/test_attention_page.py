"""What is told of a run's attention, on a page and on the terminal."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pandas as pd
import pytest
from PIL import Image
from rich.console import Console

from compo_pipeline.evaluation.analysis.localisation import Located, compare_located, rows_by_role
from compo_pipeline.evaluation.comparison import Row
from compo_pipeline.presentation.attention_page import (
    AttentionSummary,
    metrics,
    show,
    write,
)


def rows(gain: float) -> list[Located]:
    return [
        Located(f"{n}.jpg", f"thing {n}", 0.05, 0.06 + gain, 0.3 + gain, 0.04, 0.0)
        for n in range(8)
    ] + [Located("x<y>.jpg", "a box", problem="unreadable image (missing)")]


TABLES = {"base": rows(0.0), "control": rows(0.01), "fine_tuned": rows(0.0123)}


@pytest.fixture(scope="module")
def compared() -> list[Row]:
    """Three measures of three models."""
    return compare_located([TABLES])


@pytest.fixture
def summary(compared: list[Row]) -> AttentionSummary:
    """Of a run with nine phrases, one of them unreadable, and more that could not be measured."""
    skipped = Counter({"compressed run lengths": 2})
    return AttentionSummary("c2lip, default, seed 0", compared, TABLES["base"], skipped, drawn=4)


def test_what_was_left_out_is_counted_by_reason(summary: AttentionSummary) -> None:
    assert summary.left_out == {"compressed run lengths": 2, "unreadable image (missing)": 1}
    assert list(summary.unreadable) == ["x<y>.jpg"] and summary.case_count == 9
    assert summary.roles == ["base", "control", "fine_tuned"]
    assert summary.opponents == ["base", "control"]


def test_figures_for_the_record(compared: list[Row]) -> None:
    found = metrics(compared)
    assert set(found) == {"share", "share_scaled", "hit"}
    share = {name: round(value, 3) for name, value in found["share"].items()}
    assert share == {
        "base": 6.0, "control": 7.0, "fine_tuned": 7.23, "chance": 5.0, "against_base": 1.23,
    }  # fmt: skip


def test_the_page_holds_numbers_and_grids_and_needs_nothing_else(
    summary: AttentionSummary, tmp_path: Path
) -> None:
    grid = tmp_path / "attention_01.png"
    Image.new("RGB", (60, 40), "green").save(grid)
    page = write(summary, [grid], tmp_path).read_text()
    assert "+1.23 [+1.23, +1.23]" in page and "7.23" in page
    assert page.count("data:image/jpeg;base64,") == 1
    assert "4 of 9 phrases are drawn, at random" in page
    assert "x&lt;y&gt;.jpg" in page and "compressed run lengths" in page
    assert "http" not in page and 'src="attention' not in page


def test_a_page_of_nothing_measured(tmp_path: Path) -> None:
    unknown = [Located("a.jpg", "a dog")]
    summary = AttentionSummary("clip, default, seed 0", [], unknown, {}, drawn=1)
    page = write(summary, [], tmp_path).read_text()
    assert "nothing is measured" in page and "<table>" not in page
    assert "1 of 1 phrases are drawn." in page


def test_the_terminal_has_a_line_a_measure(summary: AttentionSummary, tmp_path: Path) -> None:
    with (tmp_path / "shown.txt").open("w") as file:
        show(summary, Path("a/attention.html"), Console(file=file))
    text = (tmp_path / "shown.txt").read_text()
    (line,) = [line for line in text.splitlines() if line.startswith("attention on it  ")]
    figures = "5.00 6.00 7.00 7.23 +1.23 [+1.23, +1.23] +0.23 [+0.23, +0.23]"
    assert line.split()[3:] == figures.split()
    assert "2 phrases left out: compressed run lengths" in text
    assert "unreadable: x<y>.jpg" in text
    assert "phrases are drawn: a/attention.html" in text


def test_a_table_gives_its_rows_back(tmp_path: Path) -> None:
    frame = pd.concat([pd.DataFrame(own).assign(model=role) for role, own in TABLES.items()])
    frame.to_parquet(tmp_path / "rows.parquet")
    found = rows_by_role(pd.read_parquet(tmp_path / "rows.parquet"))
    assert list(found) == list(TABLES)
    for role, own in TABLES.items():
        assert [repr(row) for row in found[role]] == [repr(row) for row in own]


def test_a_table_without_problems_gives_none() -> None:
    frame = pd.DataFrame(rows(0.0)[:2]).assign(model="base")
    assert [row.problem for row in rows_by_role(frame)["base"]] == [None, None]
