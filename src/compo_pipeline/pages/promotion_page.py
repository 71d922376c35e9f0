"""The page of a promotion's decision."""

from __future__ import annotations

import os
from collections.abc import Sequence

from compo_pipeline.core.provenance import Site
from compo_pipeline.evaluation.roles import EXAMPLES, ROLE_LABELS
from compo_pipeline.pages.pages import Cell, CellLike, Link, List, Page, Table, interval
from compo_pipeline.registry.gate import ITEMS, Check
from compo_pipeline.registry.promotion import Decision

# The markdown is for comments on a pull request.
PAGE, MARKDOWN = "promotion.html", "promotion.md"


def promotion_page(decision: Decision, site: Site) -> Page:
    """The page of a promotion or rollback.

    Args:
        decision: decision to show.
        site: the command that is running, and where pages are.
    """
    own = {"decided": decision.at, "champion before": str(decision.previous or "none")}
    if decision.checks:
        own |= {"compared with": decision.opponent, "gate": decision.gate}
    if decision.waived:
        own["waived (promotion.waive)"] = ", ".join(decision.waived)
    title = f"{decision.name} version {decision.version}: {decision.outcome}"
    title += " (dry run: nothing was changed)" if decision.dry_run else ""
    gate = Table(
        ("result", "rule", "figure", "items", "before", "now", "difference", "finding"),
        [_check_cells(check) for check in decision.checks],
        ("rule", "figure", "finding"),
        title="The gate",
        note="Per cent; differences are paired on the same items, with 95% intervals.",
    )
    sections = [gate, List(next_steps(decision.checks), title="What to do next")]
    over = "Decision about a version of a registered model"
    facts = {**own, **site.facts("promotion")}
    return Page(title, over, sections, [decision.reason], facts, _report_links(site))


def _report_links(site: Site) -> list[Link]:
    """Links to the reports of all runs on the dataset."""
    folder = site.folder("promotion_report")
    reports = sorted(folder.parent.glob("*/*/seed=*/report/report.html"))
    return [Link(" ".join(page.parts[-5:-2]), os.path.relpath(page, folder)) for page in reports]


def next_steps(checks: Sequence[Check]) -> list[str]:
    """Sentences on remedies for failed gate checks, and on scoring waived roles."""
    failed = [check for check in checks if not check.passed]
    absent = dict.fromkeys(check.absent for check in checks if check.absent is not None)
    steps = [
        f"A set of {ROLE_LABELS[role].lower()}, such as {EXAMPLES[role]}, is added by `kedro run "
        f"--pipeline=rescore --params benchmarks.sets.{EXAMPLES[role]}.root=<folder>` with the "
        "--env of the training; `compo-pipeline benchmarks` lists all."
        for role in absent
    ]
    if not failed:
        return steps
    if any(check.numbers is not None for check in failed):
        steps.append(
            "Train another version: another method (`--params method=<name>`), another recipe "
            "(`--env=<name>`), or a mixture with the base: `kedro run --pipeline=wise_ft` shows "
            "what each ratio gains and costs, `kedro run --pipeline=train_eval --params "
            "training.wise_ft.ratio=<ratio>` registers one without training again."
        )
    # Several figures of one rule share its limit: that with which all of them pass, or are judged.
    limits: dict[str, float] = {}
    for check in failed:
        if check.enough is not None:
            widest = min if check.key == ITEMS else max
            limits[check.key] = widest(check.enough, limits.get(check.key, check.enough))
    if limits:
        params = ",".join(f"{key}={limit:g}" for key, limit in sorted(limits.items()))
        steps.append(
            f"Or change these limits: `kedro run --pipeline=promotion --params {params}` with the "
            "--env of the training; without --params the gate stays as it is."
        )
    steps.append("`--params promotion.dry_run=true` decides and reports, and changes nothing.")
    return steps


def _check_cells(check: Check) -> list[CellLike]:
    """The cells of a gate check's row."""
    state = Cell("passed", "good") if check.passed else Cell("FAILED", "bad")
    finding = Cell(check.finding, "words", "" if check.passed else check.key)
    numbers = ["", "", "", ""]
    if found := check.numbers:
        change = f"{found.difference:+.2f} {interval(found.low, found.high, '+.2f')}"
        numbers = [str(found.items), f"{found.opponent:.2f}", f"{found.challenger:.2f}", change]
    return [Cell("waived") if check.waived else state, check.rule, check.subject, *numbers, finding]
