"""Settings of ingest and validation: what is refused, and under which key."""

from typing import Any

import pytest

from compo_pipeline.core.settings import SettingsError, parse
from compo_pipeline.data.quality.settings import DataValidationSettings

WIDTH = {"column": "width", "least": 32}


def test_null_takes_a_rule_away() -> None:
    values = {"tolerated_share": 0.1, "rules": {"width": None, "height": WIDTH}}
    assert list(parse(DataValidationSettings, values, "validation").rules) == ["height"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"colum": "width"}, r"validation\.rules\.width\.colum: unknown key; did you mean"),
        ({"column": "widht"}, r"unknown column 'widht'; did you mean 'width'"),
        ({"least": None}, "expected least or most"),
        ({"pattern": "x"}, "no two of these"),
        ({"least": "many"}, r"validation\.rules\.width\.least.*got 'many'"),
    ],
)
def test_a_mistaken_rule_names_its_key(change: dict[str, Any], message: str) -> None:
    values = {"tolerated_share": 0.1, "rules": {"width": {**WIDTH, **change}}}
    with pytest.raises(SettingsError, match=message):
        parse(DataValidationSettings, values, "validation")


def test_two_names_of_one_rule() -> None:
    # Great Expectations would keep one of them in silence.
    values = {"tolerated_share": 0.1, "rules": {"one": WIDTH, "two": {**WIDTH, "means": "x"}}}
    with pytest.raises(SettingsError, match=r"rules\.one and rules\.two are the same"):
        parse(DataValidationSettings, values, "validation")
