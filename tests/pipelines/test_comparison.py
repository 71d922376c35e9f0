"""Sets of runs: which are trained, and how they are compared."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from compo_pipeline.core.files import read_json, record_json, write_json
from compo_pipeline.core.provenance import CommandOptions
from compo_pipeline.core.records import Score
from compo_pipeline.core.settings import SettingsError, parse
from compo_pipeline.core.table_files import write_rows
from compo_pipeline.evaluation.comparison import BASE, FINE_TUNED, compare, run_pairs
from compo_pipeline.evaluation.evaluate import ComparedModel, Comparison, ScoresFingerprint
from compo_pipeline.evaluation.settings import ComparisonSet
from compo_pipeline.evaluation.suite import compare_runs
from compo_pipeline.models.cost import ModelCost
from compo_pipeline.pages.report import suite_page
from compo_pipeline.pipelines.comparison.nodes import run_cells
from compo_pipeline.pipelines.comparison.pipeline import create_pipeline
from compo_pipeline.project.problems import check_resources
from compo_pipeline.project.settings import Parameters
from compo_pipeline.tuning import cells as runs
from compo_pipeline.tuning.cells import find_cells, load_runs

CELLS = {"CLIC": {"method": "clic"}, "lower": {"method": "clic", "variant": "low"}}
SETS = {
    "two": {"seeds": 2, "cells": CELLS},
    "other": {"seeds": 1, "cells": {"FSC": {"env": "fsc"}}},
}
GIVEN = {"set": "two", "comparison_sets": {"two": {"seeds": 2}}, "training": {"workers": 0}}
COMMAND = CommandOptions("smoke", GIVEN)
COSTS = {
    "small": ModelCost((87.8, 151.3), (4.4, 3.0)),
    "large": ModelCost((86.2, 149.6), (17.5, 3.0)),
}


@pytest.fixture
def started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The processes that were asked for, in a project of one file; those of seed 1 fail."""
    for name, text in {
        "base": "dataset: scenes\nmethod: clic\nvariant: default",
        "smoke": "dataset: few",
        "fsc": "method: fsc_clip\nvariant: fsc_scenes",
    }.items():
        (tmp_path / "conf" / name).mkdir(parents=True)
        (tmp_path / "conf" / name / "globals.yml").write_text(text)
    own = "training: {epochs: 2, workers: 0}\ncomparison_sets: {}"
    (tmp_path / "conf" / "base" / "parameters.yml").write_text(own)
    monkeypatch.chdir(tmp_path)
    commands: list[list[str]] = []

    def run(command: list[str], *, check: bool) -> subprocess.CompletedProcess[str]:
        commands.append(command)
        given = params_of(command)
        place = Path("out", given["method"], given["variant"], f"seed={given['seed']}")
        place.mkdir(parents=True, exist_ok=True)
        for result in ("scores.parquet", "comparison.json"):
            (place / result).write_text("")
        return subprocess.CompletedProcess(command, int("seed=1" in command[-1]))

    monkeypatch.setattr(runs.subprocess, "run", run)
    return commands


def ask(name: str = "two", dataset: str = "few", **manifest: Any) -> list[dict[str, Any]]:
    manifest = {"data_hash": "d", **manifest}
    return run_cells(manifest, [], name, SETS, dataset, COMMAND, "out")


def params_of(command: Sequence[str]) -> dict[str, str]:
    (given,) = (part for part in command if part.startswith("--params="))
    return dict(each.split("=", 1) for each in given.removeprefix("--params=").split(","))


def test_each_cell_and_seed_is_one_run_with_its_options(started: list[list[str]]) -> None:
    with pytest.raises(RuntimeError, match=r"2 of 4 runs failed(.|\n)*seed=1(.|\n)*seed=1"):
        ask()
    assert [params_of(command) for command in started] == [
        {"training.workers": "0", "dataset": "few", "method": "clic"}
        | {"variant": variant, "seed": str(seed)}
        for variant in ("default", "low")
        for seed in range(2)
    ]
    assert all("--env=smoke" in command for command in started)


def test_finished_runs_are_run_again_only_where_something_changed(started: list[list[str]]) -> None:
    def seeds(**manifest: str) -> list[str]:
        started.clear()
        with pytest.raises(RuntimeError):
            ask(**manifest)
        return [params_of(command)["seed"] for command in started]

    assert seeds() == ["0", "1", "0", "1"]
    assert seeds() == ["1", "1"]  # those that failed
    assert seeds(data_hash="other") == ["0", "1", "0", "1"]
    Path("out/clic/low/seed=0/scores.parquet").unlink()
    assert seeds(data_hash="other") == ["1", "0", "1"]
    # Which cells there are is no matter of those that were run.
    Path("conf/smoke/parameters_comparison.yml").write_text("comparison_sets: {}")
    assert seeds(data_hash="other") == ["1", "1"]
    Path("conf/smoke/parameters.yml").write_text("training: {epochs: 3}")
    assert seeds(data_hash="other") == ["0", "1", "0", "1"]


@pytest.mark.parametrize(
    ("cell", "message"),
    [
        ({"method": "clicc"}, r"cells.x.method: 'clicc' is unknown; did you mean 'clic'\?"),
        ({"method": "clic", "env": "smoke"}, r"cells.x.variant: .*the cell 'first' already"),
    ],
)
def test_all_cells_are_checked_before_the_first_one_runs(
    started: list[list[str]], cell: dict[str, Any], message: str
) -> None:
    sets = {"s": {"cells": {"first": {"method": "clic"}, "x": cell}}}
    with pytest.raises(SettingsError, match=message):
        find_cells("s", sets, "few", COMMAND)
    assert not started


def test_the_settings_of_all_cells_are_checked_before_the_run(
    shipped: Parameters, bootstrapped: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(bootstrapped)
    compares = create_pipeline()

    def check(variant: str, **params: Any) -> None:
        cells = {"first": {"method": "clic"}, "x": {"method": "fsc_clip", "variant": variant}}
        sets = {"s": parse(ComparisonSet, {"cells": cells}, "comparison_sets.s")}
        given = replace(shipped, comparison_sets=sets, set="s")
        check_resources(given, CommandOptions(params=params), compares)

    key = r"comparison_sets\.s\.cells\.x: "
    with pytest.raises(SettingsError, match=key + ".*'lor' of fsc_clip; did you mean 'lora'") as e:
        check("lor")
    assert "cells.first" not in str(e.value)
    # A base without what one of the methods needs.
    with pytest.raises(SettingsError, match=key + "model.name: 'RN50' gives no features of") as e:
        check("default", model={"name": "RN50", "pretrained": None})
    assert "cells.first" not in str(e.value)


def test_what_each_cell_has_of_its_own_is_no_option(started: list[list[str]]) -> None:
    command = replace(COMMAND, params={"set": "two", "seed": 1})
    with pytest.raises(SettingsError, match="^seed: .*got seed=1"):
        find_cells("two", SETS, "few", command)
    assert not started


def test_a_cell_of_another_environment_is_of_the_same_dataset(started: list[list[str]]) -> None:
    (cell,) = ask("other", dataset="scenes")
    assert cell["env"] == "fsc" and cell["folders"] == ["out/fsc_clip/fsc_scenes/seed=0"]
    with pytest.raises(
        SettingsError, match=r"comparison_sets.other.cells.FSC.env: .*'scenes'.*'few'"
    ):
        ask("other")
    missing = {"s": {"cells": {"x": {"env": "fcs"}}}}
    key = r"comparison_sets.s.cells.x.env: .*conf/fcs; did you mean 'fsc'\?"
    with pytest.raises(SettingsError, match=key):
        find_cells("s", missing, "few", COMMAND)


def test_unknown_sets_and_cells_without_a_method_are_refused(started: list[list[str]]) -> None:
    with pytest.raises(SettingsError, match=r"^set: .*'twoo'.*'two'.*two, other"):
        ask("twoo")
    with pytest.raises(SettingsError, match=r"comparison_sets.s.cells.x.method: .*got null"):
        find_cells("s", {"s": {"cells": {"x": {"variant": "c1"}}}}, "few", COMMAND)
    assert not started


def scores(model: str, right: Sequence[bool]) -> list[Score]:
    return [
        Score(
            model, "sugar_crepe", "swap_att", "accuracy", str(k), f"{k}.jpg", (0.2, 0.1), one, None
        )
        for k, one in enumerate(right)
    ]


def store(folder: Path, method: str, rows: list[Score], base: str = "f0") -> str:
    """The two files of a finished run that the comparison reads."""
    models = {BASE: "base", FINE_TUNED: method}
    chance = {("sugar_crepe", "accuracy", "swap_att"): 0.5}
    found = compare([rows], models, run_pairs(models), chance)
    compared = {
        BASE: ComparedModel("base", "base", base, base, COSTS.get(base)),
        FINE_TUNED: ComparedModel(method, method, base, f"of {method}", COSTS.get(base)),
    }
    items = ScoresFingerprint("sugar_crepe", "items", "images", "1", {})
    comparison = Comparison(compared, tuple(found), "few", scored=(items,))
    folder.mkdir(parents=True)
    write_rows(folder / "scores.parquet", rows, Score)
    write_json(folder / "comparison.json", record_json(comparison))
    return str(folder)


def test_cells_are_compared_with_the_base_over_all_seeds(tmp_path: Path) -> None:
    base = scores("base", [True] * 4 + [False] * 36)
    seeds = {
        "clic": [[True] * 20 + [False] * 20, [True] * 30 + [False] * 10],
        "sparcl": [[True] * 8 + [False] * 32, [True] * 4 + [False] * 36],
    }
    cells = [
        {
            "label": name.upper(),
            "folders": [
                store(tmp_path / f"{name}{k}", name, [*base, *scores(name, right)])
                for k, right in enumerate(own)
            ],
        }
        for name, own in seeds.items()
    ]
    suite = asdict(compare_runs(load_runs(cells)))
    assert list(suite["models"]) == ["base", "CLIC", "SPARCL"]
    row = suite["rows"][0]
    clic, sparcl = row["differences"]
    assert row["values"]["base"]["value"] == pytest.approx(10)
    assert row["values"]["CLIC"]["value"] == pytest.approx(100 * 25 / 40)
    assert (clic["model"], clic["against"]) == ("CLIC", "base")
    assert clic["value"] == pytest.approx(100 * 21 / 40)
    assert (sparcl["model"], sparcl["seeds"]) == ("SPARCL", 2)
    assert row["chance"] == 50.0
    direct = compare(
        [[*base, *scores("clic", right)] for right in seeds["clic"]],
        {BASE: "base", "CLIC": "clic"},
        [("CLIC", BASE)],
        {("sugar_crepe", "accuracy", "swap_att"): 0.5},
    )
    alone = asdict(direct[0])
    # Corrected for the comparison of the other cell too.
    assert clic.pop("p_holm") >= alone["differences"][0].pop("p_holm")
    assert clic == alone["differences"][0]
    assert row["values"]["CLIC"] == alone["values"]["CLIC"]


def of_two_bases(folder: Path) -> dict[str, list[dict[str, Any]]]:
    """Cells by base, of two seeds each: one base is right on 4 items of 40, the other on 20."""
    right = {
        "small": (4, {"A": (20, 30), "B": (8, 4)}),
        "large": (20, {"C": (22, 19)}),
    }
    cells: dict[str, list[dict[str, Any]]] = {}
    for base, (known, trained) in right.items():
        before = scores("base", [place < known for place in range(40)])
        for label, seeds in trained.items():
            folders = []
            for seed, count in enumerate(seeds):
                rows = [*before, *scores(label, [place < count for place in range(40)])]
                folders.append(store(folder / label / str(seed), label, rows, base=base))
            cells.setdefault(base, []).append({"label": label, "folders": folders})
    return cells


def test_a_page_of_two_bases_equals_the_two_pages_apart(tmp_path: Path) -> None:
    cells = of_two_bases(tmp_path)
    (a, b), (c,) = cells.values()
    suite = compare_runs(load_runs([a, c, b]))
    (row,) = suite.rows
    assert list(suite.models) == ["base small", "A", "B", "base large", "C"]
    assert suite.against == {"A": "base small", "B": "base small", "C": "base large"}
    for base, own in cells.items():
        (alone,) = compare_runs(load_runs(own)).rows
        expected = {f"base {base}" if name == BASE else name: v for name, v in alone.values.items()}
        assert {name: row.values[name] for name in expected} == expected
        for each in alone.differences:
            found = row.difference_of(each.model)
            assert found is not None
            assert replace(found, against=BASE, p_holm=each.p_holm) == each
    # Corrected over the whole page.
    smallest = min(row.differences, key=lambda each: each.p)
    assert smallest.p_holm == pytest.approx(3 * smallest.p)

    html, markdown, *_ = suite_page(suite, "Two bases", {}).files("page.html", "page.md").values()
    for text in (str(html), str(markdown)):
        assert "Differences from the own base" in text and "C - base large" in text
    assert "| C | base large | 149.6 | 86.2 | 17.5 | 3.0 |" in str(markdown)


def test_runs_of_other_items_or_of_several_bases_in_one_cell_are_refused(tmp_path: Path) -> None:
    (a, b), (c,) = of_two_bases(tmp_path).values()
    mixed = {**a, "folders": [*a["folders"], *c["folders"]]}
    with pytest.raises(ValueError, match="^A: its seeds are of several base models"):
        compare_runs(load_runs([b, mixed]))
    with pytest.raises(ValueError, match="^'base' is the name of the base model"):
        compare_runs(load_runs([{**a, "label": "base"}]))
    place = Path(b["folders"][1], "comparison.json")
    stored = read_json(place)
    stored["scored"][0]["items"] = "others"
    write_json(place, stored)
    with pytest.raises(ValueError, match="^B: its items of sugar_crepe are not those of A"):
        compare_runs(load_runs([a, b]))
