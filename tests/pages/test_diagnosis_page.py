"""The page of diagnoses, with the settings that they advise."""

from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from compo_pipeline.core.provenance import CommandOptions
from compo_pipeline.evaluation.comparison import Difference, Estimate
from compo_pipeline.evaluation.diagnosis.diagnose import Diagnosis, KindResult, Step
from compo_pipeline.generation.foils.review import Noise
from compo_pipeline.pages import report
from compo_pipeline.pages.pages import Page
from compo_pipeline.pages.tables import show

GAIN = Difference("ours", "base", -3.0, -9.0, 3.0, 0.4, 1.0, 8.0, 10, 18)
RESULT = KindResult(
    "swapped_objects",
    262,
    Estimate(52.0, 46.0, 58.0),
    Estimate(49.0, 43.0, 55.0),
    GAIN,
    "swapped_objects",
    0.0,
)
STEPS = (
    Step("method", "negclip", "of <all> methods"),
    Step("negclip.views.generators", ["swap"], "more"),
    Step("training.epochs", 23, "asked of few"),
    Step("training.wise_ft.ratio", "auto", "guessed: all of it"),
)


@pytest.mark.parametrize("steps", [STEPS, ()])
def test_the_page_says_what_is_weak_and_what_to_change(
    project: Path,
    monkeypatch: pytest.MonkeyPatch,
    steps: tuple[Step, ...],
    approved: Callable[[str, str], None],
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(project)
    missed = ("swapped_objects",)
    found = Diagnosis((RESULT,), missed, missed, None, steps, 100, 90)
    diagnoses = {"ours": found}
    models = {"ours": {"name": "ViT-B-32", "pretrained": "mine"}}
    options = CommandOptions("coco", {"seed": 3, "variant": "lora", "training": {"epochs": 2}})
    given = report.diagnosis_page(diagnoses, models, {"command": "kedro run"}, options)
    page = str(given.files(report.DIAGNOSIS)[report.DIAGNOSIS])
    approved(f"diagnosis_{len(steps)}", page)
    assert "ours: Missed and seldom asked for: swapped objects." in page
    assert "\N{MINUS SIGN}6%" in page
    show(given)
    assert "swapped objects" in capsys.readouterr().out
    if steps:
        assert "of &lt;all&gt; methods" in page
        advised = {step.key: step.value for step in steps if step.key != "method"}
        assert yaml.safe_load(found.yaml) == {"variants": {"all": {"advised": advised}}}
        model = {"model.name": "ViT-B-32", "model.pretrained": "mine"}
        assert found.command(options, model) == (
            "kedro run --pipeline=train_eval --env=coco --params seed=3,variant=lora+advised,"
            "model.name=ViT-B-32,model.pretrained=mine,method=negclip"
        )


def test_a_report_says_what_texts_alone_tell_and_a_person_found() -> None:
    limits = {"text_accuracy": 0.57, "text_accuracy_limit": 0.6}
    kinds = {
        "swapped_objects": {"state": "used", "items": 262, **limits},
        "half_truth": {"state": "guessable", "items": 200, **limits},
        "replaced_object": {"state": "few", "items": 12, **dict.fromkeys(limits)},
    }
    noise = dict.fromkeys(("", "swapped_objects"), Noise(5, 1, 0, 0.2, 0.01, 0.72))
    parts = report.diagnosis_sections(
        Diagnosis((RESULT,)), "Foils", CommandOptions(), {}, kinds, noise
    )
    shown = str(Page("", "", parts).files("a.md")["a.md"])
    (row,) = [line for line in shown.splitlines() if line.startswith("| swapped")]
    assert [float(cell.split()[0]) for cell in row.split("|")[2:6]] == [262, 52, 49, -3]
    assert "57.0 at most 60.0" in row and "20.0 [1.0, 72.0] of 5" in row
    assert "half truth: 200 items, not used" in shown
    assert "replaced object: 12 items" in shown and "1 are false" in shown
