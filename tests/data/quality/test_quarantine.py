"""Rules over facts: which rows break them, quarantine, Data Docs, and when a run fails."""

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from compo_pipeline.core.records import Caption, Fact, Rejected
from compo_pipeline.core.settings import SettingsError, parse
from compo_pipeline.data.catalog import PageDataset
from compo_pipeline.data.quality.quarantine import TooManyBadRows, refuse_too_many, valid_captions
from compo_pipeline.data.quality.settings import DataValidationSettings, RowRule
from compo_pipeline.pipelines.validation.nodes import validate_facts

GOOD = Fact(
    row=0,
    sample_id="train-0",
    image="a.jpg",
    split="train",
    image_hash="hash",
    decode_error=None,
    width=64,
    height=48,
    sentences=3,
    least_words=4,
    most_words=34,
    repeats_id=False,
    repeats_pair=False,
    leaks=False,
)
BREAKING = {
    "unique_id": replace(GOOD, repeats_id=True),
    "image_inside_root": replace(GOOD, decode_error="out_of_root: '../a.jpg'", width=0, height=0),
    "image_present": replace(GOOD, decode_error="missing: no file", width=0, height=0),
    "image_decodes": replace(GOOD, decode_error="truncated: cut off", width=0, height=0),
    "width": replace(GOOD, width=31),
    "height": replace(GOOD, height=31),
    "enough_sentences": replace(GOOD, sentences=0),
    "shortest_sentence": replace(GOOD, least_words=3),
    "longest_sentence": replace(GOOD, most_words=35),
    "unique_pair": replace(GOOD, repeats_pair=True),
    "no_leak": replace(GOOD, leaks=True),
}
Outcome = tuple[list[Rejected], dict[str, Any], Path]
NO_CAPTIONS: dict[str, Any] = {"captions": 0, "distinct_texts": {}, "forms": {}}
UNPARSEABLE = Rejected(-1, "train-x", "", "unparseable", "line 3: no JSON")


def validate(
    facts: list[Fact], unparseable: list[Rejected], settings: DataValidationSettings, docs: Path
) -> Outcome:
    """What the node finds; its Data Docs are saved as the catalog does."""
    entries, result, pages = validate_facts(facts, unparseable, NO_CAPTIONS, settings)
    PageDataset(filepath=str(docs), page="index.html").save(pages)
    return entries, result, docs


def numbered(*facts: Fact) -> list[Fact]:
    return [replace(fact, row=row, sample_id=f"train-{row}") for row, fact in enumerate(facts)]


@pytest.fixture(scope="module")
def settings(project: Path) -> DataValidationSettings:
    """The project's own rules."""
    content = yaml.safe_load((project / "conf/base/parameters_validation.yml").read_text())
    return parse(DataValidationSettings, content["validation"], "validation")


@pytest.fixture(scope="module")
def outcome(settings: DataValidationSettings, tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    """A good row, then one row for each rule, then a good row."""
    facts = numbered(GOOD, *BREAKING.values(), GOOD)
    return validate(facts, [UNPARSEABLE], settings, tmp_path_factory.mktemp("docs") / "data_docs")


def test_every_rule_of_the_project_finds_its_row(
    settings: DataValidationSettings, outcome: Outcome
) -> None:
    entries, result, _ = outcome
    assert list(BREAKING) == list(settings.rules), "each rule has a row here that breaks it"
    assert entries[0] == UNPARSEABLE
    assert [(entry.row, entry.rule) for entry in entries[1:]] == list(enumerate(BREAKING, start=1))
    assert (result["records"], result["bad"], result["unparseable"]) == (14, 12, 1)
    assert result["rules"]["unique_id"]["rows"] == [1]
    counts = {name: rule["broken_by"] for name, rule in result["rules"].items()}
    assert counts == dict.fromkeys(BREAKING, 1), "one fault is counted once"


def test_the_page_profiles_the_data(outcome: Outcome, approved: Callable[[str, str], None]) -> None:
    index = (outcome[2] / "index.html").read_text()
    approved("data_docs", index)
    rows = len(BREAKING) + 2
    assert f"<td>train</td><td>{rows}</td><td>1</td><td>3</td>" in index  # three are unreadable
    assert "<td>image width, pixels</td><td>31</td>" in index  # the narrow image
    assert "<td>rows with the sample_id of an earlier row</td><td>1</td>" in index
    # What a rule means, never the expression that it is made of.
    assert "^(?:missing|empty)" not in index


def result_of(bad: int, records: int, unparseable: int = 0) -> dict[str, Any]:
    return {
        "records": records,
        "bad": bad,
        "bad_share": bad / records if records else 0.0,
        "tolerated_share": 0.1,
        "warnings": [],
        "unparseable": unparseable,
        "examples": {"width": "train-3: width is 31, expected at least 32"},
        "rules": {
            "width": {
                "column": "width",
                "means": "too narrow",
                "broken_by": 2,
                "rows": [3, 7],
            },
            "no_leak": {"column": "leaks", "broken_by": 0, "rows": []},
        },
    }


def test_only_more_than_the_tolerated_share_stops_a_run() -> None:
    refuse_too_many(result_of(10, 100))
    with pytest.raises(TooManyBadRows) as raised:
        refuse_too_many(result_of(11, 100, unparseable=9))
    message = str(raised.value)
    assert "11 of 100 records are bad (11.0%), validation.tolerated_share allows 10.0%" in message
    assert "width: 2 records, such as train-3: width is 31, expected at least 32" in message
    assert "unparseable: 9 records" in message
    assert "no_leak" not in message


def test_no_record_and_no_good_record_stop_a_run() -> None:
    with pytest.raises(TooManyBadRows, match="holds no record"):
        refuse_too_many(result_of(0, 0))
    with pytest.raises(TooManyBadRows, match="5 of 5") as raised:
        refuse_too_many({**result_of(5, 5), "tolerated_share": 1.0})
    assert "Raising validation.tolerated_share does not help" in str(raised.value)


def test_the_advice_of_a_refusal_is_true() -> None:
    found = result_of(11, 100)
    with pytest.raises(TooManyBadRows) as raised:
        refuse_too_many(found)
    message = str(raised.value)
    assert "--params validation.rules.width=null" in message
    (share,) = re.findall(r"validation\.tolerated_share=([\d.]+)", message)
    refuse_too_many({**found, "tolerated_share": float(share)})
    found["rules"] = {"image_present": {**found["rules"]["width"], "column": "decode_error"}}
    with pytest.raises(TooManyBadRows) as raised:
        refuse_too_many(found)
    assert "null" not in str(raised.value), "an image that is not there trains nothing"
    found["rules"] = {"no_leak": {**found["rules"]["image_present"], "column": "leaks"}}
    with pytest.raises(TooManyBadRows, match=r"which data\.shares divides") as raised:
        refuse_too_many(found)
    assert "null" not in str(raised.value), "held-out images that train measure nothing"


def test_dead_links_are_counted_apart_from_bad_records(
    settings: DataValidationSettings, tmp_path: Path
) -> None:
    gone = [Rejected(-1, f"train-{n}", "", "not_downloaded", "404") for n in range(9)]
    facts = numbered(*[GOOD] * 4)
    entries, result, docs = validate(facts, [*gone, UNPARSEABLE], settings, tmp_path / "docs")
    assert entries == [*gone, UNPARSEABLE]
    assert (result["records"], result["bad"], result["bad_share"]) == (5, 1, 0.2)
    assert (result["unparseable"], result["not_downloaded"]) == (1, 9)
    assert "1 of them could not be parsed. 9 more were never" in (docs / "index.html").read_text()
    rows = [Caption("s", "i", "a.jpg", 1, 1, ("A.",), "t", "train") for _ in range(4)]
    assert list(valid_captions(rows, entries, {**result, "tolerated_share": 0.2})) == rows
    _, result, _ = validate([], gone, settings, tmp_path / "docs")
    with pytest.raises(TooManyBadRows, match="holds no record whose image was downloaded"):
        refuse_too_many(result)


def test_valid_rows_are_chosen_by_their_number() -> None:
    rows = [Caption("same", "i", f"{n}.jpg", 1, 1, ("A.",), "t", "train") for n in range(20)]
    bad = [UNPARSEABLE, Rejected(1, "same", "1.jpg", "unique_id", "")]
    left = valid_captions(rows, bad, result_of(2, 21, unparseable=1))
    assert list(left) == [rows[0], *rows[2:]]
    with pytest.raises(ValueError, match="run ingest and validation again"):
        valid_captions(rows[1:], bad, result_of(2, 21, unparseable=1))


def test_a_split_without_a_valid_row_says_why() -> None:
    rows = [Caption("s", "i", f"{n}.jpg", 1, 1, ("A.",), "t", "test") for n in range(3)]
    rows += [replace(rows[0], split="train") for _ in range(97)]
    bad = [Rejected(n, f"test-{n}", "", "width", f"width is {n}, expected 32") for n in range(3)]
    with pytest.raises(
        TooManyBadRows, match=r"splits\.test: .*; 3 .* test-0: width is 0, expected"
    ):
        valid_captions(rows, bad, result_of(3, 100))


def test_a_rule_of_ones_own(tmp_path: Path) -> None:
    settings = DataValidationSettings(
        tolerated_share=0.5, rules={"only_train": RowRule(column="split", values=("train",))}
    )
    facts = numbered(GOOD, replace(GOOD, split="test"))
    ((entry,), _, _) = validate(facts, [], settings, tmp_path / "docs")
    assert (entry.row, entry.detail) == (1, "split is 'test', expected train")


def test_no_rows_and_no_rules(settings: DataValidationSettings, tmp_path: Path) -> None:
    entries, result, _ = validate([], [UNPARSEABLE], settings, tmp_path / "docs")
    assert (entries, result["records"]) == ([UNPARSEABLE], 1)
    entries, _, _ = validate(numbered(GOOD), [], replace(settings, rules={}), tmp_path / "docs")
    assert entries == []


WIDTH = {"column": "width", "least": 32}


def test_null_takes_a_rule_away() -> None:
    values = {"tolerated_share": 0.1, "rules": {"width": None, "height": WIDTH}}
    assert list(parse(DataValidationSettings, values, "validation").rules) == ["height"]


def test_two_names_of_one_rule() -> None:
    # Great Expectations would keep one of them in silence.
    values = {"tolerated_share": 0.1, "rules": {"one": WIDTH, "two": {**WIDTH, "means": "x"}}}
    with pytest.raises(SettingsError, match=r"rules\.one and rules\.two are the same"):
        parse(DataValidationSettings, values, "validation")
