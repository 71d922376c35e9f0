"""A promotion's decision as an HTML page, as markdown and in the terminal."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from compo_pipeline.evaluation.roles import EXAMPLES, ROLE_LABELS
from compo_pipeline.presentation import pages
from compo_pipeline.presentation.pages import Cell, CellLike
from compo_pipeline.presentation.tables import print_table
from compo_pipeline.run.console import terminal
from compo_pipeline.run.provenance import Site
from compo_pipeline.versions.gate import ITEMS, Check
from compo_pipeline.versions.promotion import Decision, PromotionError

# The markdown is for comments on a pull request.
PAGE, MARKDOWN = "promotion.html", "promotion.md"


def files(decision: Decision, site: Site) -> dict[str, str | bytes]:
    """The page of a promotion or rollback, as HTML and Markdown.

    Args:
        decision: what was decided.
        site: the command that is running, and where pages are.
    """
    own = {"decided": decision.at, "champion before": str(decision.previous or "none")}
    if decision.checks:
        own |= {"compared with": decision.opponent, "gate": decision.gate}
    if decision.waived:
        own["waived (promotion.waive)"] = ", ".join(decision.waived)
    title = f"{decision.name} version {decision.version}: {decision.outcome}"
    title += " (dry run: nothing was changed)" if decision.dry_run else ""
    sections: list[pages.Section] = [_gate_table(decision)] if decision.checks else []
    if steps := next_steps(decision.checks):
        sections.append(pages.List(steps, title="What to do next"))
    over = "Decision about a version of a registered model"
    facts = {**own, **site.facts(decision.pipeline)}
    page = pages.Page(title, over, sections, [decision.reason], facts, _report_links(site))
    return page.files(MARKDOWN, PAGE)


def report(decision: Decision, folder: Path, console: Console | None = None) -> None:
    """Print a promotion's decision, and raise an error if the challenger was refused.

    Raises:
        PromotionError: the challenger was refused.
    """
    show(decision, console)
    if decision.failed:
        page = folder / PAGE
        raise PromotionError(f"{decision.summary()} More in {page}; the rules: promotion.gate")


def _report_links(site: Site) -> list[pages.Link]:
    """Links to the reports of all runs on the dataset."""
    folder = site.folder("promotion_report")
    reports = sorted(folder.parent.glob("*/*/seed=*/report/report.html"))
    return [
        pages.Link(" ".join(page.parts[-5:-2]), os.path.relpath(page, folder)) for page in reports
    ]


def show(decision: Decision, console: Console | None = None) -> None:
    """Print the gate's table of checks, the outcome of a promotion, and the next steps."""
    console = terminal(console)
    if decision.checks:
        print_table(_gate_table(decision), console)
    console.print(decision.summary(), markup=False)
    for step in next_steps(decision.checks):
        # One line each, so that a command can be copied from a narrow terminal.
        console.print(f"- {step}", markup=False, highlight=False, soft_wrap=True)


def next_steps(checks: Sequence[Check]) -> list[str]:
    """Sentences on what each failed gate check found, its YAML key, and what can be done.

    Of a version that passed, they say how to score what was waived.
    """
    failed = [check for check in checks if not check.passed]
    steps = [_failure_in_words(check) for check in failed]
    absent = dict.fromkeys(check.absent for check in checks if check.absent is not None)
    steps += [
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
    if fewest := [check.enough for check in failed if check.key == ITEMS and check.enough]:
        steps.append(
            f"Or judge by fewer items: `kedro run --pipeline=promotion --params {ITEMS}="
            f"{min(fewest):g}` with the --env of the training; so few have wide intervals, and a "
            "rule may refuse these, too."
        )
    # Several figures of one rule share its limit: the largest lets all of them pass.
    limited = [check for check in failed if check.enough is not None and check.key != ITEMS]
    limits = sorted((check.enough, check.key) for check in limited if check.enough is not None)
    if limits:
        params = ",".join(f"{key}={limit:g}" for key, limit in {k: v for v, k in limits}.items())
        passing = "it passes" if len(limits) == len(failed) else "these rules pass"
        steps.append(
            f"Or accept the loss: `kedro run --pipeline=promotion --params {params}` with the "
            f"--env of the training, then {passing}; without --params the gate stays as it is."
        )
    steps.append("`--params promotion.dry_run=true` decides and reports, and changes nothing.")
    return steps


def _failure_in_words(check: Check) -> str:
    """A sentence on what a failed gate check found, with its YAML key."""
    key = f" ({check.key})" if check.key else ""
    subject = f"{check.rule}, {check.subject}" if check.subject else check.rule
    found = check.numbers
    if found is None:
        return f"{subject}: {check.finding}{key}."
    change = f"{found.difference:+.1f} points [{found.low:+.1f}, {found.high:+.1f}]"
    return f"{subject}: {change}; {check.finding}{key}."


def _gate_table(decision: Decision) -> pages.Table:
    """The table of the gate's checks: result, rule, figure, numbers and finding."""
    return pages.Table(
        ("result", "rule", "figure", "items", "before", "now", "difference", "finding"),
        [_check_cells(check) for check in decision.checks],
        ("rule", "figure", "finding"),
        title="The gate",
        note="Per cent; differences are paired on the same items, with 95% intervals.",
    )


def _check_cells(check: Check) -> list[CellLike]:
    """The cells of a gate check's row."""
    state = Cell("passed", "good") if check.passed else Cell("FAILED", "bad")
    # What would fill an absent role is among the next steps.
    finding = check.finding.partition(";")[0] if check.absent else check.finding
    numbers = ["", "", "", ""]
    if found := check.numbers:
        interval = f"{found.difference:+.2f} [{found.low:+.2f}, {found.high:+.2f}]"
        numbers = [str(found.items), f"{found.opponent:.2f}", f"{found.challenger:.2f}", interval]
    return [Cell("waived") if check.waived else state, check.rule, check.subject, *numbers, finding]
