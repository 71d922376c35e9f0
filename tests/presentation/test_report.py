import io
import re
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
import yaml
from matplotlib.figure import Figure
from PIL import Image
from rich.console import Console

from compo_pipeline.benchmarks.items import Item, Subtask
from compo_pipeline.configuration.settings import parse
from compo_pipeline.evaluation.comparison import compare, run_pairs
from compo_pipeline.evaluation.conclusions import summary_lines
from compo_pipeline.evaluation.contamination import Overlap
from compo_pipeline.evaluation.evaluate import Audit, ComparedModel, Comparison, DegenerateItem
from compo_pipeline.presentation import plots, report
from compo_pipeline.presentation.foils_page import FoilsSection
from compo_pipeline.presentation.item_cards import hardest_cards, sampled_cards
from compo_pipeline.presentation.pages import links
from compo_pipeline.presentation.tables import show_comparison
from compo_pipeline.storage.files import record_json
from compo_pipeline.storage.records import ItemChange, Rejected, Score

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
    degenerate = DegenerateItem("7", "equal text", "a <i>cup</i>")
    return Comparison(
        dataset="scenes",
        models=COMPARED,
        conclusions=summary_lines(rows),
        rows=tuple(rows),
        audits=(
            Audit("sugar_crepe_pp", "swap_att", 8, 3, {"missing": 3}, 20, 2, 1, (degenerate,)),
        ),
        overlaps=(
            Overlap(
                "sugar_crepe_pp", "swap_att", 5, 0, 1, None, 9, 4, {"right seen, wrong none": 3}
            ),
        ),
        slices=(replace(rows[0], slice="attribute=<b>red</b>"),),
    )


@pytest.fixture
def material(comparison: Comparison, subtask: Subtask, tmp_path: Path) -> report.ReportInputs:
    curves = pd.DataFrame({"model": ["clic"] * 3, "step": [0, 1, 2], "loss": [3.0, 2.0, 1.5]})
    quarantine = [Rejected(3, "s3", "x.jpg", "words", "2 words")]
    facts = report.ReportFacts(
        facts={"commit": "abc123", "command": "kedro run --env=<b>"},
        settings={"training": {"epochs": 4}},
        links=links(tmp_path / "report", {"Views": (tmp_path / "views/index.html", "kedro run")}),
    )
    cards = sampled_cards([subtask], _scores(), MODELS, 10)
    return report.ReportInputs(comparison, cards, quarantine, curves, FoilsSection(), facts)


def test_the_page_needs_nothing_but_itself(material: report.ReportInputs, tmp_path: Path) -> None:
    folder = report.write(material, tmp_path / "report")
    page = (folder / report.PAGE).read_text(encoding="utf-8")
    fetched = re.findall(r"""(?:src|href)=["']([^"']*)|url\(([^)]*)\)""", page)
    # Besides embedded data and parts of its own figures, only links to the pages beside it.
    others = {
        one or other for one, other in fetched if not (one or other).startswith(("data:", "#"))
    }
    assert others == {"../views/index.html"}
    assert "http" not in page
    assert (folder / report.SUBTASKS).stat().st_size > 1000
    assert (folder / report.CURVES).stat().st_size > 1000


def plotted(project: Path, folder: Path) -> dict[str, pd.DataFrame]:
    """The tables that the plots of dvc.yaml name, which have the columns that these plot."""
    found = {}
    for plot in yaml.safe_load((project / "dvc.yaml").read_text())["plots"]:
        ((_, definition),) = plot.items()
        for file, column in definition["y"].items():
            table = pd.read_csv(folder / file.partition("/report/")[2])
            across = definition["x"]
            assert {column, across if isinstance(across, str) else across[file]} <= {*table}
            found[Path(file).stem] = table
    return found


def test_tables_that_dvc_plots(
    material: report.ReportInputs, bootstrapped: Path, tmp_path: Path
) -> None:
    curves = pd.DataFrame(
        {
            "step": [1, 2, 1, 2],
            "model": ["clic", "clic", "control", "control"],
            "loss": [2.0, 0.5, 1.0, 0.8],
            "clic": [2.0, None, None, None],
        }
    )
    tables = plotted(bootstrapped, report.write(replace(material, curves=curves), tmp_path))
    assert tables["fine_tuned_loss"].to_numpy().tolist() == [[1, 2.0]], "CLIC's own steps"
    assert tables["control_loss"].to_numpy().tolist() == [[1, 1.0], [2, 0.8]]
    assert len(tables["base"]) == len(tables["fine_tuned"]) > 0


def test_the_page_says_what_there_is_to_say(material: report.ReportInputs, tmp_path: Path) -> None:
    page = (report.write(material, tmp_path) / report.PAGE).read_text(encoding="utf-8")
    assert "CLIC on scenes" in page and "abc123" in page and "epochs: 4" in page
    assert "kedro run --env=&lt;b&gt;" in page
    # Captions are text, never markup.
    assert "a &lt;b&gt;red&lt;/b&gt; cup &amp; a plate" in page and CAPTION not in page
    assert "a &lt;i&gt;cup&lt;/i&gt;" in page
    assert page.count("<article") == 4  # the item that every model has right is not shown
    assert "words</td><td>1<" in page
    assert "right seen, wrong none: 3" in page and "attribute=&lt;b&gt;red&lt;/b&gt;" in page
    # Rendered scenes have no published results.
    assert "Published results" not in page


def test_a_run_without_control_and_curves_has_a_page_too(
    material: report.ReportInputs, subtask: Subtask, bootstrapped: Path, tmp_path: Path
) -> None:
    models = {"base": "base", "fine_tuned": "clic"}
    scores = [score for score in _scores() if score.model != "control"]
    rows = compare([scores], models, run_pairs(models), {})
    bare = replace(
        material,
        comparison=replace(
            material.comparison,
            models={role: COMPARED[role] for role in models},
            rows=tuple(rows),
            conclusions=summary_lines(rows),
        ),
        cards=sampled_cards([subtask], scores, models, 10),
        curves=pd.DataFrame(),
    )
    page = (report.write(bare, tmp_path) / report.PAGE).read_text(encoding="utf-8")
    assert "control" not in page.split("<main>")[1]
    assert not (tmp_path / report.CURVES).exists()
    tables = plotted(bootstrapped, tmp_path)
    assert tables["control"].empty and tables["control_loss"].empty


def test_cards_show_each_items_fate(subtask: Subtask) -> None:
    found = sampled_cards([subtask], _scores(), MODELS, 10)
    assert {card.item: card.change for card in found} == {
        "0": "fixed",
        "1": "fixed",
        "2": "broken",
        "3": "wrong",
    }
    card = next(card for card in found if card.item == "1")
    assert card.correct == [False, True, True]
    assert [(text.text, text.positive) for text in card.texts] == [
        (CAPTION, True),
        ("p2", True),
        ("n", False),
    ]
    assert card.texts[2].cosines == (0.25, 0.25, 0.25)
    assert card.images[0].uri.startswith("data:image/jpeg;base64,") and card.images[0].width == 320
    assert len(sampled_cards([subtask], _scores(), MODELS, 1)) == 3  # one of each fate


@pytest.mark.parametrize(
    ("metric", "wrong", "images", "compared"),
    [
        ("group", (0.1, 0.3, 0.2, 0.4), 2, [True, False, False, True]),
        # Of ten images, the right one and that which the wrong model takes for it.
        ("t2i", (0.1, 0.2, 0.4), 2, [True, False]),
        ("tot", (0.1, 0.2, 0.3), 0, [True, False, False]),
        ("i2t_r1", (0.1, 0.2), 2, [True, False]),
    ],
)
def test_a_card_shows_what_its_metric_compares(
    subtask: Subtask, metric: str, wrong: tuple[float, ...], images: int, compared: list[bool]
) -> None:
    others = ("1.png", "2.png") if metric == "t2i" else ("1.png",)
    texts = ((CAPTION, "p2"), ("n",))
    right = tuple(sorted(wrong, reverse=True))
    place = ("sugar_crepe_pp", "swap_att", metric, "0", "fixed", 0.2, "0.png", others)
    change = ItemChange("base", "clic", *place, *texts, wrong, right)
    (card,) = hardest_cards([subtask], [change], 3)
    assert len(card.images) == images and card.correct == [False, True]
    assert [line.positive for line in card.texts] == compared
    last = -1 if metric != "t2i" else 2
    assert card.texts[-1].cosines == (wrong[last], right[last])


def test_the_hardest_items_come_first_and_once(subtask: Subtask) -> None:
    place = ("base", "clic", "sugar_crepe_pp", "swap_att")
    texts = ((CAPTION,), ("n",), (0.1, 0.2), (0.2, 0.1))
    changes = [
        ItemChange(*place, metric, item, change, shortfall, f"{item}.png", (), *texts)
        for metric, item, change, shortfall in (
            ("itt", "0", "fixed", 0.1),
            ("itt", "1", "fixed", 0.3),
            ("i2t_r1", "1", "fixed", 0.9),
            ("i2t_r5", "2", "fixed", 0.9),
            ("itt", "3", "broken", 0.2),
        )
    ]
    cards = hardest_cards([subtask], changes, 5)
    assert [(card.change, card.item) for card in cards] == [
        ("fixed", "1"), ("fixed", "0"), ("broken", "3"),
    ]  # fmt: skip


def test_an_image_that_went_since_is_said_to_have_gone(
    subtask: Subtask, caplog: pytest.LogCaptureFixture
) -> None:
    (subtask.images / "2.png").unlink()
    found = sampled_cards([subtask], _scores(), MODELS, 10)
    assert {card.item for card in found} == {"0", "1", "3"}
    assert "2.png was scored, but cannot be shown: missing" in caplog.text


def test_a_comparison_survives_its_file(comparison: Comparison) -> None:
    again = parse(Comparison, record_json(comparison), "comparison")
    assert record_json(again) == record_json(comparison)
    assert again.rows[0].estimate.value == pytest.approx(comparison.rows[0].estimate.value)


def _printed(comparison: Comparison, width: int) -> str:
    console = Console(file=io.StringIO(), width=width, force_terminal=True, no_color=True)
    show_comparison(comparison, console=console)
    return re.sub(r"\x1b\[[0-9;]*m", "", console.file.getvalue())  # type: ignore[attr-defined]


def test_the_terminal_table(comparison: Comparison) -> None:
    wide = replace(comparison.rows[0], headline=True)
    shown = _printed(replace(comparison, rows=(wide,)), 120)
    assert re.search(r"base .*control .*CLIC", shown)
    base = wide.values["base"]
    assert f"{base.value:.1f} [{base.low:.1f}, {base.high:.1f}]" in shown
    for difference in wide.differences:
        assert f"{difference.value:+.1f} [" in shown
    assert "SugarCrepe++: 3 of 8 items have no usable image (missing)" in shown
    assert "1 degenerate items; 2 of 20 texts were truncated" in shown
    narrow = _printed(replace(comparison, rows=(wide,)), 80)
    assert max(len(line) for line in narrow.splitlines()) <= 80
    # What does not fit is left out whole: names and differences are never cut.
    assert f"{base.value:.1f} [" not in narrow and f"{wide.difference.value:+.1f} [" in narrow
    assert "…" not in narrow


def test_benchmarks_that_are_not_the_official_ones_have_their_own_names(
    comparison: Comparison, material: report.ReportInputs, tmp_path: Path
) -> None:
    titled = replace(comparison, titles={"sugar_crepe_pp": "SugarCrepe++-style"})
    assert "SugarCrepe++-style: 3 of 8 items" in _printed(titled, 120)
    page = report.write(replace(material, comparison=titled), tmp_path) / "report.html"
    assert "<dt>SugarCrepe++-style ITT</dt>" in page.read_text()


def test_figures_are_drawn_for_any_curves(tmp_path: Path) -> None:
    frame = pd.DataFrame({"step": [0, 1], "loss": [1.0, 0.5], "lr": [0.1, float("nan")]})
    assert plots.curves(frame, tmp_path / "c.png")
    assert not plots.curves(pd.DataFrame({"step": [0, 1]}), tmp_path / "d.png")


def drawn(frame: pd.DataFrame, path: Path) -> dict[str, list[tuple[list[float], bool]]]:
    """The lines of each panel: their values, and whether they are visible as points."""
    panels: dict[str, list[tuple[list[float], bool]]] = {}
    original = plots.save

    def look(figure: Figure, *_: object) -> str:
        for ax in figure.axes:
            if ax.get_visible():
                name = ax.get_title(loc="left")
                panels[name] = [
                    (list(line.get_ydata()), line.get_marker() not in ("", "None", None))
                    for line in ax.lines
                ]
        return original(figure, path)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plots, "save", look)
        assert plots.curves(frame, path)
    return panels


def test_a_curve_of_one_point_shows_it(tmp_path: Path) -> None:
    frame = pd.DataFrame({"model": ["clip"], "step": [1], "loss": [3.0], "lr": [1e-5]})
    panels = drawn(frame, tmp_path / "curves.png")
    assert panels == {"loss": [([3.0], True)], "lr": [([1e-5], True)]}
    # The same by its ink: without a marker the panel would be blank.
    alone = (tmp_path / "curves.png").read_bytes()
    drawn(frame.assign(loss=frame["loss"] + 0.001), tmp_path / "curves.png")
    assert alone and 'clip-path="url(#' in plots.curves(frame, tmp_path / "curves.png")


def test_alternating_objectives_are_curves_of_their_own(tmp_path: Path) -> None:
    steps = range(1, 101)
    own = {"step": steps, "model": "clic", "lr": 1e-5}
    ours = pd.DataFrame(own).assign(
        clic=[2.0 if step % 2 else None for step in steps],
        clip=[None if step % 2 else 0.5 for step in steps],
        loss=[2.0 if step % 2 else 0.5 for step in steps],
    )
    control = pd.DataFrame({"step": steps, "model": "control", "loss": 1.0, "clip": 1.0})
    panels = drawn(pd.concat([ours, control]), tmp_path / "curves.png")
    for name, expected in (("clic", {2.0}), ("clip", {0.5, 1.0}), ("loss", {1.0})):
        values = [value for line, _ in panels[name] for value in line]
        assert {round(value, 6) for value in values} == expected, name
    alone = drawn(ours, tmp_path / "curves.png")
    assert "loss" not in alone and {"clic", "clip"} <= alone.keys()


def test_a_long_curve_is_smoothed_over_its_values(tmp_path: Path) -> None:
    noise = [2.0 + (step % 2) for step in range(200)]
    rates = [1.0 if step % 2 else 0.0 for step in range(200)]
    frame = pd.DataFrame({"model": "clip", "step": range(200), "loss": noise, "lr": rates})
    panels = drawn(frame, tmp_path / "curves.png")
    (raw, _), (smooth, _) = panels["loss"]
    assert raw == noise and max(smooth[50:]) - min(smooth[50:]) < 0.2
    assert [line for line, _ in panels["lr"]] == [rates]


def test_a_command_of_several_pages_is_written_once(
    material: report.ReportInputs, tmp_path: Path
) -> None:
    options = "--env=table --params data.root=/path/to/folder,dataset=mine"
    pages = {
        label: (tmp_path / f"{name}.html", f"kedro run --pipeline={name} {options}")
        for label, name in (("WiSE-FT", "wise_ft"), ("Attention", "attention"))
    }
    (tmp_path / "views.html").touch()
    pages["Views"] = (tmp_path / "views.html", "kedro run")

    def linked(to: dict[str, tuple[Path, str]]) -> report.ReportInputs:
        return replace(material, facts=replace(material.facts, links=links(tmp_path, to)))

    page = report.write(linked(pages), tmp_path) / report.PAGE
    text = page.read_text(encoding="utf-8")
    assert text.count(options) == 1 and f"kedro run --pipeline=NAME {options}" in text
    assert "<code>wise_ft</code>" in text and "<code>attention</code>" in text
    report.write(linked({"WiSE-FT": pages["WiSE-FT"]}), tmp_path)
    assert f"kedro run --pipeline=wise_ft {options}" in page.read_text(encoding="utf-8")


def test_differences_of_few_items_have_the_detectable_one_beside_them(
    material: report.ReportInputs, tmp_path: Path
) -> None:
    compared = material.comparison
    few = replace(compared, rows=tuple(replace(row, headline=True) for row in compared.rows))
    folder = report.write(replace(material, comparison=few), tmp_path)
    page = (folder / report.PAGE).read_text(encoding="utf-8")
    rows = few.rows
    assert rows and all(row.difference.coarse for row in rows), "five items"
    for row in rows:
        assert f"detectable: {row.difference.least_detectable:.0f}<" in page
    assert "Too few images to tell" in page
