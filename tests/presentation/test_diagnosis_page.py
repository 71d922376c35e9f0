"""The page of diagnoses, and the environments beside it."""

from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from rich.console import Console

from compo_pipeline.configuration.settings import with_values
from compo_pipeline.diagnosis.advice import Step
from compo_pipeline.diagnosis.diagnose import Diagnosis
from compo_pipeline.diagnosis.weaknesses import KindResult
from compo_pipeline.evaluation.comparison import Difference, Estimate
from compo_pipeline.presentation import diagnosis_page
from compo_pipeline.run.provenance import CommandOptions

GAIN = Difference("ours", "base", -3.0, -9.0, 3.0, 0.4, 1.0, 8.0, 10, 18)
RESULT = KindResult(
    "swapped_objects",
    "Foils swapped objects",
    262,
    Estimate(52.0, 46.0, 58.0),
    Estimate(49.0, 43.0, 55.0),
    GAIN,
    50.0,
    "swapped_objects",
    0.0,
)
KINDS = ("globals", "parameters")
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
) -> None:
    monkeypatch.chdir(project)
    missed = ("swapped_objects",)
    found = Diagnosis((RESULT,), missed, missed, None, steps, 100, 90)
    diagnoses = {"ours": found}
    models = {"ours": {"name": "ViT-B-32", "pretrained": "mine"}}
    files = diagnosis_page.files(diagnoses, models, {"command": "kedro run"}, CommandOptions())
    page = str(files[diagnosis_page.PAGE])
    approved(f"diagnosis_{len(steps)}", page)
    assert "ours: Missed and seldom asked for: swapped objects." in page
    assert "\N{MINUS SIGN}6%" in page
    assert ("conf/advised" in page) == bool(steps)
    written = {name for name in files if name.startswith("environment/ours/")}
    assert written == ({f"environment/ours/{name}.yml" for name in KINDS} if steps else set())
    console = Console(record=True, width=100)
    diagnosis_page.show(diagnoses, console)
    assert "swapped objects" in console.export_text()
    assert yaml.safe_load(found.yaml) == (with_values({}, found.advice) if steps else None)
    if steps:
        assert "of &lt;all&gt; methods" in page
        written = yaml.safe_load(files["environment/ours/parameters.yml"])
        assert written == {
            "negclip": {"views": {"generators": ["swap"]}},
            "training": {"epochs": 23, "wise_ft": {"ratio": "auto"}},
            "model": {"name": "ViT-B-32", "pretrained": "mine"},
        }
        named = yaml.safe_load(files["environment/ours/globals.yml"])
        assert named == {"method": "negclip", "variant": "advised"}
