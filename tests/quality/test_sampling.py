"""Samples: exact in number, seeded, even, in order, and of one split alone."""

from collections import Counter
from typing import Any

import pytest

from compo_pipeline.configuration import SettingsError, parse
from compo_pipeline.datasets.readers.record import RawCaption, rejected
from compo_pipeline.datasets.settings import DataSettings, SampleSettings
from compo_pipeline.quality.sampling import Sample
from compo_pipeline.records import Rejected


def record(number: int, split: str = "train") -> RawCaption:
    return RawCaption(f"{split}-{number}", f"i{number}", "i.jpg", ("A dog.",), (), split)


RECORDS: list[RawCaption | Rejected] = [
    *(record(number) for number in range(20)),
    rejected("train-x", "", "cut off"),
    *(record(number, "test") for number in range(3)),
]


def drawn(
    rows: int | None, seed: int = 0, records: list[RawCaption | Rejected] = RECORDS
) -> list[RawCaption | Rejected]:
    return list(Sample(SampleSettings(rows, seed)).of(records))


def test_the_sample_is_exact_in_the_records_order_and_leaves_the_rest_alone() -> None:
    taken = drawn(7)
    assert len(taken) == 7 + 1 + 3
    assert [entry for entry in RECORDS if entry in taken] == taken
    assert taken[-4:] == RECORDS[-4:]
    assert taken == drawn(7)
    assert taken != drawn(7, seed=1)


def test_another_order_or_further_records_change_no_preference() -> None:
    taken = {entry.sample_id for entry in drawn(7)}
    assert {entry.sample_id for entry in drawn(7, records=RECORDS[::-1])} == taken
    more = {entry.sample_id for entry in drawn(7, records=[*RECORDS, record(99), record(98)])}
    assert more - taken <= {"train-98", "train-99"}


def test_every_record_is_as_likely_as_any_other() -> None:
    seen = Counter(entry.sample_id for seed in range(400) for entry in drawn(5, seed)[:5])
    assert len(seen) == 20
    assert all(60 < count < 145 for count in seen.values()), "100 expected, deviation 9"


@pytest.mark.parametrize("rows", [None, 20, 21])
def test_all_are_taken_where_there_are_no_more(rows: int | None) -> None:
    assert drawn(rows) == RECORDS


def test_repeated_ids_are_records_of_their_own() -> None:
    assert len(drawn(3, records=[record(1)] * 5)) == 3


def test_the_report_counts_what_could_be_read() -> None:
    sample = Sample(SampleSettings(7, 4))
    list(sample.of(RECORDS))
    assert sample.report() == {"split": "train", "seed": 4, "records": 20, "taken": 7}
    assert Sample(SampleSettings()).report() is None


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"rows": 0}, r"data\.sample.*expected at least 1"),
        ({"rows": 5, "split": "val"}, r"data.*sample\.split: 'val' is none of train"),
        ({"row": 5}, r"data\.sample\.row: unknown key; did you mean 'rows'"),
    ],
)
def test_a_sample_that_is_none_names_its_key(values: dict[str, Any], message: str) -> None:
    data = {"root": ".", "format": "table", "splits": {"train": "t.csv", "val": None}}
    with pytest.raises(SettingsError, match=message):
        parse(DataSettings, {**data, "sample": values}, "data")
