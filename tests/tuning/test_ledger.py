"""The ledger: which runs on disk stand beside published values, and why others do not."""

import json
from dataclasses import asdict
from functools import partial
from pathlib import Path

import pytest
from click.testing import CliRunner
from kedro.framework.cli.cli import KedroCLI
from tests.pipelines.test_comparison import scores, store

from compo_pipeline.core.files import read_json, write_json
from compo_pipeline.evaluation.evaluate import Audit

METRIC, ITEMS, PUBLISHED = "sugar_crepe/accuracy/swap_att", 666, 74.2
RESULTS = Path("data/07_model_output")
LAION = RESULTS / "laion" / "clic"


@pytest.fixture
def ledger(new_workspace, monkeypatch):
    """Runs the command in a project without any results."""
    workspace = new_workspace()
    monkeypatch.chdir(workspace)
    return lambda *options: CliRunner().invoke(KedroCLI(workspace), ["ledger", *options])


def run(place, right, items=ITEMS, params=None, rows=None):
    """The files of a finished run of --env=laion that has this many items right."""
    answers = {"base": 400, "clic": right}
    rows_of = (scores(name, [k < hits for k in range(items)]) for name, hits in answers.items())
    store(place, "clic", [row for own in rows_of for row in own])
    options = {"env": "laion", "params": params or {}}
    write_json(place / "run.json", {"rows": rows, "options": options})


def entries(ledger, model="CLIC-LAION", table="clic/9"):
    shown = ledger("--json", "--table", table)
    assert shown.exit_code == 0, shown.output
    return [each for each in json.loads(shown.stdout) if each["model"] == model]


def cell(ledger, **given):
    (entry,) = entries(ledger, **given)
    return next(each for each in entry["cells"] if each["metric"] == METRIC)


def test_a_run_of_the_recipe_fills_its_cell_with_an_interval(ledger):
    assert cell(ledger)["remark"] == "not run"
    run(LAION / "default" / "seed=0", 500, params={"training.workers": "4", "tracking.uri": "x"})
    found = cell(ledger)
    assert found["published"] == PUBLISHED
    assert found["measured"]["value"] == pytest.approx(100 * 500 / ITEMS)
    assert 70 < found["measured"]["low"] < 75 < found["measured"]["high"] < 80
    shown = ledger()
    lines = [line.rstrip() for line in shown.stdout.splitlines()]
    # Without training first, then by the papers' hours, then where they state none.
    first, place, last = (
        next(k for k, line in enumerate(lines) if line.endswith(end))
        for end in ("models=clic", "kedro run --env=laion", "kedro run --env=coco")
    )
    assert first < place < last
    assert "CLIC-LAION" in lines[place] and "+0.9" in lines[place]
    page = Path(lines[-1].removeprefix("Page: ")).read_text()
    assert "75.1" in page and str(LAION / "default" / "seed=0") in page


def test_several_seeds_have_one_value_over_all(ledger):
    for seed, right in enumerate((480, 520)):
        run(LAION / "default" / f"seed={seed}", right, params={"seed": str(seed)})
    assert cell(ledger)["measured"]["value"] == pytest.approx(100 * 500 / ITEMS)
    assert len(entries(ledger)[0]["folders"]) == 2


def test_a_run_on_all_published_rows_goes_first(ledger):
    run(LAION / "default" / "seed=0", 400, rows="not the published rows: 2,000 are held out")
    assert entries(ledger)[0]["note"].startswith("not the published rows")
    run(LAION / "published" / "seed=0", 500)
    assert cell(ledger)["measured"]["value"] == pytest.approx(100 * 500 / ITEMS)
    assert entries(ledger)[0]["note"] == ""


def unofficial(place):
    run(place, 500)
    content = read_json(place / "comparison.json")
    write_json(place / "comparison.json", content | {"titles": {"sugar_crepe": "of our own"}})


def deviating(place):
    run(place, 500)
    content = read_json(place / "comparison.json")
    audit = Audit("sugar_crepe", "swap_att", ITEMS, 0, {}, 1, 0, 0, deviations=("a tie",))
    write_json(place / "comparison.json", content | {"audits": [asdict(audit)]})


def edited(place):
    run(place, 500)
    content = read_json(place / "comparison.json")
    audit = Audit("sugar_crepe", "swap_att", ITEMS, 0, {}, 1, 0, 0, content="0" * 16)
    write_json(place / "comparison.json", content | {"audits": [asdict(audit)]})


def by_hand(place):
    run(place, 500)
    (place / "run.json").unlink()


@pytest.mark.parametrize(
    ("made", "remark"),
    [
        (unofficial, "unofficial files"),
        (edited, "the texts of sugar_crepe/swap_att are not those of the official files"),
        (deviating, "not scored as officially: a tie"),
        (partial(run, right=100, items=120), "120 items of 120 images, officially 666"),
        (partial(run, right=500, params={"training.epochs": "2"}), "training.epochs=2"),
        (partial(run, right=500, params={"data.sample.rows": "10"}), "data.sample.rows=10"),
        (partial(run, right=500, params={"benchmarks.exif": "false"}), "benchmarks.exif=false"),
        (by_hand, "not recorded"),
    ],
)
def test_other_files_items_and_settings_are_no_counterpart(ledger, made, remark):
    made(LAION / "default" / "seed=0")
    found = cell(ledger)
    assert found["measured"] is None and remark in found["remark"]


def test_a_base_is_measured_by_the_list_of_its_paper(ledger):
    (entry,) = entries(ledger, "CLIP")
    folder = RESULTS / "benchmark" / entry["command"].rpartition("=")[2]
    run(folder, 500)
    suite = read_json(folder / "comparison.json") | {"settings": {"precision": "fp32"}}
    base = suite["models"].pop("base") | {"weights": "ViT-B-32-quickgelu"}
    for row in suite["rows"]:
        row |= {"values": {"openai_b32": row["values"]["base"]}, "differences": []}
    suite["models"] = {"openai_b32": base}
    write_json(folder / "suite.json", suite)
    measured = cell(ledger, model="CLIP")["measured"]
    assert measured["value"] == pytest.approx(100 * 400 / ITEMS)
    for other in (
        {"settings": {"precision": "bf16"}},
        {"models": {"openai_b32": base | {"weights": "x"}}},
    ):
        write_json(folder / "suite.json", suite | other)
        assert cell(ledger, model="CLIP")["measured"] is None


def test_an_unknown_table_is_refused_with_the_nearest(ledger):
    shown = ledger("--table", "clic/99")
    assert shown.exit_code == 1
    assert "there is no 'clic/99'; did you mean 'clic/9'?" in shown.stderr
