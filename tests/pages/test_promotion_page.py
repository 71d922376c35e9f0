"""A decision in the terminal, as markdown and as HTML says the same."""

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from compo_pipeline.core.provenance import CommandOptions, Site
from compo_pipeline.core.records import Score
from compo_pipeline.evaluation.contamination import Overlap
from compo_pipeline.pages.promotion_page import MARKDOWN, PAGE, promotion_page
from compo_pipeline.pages.tables import show
from compo_pipeline.registry.gate import Check, judge
from compo_pipeline.registry.promotion import Decision
from compo_pipeline.registry.settings import Gate, GateRule

RULE = GateRule("hold", figure="sugar_crepe_pp/itt/swap_att", by=1.0)
GATE = Gate(version=1, rules={"itt": RULE}, items=20)
FACTS = {"date": "today", "commit": "abc"}


@pytest.fixture(autouse=True)
def facts(monkeypatch: pytest.MonkeyPatch) -> None:
    """A page has its facts from the site: these, and the command of its pipeline."""
    monkeypatch.setattr(Site, "facts", lambda site, name: {**FACTS, "command": site.run(name)})


def site_of(folder: Path) -> Site:
    return Site(CommandOptions("toy"), {"promotion_report": str(folder / "promotion.html")})


def judged(right: int, by: float = RULE.by) -> tuple[Check, ...]:
    """Checks of a challenger with some of 40 items right, against an opponent with 30."""
    tables = [
        [
            Score("m", "sugar_crepe_pp", "swap_att", "itt", f"{k}", f"{k}.png", (0.5,), k < n, None)
            for k in range(40)
        ]
        for n in (right, 30)
    ]
    gate = replace(GATE, rules={"itt": replace(RULE, by=by)})
    unseen = Overlap("sugar_crepe_pp", "swap_att", 40, 0, 0, 40, 0)
    return judge(*tables, [unseen], gate)


def decision(checks: tuple[Check, ...], **changes: Any) -> Decision:
    return Decision(
        **{
            "name": "compo-clip",
            "version": 3,
            "outcome": "refused",
            "reason": "Failed: itt.",
            "previous": 1,
            "opponent": "champion, version 1",
            "gate": "1-abcd",
            "at": "2024-01-01",
            "checks": checks,
            **changes,
        }
    )


def written(given: Decision, folder: Path) -> tuple[str, str]:
    """The markdown and the HTML."""
    page = promotion_page(given, site_of(folder)).files(MARKDOWN, PAGE)
    return str(page["promotion.md"]), str(page["promotion.html"])


def test_a_refusal_is_a_table_with_next_steps_everywhere(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], approved: Callable[[str, str], None]
) -> None:
    refused = decision(judged(20))
    markdown, html = written(refused, tmp_path)
    show(promotion_page(refused, site_of(tmp_path)))
    terminal = capsys.readouterr().out
    assert markdown.startswith("# compo-clip version 3: refused\n")
    assert "| FAILED | itt | SugarCrepe++ ITT swap att | 40 | 75.00 | 50.00 | -25.00 [" in markdown
    assert '<td class="bad">FAILED</td>' in html and "version 3: refused" in terminal
    approved("promotion", html)
    for shown in (markdown, html):
        assert "champion, version 1" in shown and "1-abcd" in shown and "today" in shown
        assert "kedro run --pipeline=promotion --env=toy" in shown
    for shown in (markdown, html.replace("\N{MINUS SIGN}", "-"), terminal):
        assert "-25.00 [" in shown and "promotion.gate.rules.itt.by" in shown
        assert "training.wise_ft.ratio" in shown


def test_the_suggested_limit_is_the_smallest_that_passes(tmp_path: Path) -> None:
    markdown, _ = written(decision(judged(28)), tmp_path)
    given = re.search(r"--params promotion\.gate\.rules\.itt\.by=([\d.]+)`", markdown)
    assert given is not None
    limit = float(given[1])
    for by, passes in ((limit, True), (limit - 0.1, False)):
        assert next(check.passed for check in judged(28, by) if check.rule == "itt") is passes


def test_a_waived_role_is_named_with_the_command_that_scores_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rule = GateRule("hold", role="zero_shot")
    absent = replace(GATE, rules={"zero_shot": rule})
    scores = [Score("m", "sugar_crepe_pp", "swap_att", "itt", "0", "0.png", (0.5,), True, None)]
    unseen = Overlap("sugar_crepe_pp", "swap_att", 40, 0, 0, 40, 0)
    waived, refused = (
        judge(scores, scores, [unseen], absent, waive=waive) for waive in (("zero_shot",), ())
    )
    command = "kedro run --pipeline=rescore --params benchmarks.sets.zero_shot_sets.root=<folder>"
    given = decision(waived, outcome="promoted")
    show(promotion_page(given, site_of(tmp_path)))
    terminal = capsys.readouterr().out
    markdown, html = written(given, tmp_path)
    assert "| waived | zero_shot | Zero-shot classification |" in markdown
    assert "- waived (promotion.waive): zero_shot" in markdown
    for page in (markdown, html.replace("&lt;", "<").replace("&gt;", ">"), terminal):
        assert command in page and "FAILED" not in page
    markdown, _ = written(decision(refused), tmp_path)
    show(promotion_page(decision(refused), site_of(tmp_path)))
    assert "`promotion.waive: [zero_shot]`" in capsys.readouterr().out
    assert "`promotion.waive: [zero_shot]`" in markdown
    assert "| FAILED | zero_shot |" in markdown and command in markdown
    assert "waived (promotion.waive)" not in markdown


def test_nothing_is_suggested_after_a_promotion(tmp_path: Path) -> None:
    pages = written(decision(judged(40), outcome="promoted", dry_run=True), tmp_path)
    for page in pages:
        assert "What to do next" not in page and "dry run: nothing was changed" in page
