import io
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import yaml
from PIL import Image
from rich.console import Console

from compo_pipeline.benchmarks.items import Item, Subtask
from compo_pipeline.core.files import record_json
from compo_pipeline.core.provenance import Site
from compo_pipeline.core.records import Score
from compo_pipeline.core.settings import parse
from compo_pipeline.evaluation.comparison import compare, item_changes, run_pairs
from compo_pipeline.evaluation.conclusions import summary_lines
from compo_pipeline.evaluation.contamination import Overlap
from compo_pipeline.evaluation.evaluate import Audit, ComparedModel, Comparison
from compo_pipeline.pages import report
from compo_pipeline.pages.pages import Card, Link
from compo_pipeline.pages.tables import show

MODELS = {"base": "base", "control": "control", "fine_tuned": "clic"}
COMPARED = {
    "base": ComparedModel("base", "base", "scenes-base"),
    "control": ComparedModel("control", "control"),
    "fine_tuned": ComparedModel("clic", "CLIC"),
}
# Per item: whether base, control and fine-tuned are right.
CORRECT = {
    "0": (False, False, True),
    "1": (False, True, True),
    "2": (True, True, False),
    "3": (False, False, False),
    "4": (True, True, True),
}
CAPTION = "a <b>red</b> cup & a plate"


@pytest.fixture
def subtask(tmp_path: Path) -> Subtask:
    images = tmp_path / "images"
    images.mkdir()
    for name in CORRECT:
        Image.new("RGB", (400, 300), (40 * int(name), 120, 90)).save(images / f"{name}.png")
    items = tuple(Item(name, f"{name}.png", (CAPTION, "p2"), ("n",)) for name in CORRECT)
    return Subtask("sugar_crepe_pp", "swap_att", ("image_to_text",), images, items)


def _scores() -> list[Score]:
    return [
        Score(model, "sugar_crepe_pp", "swap_att", "itt", item, f"{item}.png", (0.3, 0.2, 0.25),
              correct[place], None)
        for place, model in enumerate(MODELS.values())
        for item, correct in CORRECT.items()
    ]  # fmt: skip


@pytest.fixture
def comparison() -> Comparison:
    rows = compare([_scores()], MODELS, run_pairs(MODELS), {})
    return Comparison(
        dataset="scenes",
        models=COMPARED,
        conclusions=summary_lines(rows),
        rows=tuple(rows),
        audits=(Audit("sugar_crepe_pp", "swap_att", 8, 3, {"missing": 3}, 20, 2, 1),),
        overlaps=(
            Overlap("sugar_crepe_pp", "swap_att", 5, 0, 1, 9, 4, {"right seen, wrong none": 3}),
        ),
        slices=(replace(rows[0], slice="attribute=<b>red</b>"),),
    )


@pytest.fixture
def material(comparison: Comparison, subtask: Subtask) -> dict[str, Any]:
    return {
        "comparison": comparison,
        "cards": list(
            report.change_cards(
                [subtask], item_changes(_scores(), [subtask], ("base", "clic")), comparison, 10
            )
        ),
        "curves": pd.DataFrame({"model": ["clic"] * 3, "step": [0, 1, 2], "loss": [3.0, 2.0, 1.5]}),
        "diagnosis": [],
        "measured": ["Measured: composition."],
        "settings": {"training": {"epochs": 4}},
        "facts": {"commit": "abc123", "command": "kedro run --env=<b>"},
        "links": [
            Link("Views", "../views/index.html"),
            *(Link(name, f"{name}.html", name) for name in ("wise_ft", "attention")),
        ],
        "site": Site(),
    }


def test_the_page(approved: Callable[[str, str], None], material: dict[str, Any]) -> None:
    files = report.run_page(**material).files(report.PAGE)
    page = str(files[report.PAGE])
    approved("report", page)
    assert {"subtasks.png", "curves.png"} <= files.keys()
    assert "CLIC on scenes" in page and "abc123" in page and "epochs: 4" in page
    # The item that every model has right is not shown.
    assert page.count('<article class="card">') == 3
    assert "right seen, wrong none 3" in page and "attribute=&lt;b&gt;red&lt;/b&gt;" in page
    # Rendered scenes have no published results.
    assert "Published" not in page
    # The command of several pages is written once.
    assert page.count("kedro run --pipeline=NAME") == 1 and "<code>attention</code>" in page


def test_dvc_plots_figures_of_the_report(material: dict[str, Any], project: Path) -> None:
    plotted = yaml.safe_load((project / "dvc.yaml").read_text())["plots"]
    assert {Path(each).name for each in plotted} <= report.run_page(**material).files(
        report.PAGE
    ).keys()


def test_a_run_without_control_and_curves_has_a_page_too(
    approved: Callable[[str, str], None],
    material: dict[str, Any],
) -> None:
    models = {"base": "base", "fine_tuned": "clic"}
    scores = [score for score in _scores() if score.model != "control"]
    rows = compare([scores], models, run_pairs(models), {})
    compared = replace(
        material["comparison"],
        models={role: COMPARED[role] for role in models},
        rows=tuple(rows),
        conclusions=summary_lines(rows),
    )
    bare = {"comparison": compared, "cards": [], "curves": pd.DataFrame()}
    files = report.run_page(**{**material, **bare}).files(report.PAGE)
    approved("report_bare", str(files[report.PAGE]))
    assert "control" not in str(files[report.PAGE]).split("<main>")[1]


def verdicts(card: Card) -> list[Any]:
    assert card.table is not None
    return [cell.text for cell in card.table.lines[-1][1:]]


def test_cards_show_the_items_that_one_model_has_right(
    subtask: Subtask, comparison: Comparison
) -> None:
    (subtask.images / "2.png").unlink()
    changes = list(item_changes(_scores(), [subtask], ("base", "clic")))
    ours, base = report.change_cards([subtask], changes, comparison, 10)
    assert (ours.title, base.title) == ("Only CLIC is right", "Only base is right")
    assert sorted(card.head[1] for card in ours.cards) == ["0", "1"]
    card = next(card for card in ours.cards if card.head[1] == "1")
    assert verdicts(card) == ["wrong", "right"] and card.table is not None
    texts = [line[0] for line in card.table.lines[:-1]]
    assert [cell.text for cell in texts] == [CAPTION, "p2", "n"]
    assert [cell.kind.split()[-1] for cell in texts] == ["positive", "positive", "negative"]
    assert [cell.text for cell in card.table.lines[2][1:]] == ["0.250"] * 2
    (image,) = (side.image for side in card.sides)
    assert image is not None and image.width == 320
    (gone,) = (side.image for side in base.cards[0].sides)
    assert base.cards[0].head[1] == "2"
    assert gone is not None and gone.problem.startswith("missing")
    assert [len(own.cards) for own in report.change_cards([subtask], changes, comparison, 1)] == [
        1,
        1,
    ]


def test_a_comparison_survives_its_file(comparison: Comparison) -> None:
    again = parse(Comparison, record_json(comparison), "comparison")
    assert record_json(again) == record_json(comparison)
    assert again.rows[0].estimate.value == pytest.approx(comparison.rows[0].estimate.value)


def _html(material: dict[str, Any]) -> str:
    return str(report.run_page(**material).files(report.PAGE)[report.PAGE])


def _printed(material: dict[str, Any], width: int) -> str:
    console = Console(file=io.StringIO(), width=width, force_terminal=True, no_color=True)
    show(report.run_page(**material), report.HEADLINES, report.LEFT_OUT, console=console)
    return re.sub(r"\x1b\[[0-9;]*m", "", console.file.getvalue())  # type: ignore[attr-defined]


def test_the_terminal_table(comparison: Comparison, material: dict[str, Any]) -> None:
    wide = replace(comparison.rows[0], headline=True)
    given = {**material, "comparison": replace(comparison, rows=(wide,), conclusions=())}
    shown = _printed(given, 160)
    assert re.search(r"base .*control .*CLIC", shown)
    base = wide.values["base"]
    assert f"{base.value:.1f} [{base.low:.1f}, {base.high:.1f}]" in shown
    for difference in wide.differences:
        assert f"{difference.value:+.1f} [" in shown
    assert "SugarCrepe++: 3 of 8 items have no usable image (missing)" in shown
    assert "1 degenerate items; 2 of 20 texts were truncated" in shown
    assert "Measured: composition." in shown
    narrow = _printed(given, 80)
    assert max(map(len, narrow.partition("Per cent")[0].splitlines())) <= 80
    # What does not fit is left out whole: names and differences are never cut.
    assert f"{base.value:.1f} [" not in narrow and "etectable" not in narrow
    for difference in wide.differences:
        assert f"{difference.value:+.1f} [{difference.low:+.1f}, " in narrow


def test_benchmarks_that_are_not_the_official_ones_have_their_own_names(
    comparison: Comparison, material: dict[str, Any]
) -> None:
    titled = replace(comparison, titles={"sugar_crepe_pp": "SugarCrepe++-style"})
    assert "SugarCrepe++-style: 3 of 8 items" in _printed({**material, "comparison": titled}, 120)
    page = _html({**material, "comparison": titled})
    assert "SugarCrepe++-style: in ITT" in page


def test_differences_of_few_items_have_the_detectable_one_beside_them(
    material: dict[str, Any],
) -> None:
    compared = material["comparison"]
    few = replace(compared, rows=tuple(replace(row, headline=True) for row in compared.rows))
    page = _html({**material, "comparison": few})
    assert few.rows and all(row.difference.coarse for row in few.rows), "five items"
    for row in few.rows:
        assert f"<td>{row.difference.least_detectable:.1f}</td>" in page
    assert "Too few images to tell" in page
