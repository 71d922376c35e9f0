"""Counts of the table, and when they are too bad."""

from pathlib import Path

import pytest

from compo_pipeline.pipelines.counterfactuals.tables import (
    TooManyFailures,
    refuse_too_many,
    summary,
)
from compo_pipeline.records import Counterfactual

PAGE = Path("some/page")


def edit(role: str, state: str, text: str = "a text", detail: str = "") -> Counterfactual:
    return Counterfactual("a", 0, role, text, "", "rules", "", "0", state, detail)


ROWS = [
    edit("negative", "made"),
    edit("negative", "failed", detail="no: paint"),
    edit("positive", "written"),
    edit("positive", "failed", text="", detail="no words"),
]


def test_counts_by_role_state_and_rule() -> None:
    assert summary(ROWS) == {
        "edits": 4,
        "failed": 2,
        "failed_share": 0.5,
        "roles": {
            "negative": {"written": 0, "made": 1, "failed": 1},
            "positive": {"written": 1, "made": 0, "failed": 1},
        },
        "rules": {"no_picture": 1, "no_text": 1},
    }


def test_more_than_the_tolerated_share_is_refused_by_key_with_reasons() -> None:
    refuse_too_many(ROWS, summary(ROWS), 0.5, PAGE)
    with pytest.raises(TooManyFailures) as error:
        refuse_too_many(ROWS, summary(ROWS), 0.49, PAGE)
    message = str(error.value)
    assert "2 of 4 edits failed (50.0%), counterfactuals.tolerated_share allows 49.0%" in message
    assert "no_picture, 1 times: no: paint" in message and "some/page" in message


@pytest.mark.parametrize("rows", [[], ROWS[1:2]])
def test_nothing_that_came_out_well_is_refused_at_any_share(rows: list[Counterfactual]) -> None:
    with pytest.raises(TooManyFailures):
        refuse_too_many(rows, summary(rows), 1.0, PAGE)
