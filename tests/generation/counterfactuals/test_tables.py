"""Counts of the table, and when they are too bad."""

from pathlib import Path

import pytest

from compo_pipeline.core.records import Counterfactual
from compo_pipeline.generation.counterfactuals.generation import (
    TooManyFailures,
    refuse_too_many,
    summary,
)

PAGE = Path("some/page")


def edit(role: str, state: str, text: str = "a text", detail: str = "") -> Counterfactual:
    return Counterfactual("a", 0, "a cat", role, text, "", "rules", "", "0", state, detail)


ROWS = [
    edit("negative", "generated"),
    edit("negative", "failed", detail="no: paint"),
    edit("positive", "edited"),
    edit("positive", "failed", text="", detail="no words"),
]


def test_counts_by_role_state_and_rule() -> None:
    assert summary(ROWS) == {
        "edits": 4,
        "caption_editor": "rules",
        "image_generator": "",
        "fingerprint": "0",
        "failed": 2,
        "failed_share": 0.5,
        "roles": {
            "negative": {"edited": 0, "generated": 1, "failed": 1},
            "positive": {"edited": 1, "generated": 0, "failed": 1},
        },
        "rules": {"no_image": 1, "no_text": 1},
    }


def test_more_than_the_tolerated_share_is_refused_by_key_with_reasons() -> None:
    refuse_too_many(ROWS, 0.5, PAGE)
    with pytest.raises(TooManyFailures) as error:
        refuse_too_many(ROWS, 0.49, PAGE)
    message = str(error.value)
    assert "1 of 2 negative edits failed (50.0%)" in message
    assert "counterfactuals.tolerated_share allows 49.0%" in message
    assert "1 times, as: no: paint" in message and "some/page" in message


def test_neither_role_may_fail_altogether() -> None:
    rows = [*[edit("negative", "edited")] * 9, edit("positive", "failed", detail="no words")]
    with pytest.raises(TooManyFailures, match="1 of 1 positive edits"):
        refuse_too_many(rows, 0.5, PAGE)
    with pytest.raises(TooManyFailures) as error:
        refuse_too_many(rows, 1.0, PAGE)
    assert "failed (100.0%), expected one at least that did not" in str(error.value)
    assert "tolerated_share" not in str(error.value)
