"""One page tells of a study, whatever became of it, and needs nothing but itself."""

import json
import re
from html.parser import HTMLParser

import pytest
from optuna.distributions import FloatDistribution, IntDistribution
from plotly.offline import get_plotlyjs

from compo_pipeline.configuration.settings import parse
from compo_pipeline.evaluation.comparison import Difference, Estimate, Row
from compo_pipeline.presentation.study_page import rows, write
from compo_pipeline.tuning.confirmation import StoredConfirmation, as_comparison
from compo_pipeline.tuning.results import TunedRun
from compo_pipeline.tuning.space import Parameter, Space

LR, POSITIVES = "training.optimizer.lr", "clic.objective.positives"
RUN = TunedRun(None, {"variant": "default+tuned"}, "clic")
SPACE = Space(
    (
        Parameter(LR, FloatDistribution(1e-4, 1e-2, log=True)),
        Parameter(POSITIVES, IntDistribution(1, 5)),
    )
)


@pytest.fixture
def page(make, tmp_path):
    """Writes the page of a study; its text without plotly.js."""

    def text(study, run=None, confirmation=None):
        used = run or RUN
        written = write(study, make.configured, tmp_path / "new", SPACE, used, confirmation)
        html = written.read_text(encoding="utf-8")
        HTMLParser().feed(html)
        assert html.count(get_plotlyjs()) <= 1
        return html.replace(get_plotlyjs(), "")

    return text


@pytest.fixture
def study(make):
    return make.study(
        make.trial(66.5, lr=2e-3, positives=4, drop=-1.0),
        make.trial(71.25, lr=0.004, positives=3, drop=-0.25),
        make.trial(-20.0, drop=9.0, user_attrs={"score": 70.0}),
        make.failed("out of <b>memory</b>"),
        make.pruned(33.0, 2),
    )


def words(html):
    return " ".join(
        re.sub(r"<script.*?</script>|<style.*?</style>|<[^>]+>", " ", html, flags=re.S).split()
    )


def test_the_page_opens_without_a_network(study, tmp_path, make):
    html = write(study, make.configured, tmp_path, SPACE, RUN).read_text()
    assert html.count(get_plotlyjs()) == 1
    rest = html.replace(get_plotlyjs(), "")
    assert not re.search(r"""(?:src|href)\s*=\s*["']""", rest)
    assert "http" not in rest
    assert rest.count("Plotly.newPlot(") == 4
    assert len(html) < 6_000_000


def test_the_head_says_what_was_found(page, study):
    text = words(page(study, TunedRun("smoke", {"method": "clic", "variant": "c1+tuned"}, "clic")))
    assert "5 trials: 3 finished, 1 pruned, 1 failed; 2 of the finished trials meet" in text
    assert "Trial 1 is the best: score 71.25." in text
    assert "The configured values (trial 0) have score 66.5: a difference of +4.75." in text
    assert "training.optimizer.lr 0.002 0.004 0.0001 to 0.01 (log scale)" in text
    assert (
        "kedro run --pipeline=train_eval --env=smoke --params method=clic,variant=c1+tuned,training"
        in text
    )


def test_configured_values_that_break_a_constraint_are_told_as_measured(make, page):
    plain = make.trial(-20.0, lr=2e-3, positives=4, drop=9.0, user_attrs={"score": 70.0})
    text = words(page(make.study(plain, make.trial(68.5, drop=-1.0))))
    assert "have score 70, but violate a constraint: a difference of \u22121.5." in text


def test_the_table_tells_each_trials_fate(make, study):
    table = rows(study, make.configured)
    assert [line.state for line in table] == [
        "finished", "finished", "finished", "failed", "pruned",
    ]  # fmt: skip
    assert [line.remarks for line in table] == [
        ("configured values",), ("best",), (), ("out of <b>memory</b>",), ("at look 2",),
    ]  # fmt: skip
    assert [line.values for line in table] == [(66.5,), (71.25,), (70.0,), (None,), (33.0,)]
    assert [line.constraints["drop"] for line in table] == [-1.0, -0.25, 9.0, None, None]
    assert [line.feasible for line in table] == [True, True, False, False, False]
    assert table[1].params == {"lr": 0.004, "positives": 3}


def test_retries_say_of_what(make):
    again = make.trial(3.0, system_attrs={"retry_history": [0, 1]})
    table = rows(make.study(make.failed("a"), make.failed("a"), again), make.configured)
    assert "retry of 0, 1" in table[2].remarks


def test_reasons_are_text_and_never_markup(page, study):
    html = page(study)
    assert "out of &lt;b&gt;memory&lt;/b&gt;" in html and "<b>memory" not in html


def test_a_front_is_told_as_one(make, page):
    trials = [make.trial(1.0, 9.0), make.trial(8.0, 8.0), make.trial(9.0, 1.0)]
    study = make.study(*trials, directions=("maximize", "maximize"))
    text = words(page(study))
    assert "The Pareto front has 3 trials; nearest to the best of each" in text
    assert "is trial 1: objective 1 8, objective 2 8." in text
    assert "The configured values have no finished trial to compare with." in text
    assert [line.remarks for line in rows(study, make.configured)] == [("front",)] * 3


@pytest.mark.parametrize(
    ("trials", "says"),
    [
        (lambda make: (), "none has begun"),
        (lambda make: (make.failed("x"), make.failed("y")), "none has finished"),
        (lambda make: (make.trial(3.0, drop=1.0),), "every finished one violates a constraint"),
    ],
)
def test_a_study_without_a_best_trial_has_a_page_too(make, page, trials, says):
    text = words(page(make.study(*trials(make))))
    assert f"There is no best trial: {says}. There is no best_params.yml." in text
    assert "Best values" not in text


def test_configured_values_that_are_the_best_are_said_to_be(make, page):
    text = words(page(make.study(make.trial(66.5, lr=2e-3, positives=4), make.trial(3.0))))
    assert "These are the configured values: no other trial was better." in text


def test_a_running_study_has_a_page(make, page, study):
    study.ask()
    assert "1 running" in words(page(study))


def row(label, headline, gain, low, high):
    """A figure of 40, 50 and so much more than 50."""
    base, configured, tuned = (Estimate(v, v - 1, v + 1) for v in (40.0, 50.0, 50.0 + gain))

    def difference(against, value, low, high):
        p = 0.02 if low * high > 0 else 0.2
        return Difference("tuned", against, value, low, high, p / 2, p, 2.75, 3, 1)

    return Row(
        benchmark="play",
        metric="accuracy",
        name=label,
        label=label,
        headline=headline,
        averaged=False,
        items=12,
        skipped=0,
        images=12,
        chance=50.0,
        values={"base": base, "configured": configured, "tuned": tuned},
        differences=(
            difference("base", 10.0 + gain, 5.0, 15.0),
            difference("configured", gain, low, high),
        ),
    )


def test_what_counts_stands_on_the_page(page, study):
    rows_ = [
        row("<i>better</i>", True, 3.25, 1.5, 5.0),
        row("worse", True, -4.0, -6.0, -2.0),
        row("the same", True, 0.5, -1.0, 2.0),
        row("details", False, 9.0, 8.0, 10.0),
    ]
    # As stored in the catalog.
    stored = {"seeds": [1, 2], "comparison": as_comparison(rows_, "scenes", {}).to_json()}
    confirmation = parse(StoredConfirmation, json.loads(json.dumps(stored)), "confirmation")
    html = page(study, confirmation=confirmation)
    text = words(html)
    assert "trained in full with 2 seeds that no trial had (1, 2), scored" in text
    assert (
        "&lt;i&gt;better&lt;/i&gt; 40.0 50.0 53.2 +3.2 [+1.5, +5.0] +13.2 [+5.0, +15.0] 2.8" in text
    )
    assert "worse 40.0 50.0 46.0 \u22124.0 [\u22126.0, \u22122.0] +6.0" in text
    assert "details" not in text
    assert "The next section has the unbiased comparison." in text
    differences = re.findall(r'<td class="(\w+)">[+\u2212]\d+\.\d \[', html)
    assert differences == ["met", "met", "broken", "met", "dim", "met"]


def test_the_page_says_why_nothing_was_confirmed(page, study):
    text = words(
        page(study, confirmation=StoredConfirmation(reason="tuning.confirmation.seeds is 0"))
    )
    assert (
        "Confirmation on the reported items No confirmation: tuning.confirmation.seeds is 0."
        in text
    )
    assert "needs the reported items and fresh seeds." in text
    assert "Confirmation" not in words(page(study))


def test_the_page_counts_steps(make, page):
    trials = [
        make.trial(3.0, user_attrs={"steps": 1200}),
        make.trial(4.0, user_attrs={"steps": 34}),
    ]
    assert "; 1,234 steps in " in words(page(make.study(*trials)))
    assert "steps" not in words(page(make.study(make.trial(3.0)))).partition("is the best")[0]
