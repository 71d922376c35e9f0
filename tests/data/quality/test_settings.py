"""Settings of ingest and validation: what is refused, and under which key."""

import pytest

from compo_pipeline.core.settings import SettingsError, parse
from compo_pipeline.data.quality.settings import DataValidationSettings

WIDTH = {"column": "width", "least": 32}


def test_null_takes_a_rule_away() -> None:
    values = {"tolerated_share": 0.1, "rules": {"width": None, "height": WIDTH}}
    assert list(parse(DataValidationSettings, values, "validation").rules) == ["height"]


def test_two_names_of_one_rule() -> None:
    # Great Expectations would keep one of them in silence.
    values = {"tolerated_share": 0.1, "rules": {"one": WIDTH, "two": {**WIDTH, "means": "x"}}}
    with pytest.raises(SettingsError, match=r"rules\.one and rules\.two are the same"):
        parse(DataValidationSettings, values, "validation")
