"""The page of a diagnosis, and the environment beside it."""

from pathlib import Path

import pytest
import yaml
from rich.console import Console

from compo_pipeline.diagnosis.advice import Step
from compo_pipeline.diagnosis.negatives import AskedChanges
from compo_pipeline.diagnosis.weaknesses import KindResult
from compo_pipeline.evaluation.comparison import Difference, Estimate
from compo_pipeline.presentation import diagnosis_page
from compo_pipeline.run.provenance import CommandOptions

GAIN = Difference("fine_tuned", "base", -3.0, -9.0, 3.0, 0.4, 1.0, 8.0, 10, 18)
RESULT = KindResult(
    "swapped_objects",
    "Foils swapped objects",
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
)


@pytest.mark.parametrize("steps", [STEPS, ()])
def test_the_page_says_what_is_weak_and_what_to_change(
    tmp_path: Path, project: Path, monkeypatch: pytest.MonkeyPatch, steps: tuple[Step, ...]
) -> None:
    monkeypatch.chdir(project)
    asked = AskedChanges(100, 90, {"swapped_attributes": 20}, {})
    record = diagnosis_page.diagnosis_record([RESULT], [RESULT], steps, asked)
    folder = tmp_path / "diagnosis"
    diagnosis_page.write(record, {"command": "kedro run"}, [], CommandOptions(), folder)
    page = (folder / diagnosis_page.PAGE).read_text(encoding="utf-8")
    assert "Missed and seldom asked for: swapped objects." in page
    assert "swapped objects <strong>(weakness)</strong>" in page
    assert "\N{MINUS SIGN}6%" in page
    assert ("What to change" in page) == bool(steps)
    assert (folder / "environment").is_dir() == bool(steps)
    console = Console(record=True, width=100)
    diagnosis_page.show(record, console)
    assert "swapped objects" in console.export_text()
    if steps:
        assert "of &lt;all&gt; methods" in page
        written = yaml.safe_load((folder / "environment" / "parameters.yml").read_text())
        assert written == {"negclip": {"views": {"generators": ["swap"]}}}
        named = yaml.safe_load((folder / "environment" / "globals.yml").read_text())
        assert named == {"method": "negclip", "variant": "advised"}
