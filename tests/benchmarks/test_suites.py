"""The papers' suites against the papers' tables, and what settings make of a suite."""

import json
import logging
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from compo_pipeline.benchmarks.loading import from_files, not_run_labels
from compo_pipeline.benchmarks.settings import BENCHMARKS, BenchmarkSet, BenchmarksSettings
from compo_pipeline.benchmarks.suites import (
    CLIC_DRAW,
    SUITES,
    Aggregate,
    aggregates_of,
    enabled_sets,
)
from compo_pipeline.benchmarks.zero_shot_sets import ZS10, ZS11, ZS21
from compo_pipeline.core.settings import SettingsError, parse

Text = Callable[[str], str]


@pytest.fixture
def text(shared: Path) -> Text:
    def read(name: str) -> str:
        file = shared.parent / "papers" / name
        if not file.is_file():
            pytest.skip(f"{name} is not on this machine")
        return file.read_text(encoding="utf-8")

    return read


def plain(name: str) -> str:
    return re.sub(r"[^a-z0-9+]", "", name.lower())


def rows(part: str, columns: int, between: str = " ") -> list[list[float]]:
    """The last numbers of every line of a table that has so many."""
    number = r"\|? *(?:\\ul)?(\d+\.\d)" if between == "|" else r"(?:\\ul)?(\d+\.\d)"
    line = re.compile(rf"(?: {number}){{{columns}}}[ |]*$", re.MULTILINE)
    found = []
    for match in line.finditer(part):
        found.append([float(each) for each in re.findall(r"\d+\.\d", match[0])])
    return found


def aggregate(suite: str, source: str) -> Aggregate:
    (found,) = (one for one in SUITES[suite].aggregates if one.source == source)
    return found


def check_means(one: Aggregate, table: list[list[float]], least: int) -> None:
    """The mean of the members is the printed average, the last column."""
    assert len(table) >= least
    off = []
    for *values, average in table:
        assert len(values) == len(one.members)
        by_key = {
            key: value for member, value in zip(one.members, values, strict=True) for key in member
        }
        # Values and average are rounded to 0.1.
        if abs(one.mean(by_key) - average) > 0.1001:
            off.append((values, average))
    # Single rows of the papers have misprints.
    assert len(off) <= len(table) // 10, off


def test_c2lip_averages_are_those_of_its_tables(text: Text) -> None:
    paper = text("c2lip_paper.txt")
    for source, start, columns in (
        ("Tables 2 and 4", "Table 2:", 12),
        ("Table 3", "Table 3:", 6),
        ("Table A5", "Table A5:", 8),
        ("Table A6", "Table A6:", 11),
    ):
        end = paper.index("\nTable ", paper.index(start) + 1) if start != "Table A6:" else None
        part = paper[paper.index(start) : end]
        check_means(aggregate("c2lip", source), rows(part, columns + 1), 10)


def test_c2lip_has_the_zero_shot_sets_and_retrieval_of_its_tables(text: Text) -> None:
    paper = text("c2lip_paper.txt")
    part = paper[paper.index("Table A6:") :]
    names = part[part.index("\nModel\n") : part.index("\nAverage\n")].split("\n\n")[1:]
    assert len(names) == len(ZS11)
    for column, name in zip(names, ZS11, strict=True):
        assert plain(column) in plain(name)
    header = re.search(r"^Models MSCOCO (.*) Average$", paper, re.MULTILINE)
    assert header is not None
    columns = ["mscoco", *map(plain, header[1].split())]
    labels = {plain(BENCHMARKS[name].label).removesuffix("retrieval"): name for name in BENCHMARKS}
    one = aggregate("c2lip", "Table A5")
    assert [member[0][0] for member in one.members[::2]] == [
        labels[column.removeprefix("ms")] for column in columns
    ]
    assert "Flickr8K" in paper and "flickr8k" in SUITES["c2lip"].sets


def test_clic_has_the_zero_shot_sets_of_its_table(text: Text) -> None:
    paper = text("clic_paper.txt")
    part = paper[paper.index("Table 15:") : paper.index("Table 16: Comp")]
    header = re.search(r"^Model Source (.*) Mean$", part, re.MULTILINE)
    assert header is not None
    names = header[1].split()
    assert len(names) == len(ZS10)
    for column, name in zip(names, ZS10, strict=True):
        assert plain(column)[:3] in plain(name)
    check_means(aggregate("clic", "Tables 2 and 15"), rows(part, 11), 10)
    drawn = re.search(r"we use (\d+)k images of each", paper)
    assert drawn is not None and int(drawn[1]) * 1000 == CLIC_DRAW
    evaluated = paper[paper.index("\nEvaluation. We evaluated") :].split("\n")[1]
    named = {"zero_shot_sets": "imagenet", "coco": "mscoco"}
    for name in SUITES["clic"].sets:
        assert named.get(name, plain(BENCHMARKS[name].label).removesuffix("retrieval")) in plain(
            evaluated
        )


def test_fsc_comp_is_the_average_of_its_columns(text: Text) -> None:
    paper = text("fsc_clip_paper.txt")
    part = paper[paper.index("\nARO |") : paper.index("References: 1Yuk")]
    columns = [line.removesuffix(" |") for line in part.split("\n|---")[0].split("\n")[1:]]
    names = columns[: columns.index("Comp")]
    one, *_ = SUITES["fsc"].aggregates
    labels = {plain(BENCHMARKS[member[0][0]].label): member for member in one.members}
    found = {plain(name): place for place, name in enumerate(names)}
    assert found.keys() == labels.keys()
    ordered = Aggregate(one.label, tuple(labels[name] for name in found))
    table = [
        [float(cell) for cell in line]
        for line in (re.findall(r"(?<=\| )\d+\.\d(?= \|)", each) for each in part.split("\n"))
        if len(line) == len(names) + 4
    ]
    check_means(ordered, [row[: len(names) + 1] for row in table], 12)
    counts = re.search(r"(\d+) compositionality, (\d+) zero-shot recognition, and (\d+)", paper)
    assert counts is not None
    _, recalled, _, classified = (len(each.members) for each in SUITES["fsc"].aggregates)
    assert [int(each) for each in counts.groups()] == [len(one.members), classified, recalled]
    assert len(ZS21) == classified
    assert SUITES["fsc"].sets["eqben"].items == int(
        paper.split("cap the evaluation sample size at ")[1][:6].replace(",", "")
    )


def test_sparcl_average_is_of_four_benchmarks(text: Text) -> None:
    notes = text("sparcl_notes.txt")
    part = notes[notes.index("Configuration ARO") : notes.index("Key Findings")]
    (one,) = SUITES["sparcl"].aggregates
    check_means(one, rows(part, 5), 5)


def test_members_of_averages_are_scored_by_the_suite() -> None:
    for suite in SUITES.values():
        assert suite.sets.keys() <= set(BENCHMARKS)
        used = {key[0] for one in suite.aggregates for member in one.members for key in member}
        assert used <= suite.sets.keys()
        assert all(one.source for one in suite.aggregates)
    assert aggregates_of("sparcl") == SUITES["sparcl"].aggregates


def wanted(**values: object) -> BenchmarksSettings:
    return parse(BenchmarksSettings, values, "benchmarks")


def test_sets_add_to_a_suite_change_and_remove_its_members() -> None:
    sets = {"winoground": None, "bivlc": {}, "coco": {"root": "/coco"}, "eqben": {"images": "/i"}}
    found = enabled_sets(wanted(suite="fsc", sets=sets))
    assert found.keys() == (SUITES["fsc"].sets.keys() | {"bivlc"}) - {"winoground"}
    assert found["coco"] == BenchmarkSet("/coco", optional=True)
    assert found["bivlc"] == BenchmarkSet(optional=False)
    assert found["eqben"].images == "/i" and found["eqben"].items == 20_000
    assert enabled_sets(wanted(suite="fsc", sets={"eqben": {"items": 5, "optional": False}}))[
        "eqben"
    ] == BenchmarkSet(items=5, optional=False)


def test_a_misspelt_suite_is_refused() -> None:
    with pytest.raises(SettingsError, match=r"benchmarks\.suite: .* 'sparkl'; did you mean 'spar"):
        enabled_sets(wanted(suite="sparkl"))


def test_absent_members_are_one_line_and_not_run(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "sugar_crepe").mkdir()
    item = {"filename": "1.jpg", "caption": "A dog.", "negative_caption": "A cat."}
    (tmp_path / "sugar_crepe" / "swap_obj.json").write_text(json.dumps({"0": item}))
    settings = wanted(root=str(tmp_path), suite="sparcl")
    with caplog.at_level(logging.WARNING):
        (found,) = from_files(settings)
    assert found.benchmark == "sugar_crepe"
    (line,) = caplog.messages
    absent = ("ARO", "VL-CheckList", "SugarCrepe++")
    assert not_run_labels(settings) == absent and all(name in line for name in absent)
    with pytest.raises(SettingsError, match=r"benchmarks\.root: nothing is there: .*ARO"):
        from_files(wanted(root=str(tmp_path / "absent"), suite="sparcl"))
    demanded = wanted(root=str(tmp_path), suite="sparcl", sets={"aro": {"optional": False}})
    with pytest.raises(SettingsError, match=r"sets\.aro: there is no folder"):
        from_files(demanded)
