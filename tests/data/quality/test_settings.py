"""Settings of ingest and validation: what is refused, and under which key."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from compo_pipeline.core.settings import SettingsError, parse
from compo_pipeline.data.quality.settings import DataValidationSettings, IngestSettings, RowRule

WIDTH = {"column": "width", "least": 32}


def test_every_rule_of_the_project_is_a_rule(project: Path) -> None:
    content = yaml.safe_load((project / "conf/base/parameters_validation.yml").read_text())
    rules = parse(DataValidationSettings, content["validation"], "validation").rules
    assert len(rules) >= 10
    assert all(rule.means for rule in rules.values())


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


@pytest.mark.parametrize("share", [-0.1, 5])
def test_a_share_that_is_none(share: float) -> None:
    with pytest.raises(SettingsError, match=rf"validation\.tolerated_share: .*\(got {share}\)"):
        parse(DataValidationSettings, {"tolerated_share": share, "rules": {}}, "validation")


@pytest.mark.parametrize("pixels", [0, 200_000_000])
def test_a_pixel_limit_that_cannot_be_kept(pixels: int) -> None:
    with pytest.raises(SettingsError, match=rf"ingest\.max_pixels: .*\(got {pixels}\)"):
        parse(IngestSettings, {"max_pixels": pixels}, "ingest")


def test_expectations_in_words() -> None:
    assert RowRule("width", least=1, most=2).expected == "at least 1, at most 2"
    assert RowRule("width", most=2).expected == "at most 2"
    assert RowRule("decode_error", values=("",)).expected == "nothing"
    assert RowRule("leaks", values=(False,)).expected == "False"
    assert RowRule("decode_error", pattern="^a").expected == "nothing like ^a"
