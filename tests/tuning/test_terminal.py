"""A few lines say how a study stands, on a terminal and in a log."""

import io
import logging
import re

import pytest
from rich.console import Console

from compo_pipeline.tuning.terminal import Board, status

REASON = "out of memory: [enforce fail at alloc_cpu.cpp:124]"


@pytest.fixture
def study(made):
    return made.study(
        made.trial(66.5, drop=-1.0),
        made.trial(71.25, lr=0.004, positives=3, drop=-0.25),
        made.trial(99.0, drop=4.0),
        made.failed("first"),
        made.failed(REASON),
        made.stopped(33.0, 100),
    )


@pytest.fixture
def screen():
    """A terminal of 80 characters; what it shows in the end."""

    class Screen:
        console = Console(file=io.StringIO(), width=80, force_terminal=True, no_color=True)

        def last(self):
            text = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "\0", self.console.file.getvalue())
            return text.replace("\r", "").rsplit("clic-scenes", 1)[1].replace("\0", "")

    return Screen()


def test_a_status_counts_every_kind_of_trial(study):
    now = status(study, expected=30, retries=2)
    assert (now.expected, now.finished, now.running) == (30, 6, 0)
    assert (now.stopped, now.infeasible, now.failed) == (1, 1, 2)
    assert now.last == f"trial 4: {REASON}"
    assert now.best == "trial 1, score 71.25"
    assert now.values == "lr=0.004, positives=3"


def test_an_empty_study_has_a_status(made):
    now = status(made.study(), expected=30, retries=2)
    assert (now.finished, now.best, now.last) == (0, "", "")


def test_a_killed_trial_that_will_be_tried_again_has_not_finished(made):
    killed = {"failure": "killed", "reason": "its worker was killed"}
    study = made.study(made.trial(3.0), made.failed("x"))
    study.add_trial(_with(made.failed("x"), killed))
    assert status(study, 3, retries=2).finished == 2
    assert status(study, 3, retries=0).finished == 3


def _with(trial, attributes):
    for name, value in attributes.items():
        trial.set_user_attr(name, value)
    return trial


def test_the_terminal_shows_it_in_place(study, screen):
    clock = iter([0.0, 60.0])
    with Board(30, 2, screen.console, lambda: next(clock)) as board:
        board.show(study)
        assert "left" not in screen.last()
        study.ask()
        study.tell(study.ask(), 50.0)
        board.show(study)
    shown = screen.last()
    # One trial in a minute, 23 to go.
    assert "7 of 30 trials  1 running  about 23 min left" in shown
    assert "best    trial 1, score 71.25" in shown and "lr=0.004, positives=3" in shown
    assert "others  1 stopped early, 2 against a constraint, 2 failed" in shown
    assert "failed  trial 4: out of memory: [enforce fail" in shown
    assert max(len(line) for line in shown.splitlines()) <= 80


def test_a_long_reason_stays_on_its_line(made, screen):
    with Board(3, 2, screen.console) as board:
        board.show(made.study(made.failed("word " * 60)))
    failed = [line for line in screen.last().splitlines() if line.startswith("failed")]
    assert len(failed) == 1 and len(failed[0]) <= 80
    assert "best    none yet" in screen.last()


def test_a_log_has_a_line_for_each_change(made, caplog):
    clock = iter([0.0, 5.0, 30.0, 30.0])
    console = Console(file=io.StringIO())
    study = made.study(made.trial(66.5))
    caplog.set_level(logging.INFO, "compo_pipeline")
    with Board(4, 2, console, lambda: next(clock)) as board:
        board.show(study)
        board.show(study)
        study.add_trial(made.trial(50.0))
        board.show(study)
        study.add_trial(made.failed("no memory"))
        board.show(study)
    lines = [record for record in caplog.records if record.name.startswith("compo_pipeline")]
    assert [line.message for line in lines] == [
        "1 of 4 trials; best: trial 0, score 66.5 with lr=0.001, positives=2",
        "2 of 4 trials; best: trial 0, score 66.5; about 60 s left",
        "3 of 4 trials; 1 failed (the last: trial 2: no memory); best: trial 0, score 66.5; "
        "about 15 s left",
    ]
    assert console.file.getvalue() == ""
