"""A running study on a terminal and in a log."""

import io
import logging
import re
from typing import Any

import pytest
from rich.console import Console

from compo_pipeline.presentation.study_terminal import StudyDisplay

REASON = "out of memory: [enforce fail at alloc_cpu.cpp:124]"


@pytest.fixture
def study(make: Any) -> Any:
    return make.study(
        make.trial(66.5, drop=-1.0),
        make.trial(71.25, lr=0.004, positives=3, drop=-0.25),
        make.trial(99.0, drop=4.0),
        make.failed("first"),
        make.failed(REASON),
        make.pruned(33.0, 100),
    )


class Screen:
    """A terminal of 80 characters."""

    def __init__(self) -> None:
        self.console = Console(file=io.StringIO(), width=80, force_terminal=True, no_color=True)

    def last(self) -> str:
        """What it shows in the end."""
        text = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "\0", self.console.file.getvalue())  # type: ignore[attr-defined]
        return text.replace("\r", "").rsplit("clic-scenes", 1)[1].replace("\0", "")


def test_a_terminal_shows_progress_and_the_best_trial(study: Any) -> None:
    screen = Screen()
    with StudyDisplay(30, screen.console) as display:
        display.show(study)
        study.tell(study.ask(), 50.0)
        display.show(study)
    shown = screen.last()
    assert "7/30 trials" in shown
    assert "best: trial 1, score 71.25 with lr=0.004, positives=3" in shown
    assert "1 pruned, 1 infeasible, 2 failed (the last: trial 4: out of memory: [enf" in shown
    assert max(len(line) for line in shown.splitlines()) <= 80


def test_a_log_has_a_line_for_each_change(make: Any, caplog: pytest.LogCaptureFixture) -> None:
    now = 0.0
    console = Console(file=io.StringIO())
    study = make.study()
    caplog.set_level(logging.INFO, "compo_pipeline")
    with StudyDisplay(4, console, lambda: now) as display:
        display.show(study)
        display.show(study)
        study.add_trial(make.trial(66.5))
        now = 10.0
        display.show(study)
        study.add_trial(make.failed("killed", "killed"))  # to be retried: not finished
        study.add_trial(make.failed("no memory"))
        now = 20.0
        display.show(study)
    lines = [one.message for one in caplog.records if one.name.startswith("compo_pipeline")]
    assert lines == [
        "0 of 4 trials",
        "1 of 4 trials; best: trial 0, score 66.5 with lr=0.001, positives=2",
        "2 of 4 trials; best: trial 0, score 66.5 with lr=0.001, positives=2; 2 failed (the last: "
        "trial 2: no memory); about 20 s left",
    ]
    assert console.file.getvalue() == ""  # type: ignore[attr-defined]
