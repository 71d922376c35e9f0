"""One page tells of a study, whatever became of it, and needs nothing but itself."""

import json
import re
from html.parser import HTMLParser

import pytest
from optuna.distributions import FloatDistribution, IntDistribution
from plotly.offline import get_plotlyjs

from compo_pipeline.configuration import parse
from compo_pipeline.evaluation.comparison import Difference, Estimate, Row
from compo_pipeline.presentation.study_page import lines, write
from compo_pipeline.tuning.confirmation import Confirmed, report
from compo_pipeline.tuning.outcome import Run
from compo_pipeline.tuning.space import Parameter, Space

LR, POSITIVES = "training.optimizer.lr", "clic.objective.positives"
SPACE = Space(
    (
        Parameter(LR, FloatDistribution(1e-4, 1e-2, log=True)),
        Parameter(POSITIVES, IntDistribution(1, 5)),
    )
)


@pytest.fixture
def page(made, tmp_path):
    """Writes the page of a study; its text without plotly.js."""

    def text(study, run=None, confirmed=None):
        written = write(study, made.configured, tmp_path / "new", SPACE, run, confirmed)
        html = written.read_text(encoding="utf-8")
        HTMLParser().feed(html)
        assert html.count(get_plotlyjs()) <= 1
        return html.replace(get_plotlyjs(), "")

    return text


@pytest.fixture
def study(made):
    return made.study(
        made.trial(66.5, lr=2e-3, positives=4, drop=-1.0),
        made.trial(71.25, lr=0.004, positives=3, drop=-0.25),
        made.trial(-20.0, drop=9.0, user_attrs={"score": 70.0}),
        made.failed("out of <b>memory</b>"),
        made.stopped(33.0, 2),
    )


def words(html):
    return " ".join(
        re.sub(r"<script.*?</script>|<style.*?</style>|<[^>]+>", " ", html, flags=re.S).split()
    )


def test_the_page_opens_without_a_network(study, tmp_path, made):
    html = write(study, made.configured, tmp_path, SPACE).read_text()
    assert html.count(get_plotlyjs()) == 1
    rest = html.replace(get_plotlyjs(), "")
    assert not re.search(r"""(?:src|href)\s*=\s*["']""", rest)
    assert "http" not in rest
    assert rest.count("Plotly.newPlot(") == 4
    assert len(html) < 6_000_000


def test_the_head_says_what_was_found(page, study):
    told = words(page(study, Run("smoke", {"method": "clic"})))
    assert "5 trials: 3 finished, 1 stopped early, 1 failed; 2 of the finished meet" in told
    assert "The best is trial 1: score 71.25." in told
    assert "The configured values (trial 0) have score 66.5: a difference of +4.75." in told
    assert "training.optimizer.lr 0.002 0.004 0.0001 to 0.01 (log scale)" in told
    assert "kedro run --pipeline=train_eval --env=smoke --params method=clic,training" in told


def test_configured_values_that_break_a_constraint_are_told_as_measured(made, page):
    plain = made.trial(-20.0, lr=2e-3, positives=4, drop=9.0, user_attrs={"score": 70.0})
    told = words(page(made.study(plain, made.trial(68.5, drop=-1.0))))
    assert "have score 70, but break a constraint: a difference of \u22121.5." in told


def test_the_table_tells_each_trials_fate(made, study):
    table = lines(study, made.configured)
    assert [line.state for line in table] == [
        "finished", "finished", "finished", "failed", "stopped early",
    ]  # fmt: skip
    assert [line.tags for line in table[:3]] == [("configured values",), ("best",), ()]
    assert [line.why for line in table[2:]] == ["", "out of <b>memory</b>", "at look 2"]
    assert [line.values for line in table] == [(66.5,), (71.25,), (70.0,), (None,), (33.0,)]
    assert [line.constraints["drop"] for line in table] == [-1.0, -0.25, 9.0, None, None]
    assert [line.feasible for line in table] == [True, True, False, False, False]
    assert table[1].params == {"lr": 0.004, "positives": 3}


def test_retries_say_of_what(made):
    again = made.trial(3.0, system_attrs={"retry_history": [0, 1]})
    table = lines(made.study(made.failed("a"), made.failed("a"), again), made.configured)
    assert "again after 0, 1" in table[2].tags


def test_reasons_are_text_and_never_markup(page, study):
    html = page(study)
    assert "out of &lt;b&gt;memory&lt;/b&gt;" in html and "<b>memory" not in html


def test_a_front_is_told_as_one(made, page):
    trials = [made.trial(1.0, 9.0), made.trial(8.0, 8.0), made.trial(9.0, 1.0)]
    study = made.study(*trials, directions=("maximize", "maximize"), names=["itt", "top1"])
    told = words(page(study))
    assert "3 trials are beaten by no other one; nearest to the best of each" in told
    assert "is trial 1: itt 8, top1 8." in told
    assert "The configured values have no finished trial to stand beside it." in told
    assert [line.tags for line in lines(study, made.configured)] == [("front",)] * 3


@pytest.mark.parametrize(
    ("trials", "says"),
    [
        (lambda made: (), "none has begun"),
        (lambda made: (made.failed("x"), made.failed("y")), "none has finished"),
        (lambda made: (made.trial(3.0, drop=1.0),), "every finished one breaks a constraint"),
    ],
)
def test_a_study_without_a_best_trial_has_a_page_too(made, page, trials, says):
    told = words(page(made.study(*trials(made))))
    assert f"There is no best trial: {says}. So there is no best_params.yml." in told
    assert "The recipe" not in told


def test_configured_values_that_are_the_best_are_said_to_be(made, page):
    told = words(page(made.study(made.trial(66.5, lr=2e-3, positives=4), made.trial(3.0))))
    assert "Those are the configured values: no other trial was better." in told


def test_a_running_study_has_a_page(made, page, study):
    study.ask()
    assert "1 running" in words(page(study))


def row(label, headline, gain, low, high):
    """A figure of 40, 50 and so much more than 50."""
    base, configured, tuned = (Estimate(v, v - 1, v + 1) for v in (40.0, 50.0, 50.0 + gain))

    def difference(value, low, high):
        return Difference(value, low, high, 0.01, 0.02, 2.75, 3, 1)

    return Row(
        *("play", "accuracy", label, label, headline, False, 12, 0, 12, 50.0),
        *(base, configured, tuned),
        vs_base=difference(10.0 + gain, 5.0, 15.0),
        vs_control=difference(gain, low, high),
    )


def test_what_counts_stands_on_the_page(page, study):
    rows = [
        row("<i>better</i>", True, 3.25, 1.5, 5.0),
        row("worse", True, -4.0, -6.0, -2.0),
        row("the same", True, 0.5, -1.0, 2.0),
        row("details", False, 9.0, 8.0, 10.0),
    ]
    # As the catalog keeps it.
    kept = {"seeds": [1, 2], "comparison": report(rows, "scenes", 50, {}).to_json()}
    confirmed = parse(Confirmed, json.loads(json.dumps(kept)), "confirmation")
    html = page(study, confirmed=confirmed)
    told = words(html)
    assert "trained in full with 2 seeds that no trial had (1, 2), scored" in told
    assert (
        "&lt;i&gt;better&lt;/i&gt; 40.0 50.0 53.2 +3.2 [+1.5, +5.0] +13.2 [+5.0, +15.0] 2.8" in told
    )
    assert "worse 40.0 50.0 46.0 \u22124.0 [\u22126.0, \u22122.0] +6.0" in told
    assert "details" not in told
    assert "What counts stands next." in told and "with fresh seeds" not in told
    differences = re.findall(r'<td class="(\w+)">[+\u2212]\d+\.\d \[', html)
    assert differences == ["met", "met", "broken", "met", "dim", "met"]


def test_the_page_says_why_nothing_was_confirmed(page, study):
    told = words(page(study, confirmed=Confirmed(reason="tuning.confirmation.seeds is 0")))
    assert "On the reported questions Not asked: tuning.confirmation.seeds is 0." in told
    assert "What counts is the reported questions, with fresh seeds." in told
    assert "On the reported questions" not in words(page(study))


def test_the_page_counts_steps(made, page):
    trials = [
        made.trial(3.0, user_attrs={"steps": 1200}),
        made.trial(4.0, user_attrs={"steps": 34}),
    ]
    assert "; 1,234 steps in " in words(page(made.study(*trials)))
    assert "steps" not in words(page(made.study(made.trial(3.0)))).partition("The best")[0]
