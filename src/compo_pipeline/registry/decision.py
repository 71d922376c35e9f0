"""What a promotion decided, for people (markdown, terminal) and for the registry (tags)."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Literal

from rich.console import Console

from compo_pipeline.console import table as plain_table
from compo_pipeline.console import terminal
from compo_pipeline.presentation import pages
from compo_pipeline.registry.gate import Check
from compo_pipeline.registry.next_steps import next_steps

Outcome = Literal["promoted", "refused", "unchanged", "contested", "rolled back"]
ROLLED_BACK: Outcome = "rolled back"
# Of the tags of a version that tell what was decided about it last.
PREFIX = "promotion."
OUTCOME = f"{PREFIX}outcome"


@dataclass(frozen=True, slots=True)
class Decision:
    """What was decided about a version of a registered model.

    Attributes:
        name: the registered model.
        version: the version that the decision is about.
        outcome: what came of it; of a dry run, what would have.
        reason: in a sentence.
        former: the champion before, None where there was none.
        opponent: what the version was held against.
        gate: the gate's identity, empty where none was asked.
        at: when, ISO 8601 in UTC.
        dry_run: whether the registry was left as it was.
        checks: what the gate found.
    """

    name: str
    version: int
    outcome: Outcome
    reason: str
    former: int | None
    opponent: str
    gate: str
    at: str
    dry_run: bool = False
    checks: tuple[Check, ...] = ()

    @property
    def failed(self) -> bool:
        """Whether the command ends with an error."""
        return self.outcome in ("refused", "contested")

    def summary(self) -> str:
        """One line."""
        dry = "dry run: " if self.dry_run else ""
        return f"{dry}{self.name} version {self.version}: {self.outcome}. {self.reason}"

    def tags(self) -> dict[str, str]:
        """What the version's tags say of it; a decision without a gate leaves an earlier one's."""
        tags = {
            OUTCOME: self.outcome,
            f"{PREFIX}reason": self.reason,
            f"{PREFIX}against": self.opponent,
            f"{PREFIX}at": self.at,
        }
        if self.gate:
            checks = [asdict(check) for check in self.checks]
            tags |= {f"{PREFIX}gate": self.gate, f"{PREFIX}checks": json.dumps(checks)}
        return tags


_COLUMNS = ("", "rule", "figure", "items", "before", "now", "difference", "finding")
# Columns that a narrow terminal does not break: those of numbers.
_WHOLE = ("items", "before", "now", "difference")


def _cells(check: Check) -> tuple[str, ...]:
    mark = "passed" if check.passed else "FAILED"
    if check.numbers is None:
        return mark, check.rule, check.subject, "", "", "", "", check.finding
    found = check.numbers
    difference = f"{found.difference:+.2f} [{found.low:+.2f}, {found.high:+.2f}]"
    values = (f"{found.opponent:.2f}", f"{found.challenger:.2f}")
    return mark, check.rule, check.subject, str(found.items), *values, difference, check.finding


def markdown(decision: Decision) -> str:
    """The decision as a page."""
    return "\n".join(_lines(decision)) + "\n"


def _lines(decision: Decision) -> Iterator[str]:
    dry = " (dry run: nothing was changed)" if decision.dry_run else ""
    yield f"# {decision.name} version {decision.version}: {decision.outcome}{dry}"
    yield ""
    yield decision.reason
    yield ""
    yield f"- at: {decision.at}"
    yield f"- champion before: {decision.former or 'none'}"
    if not decision.checks:
        return
    yield f"- held against: {decision.opponent}"
    yield f"- gate: {decision.gate}"
    yield ""
    yield "Per cent; differences are paired on the same items, with 95% intervals."
    yield ""
    yield _row(_COLUMNS)
    yield _row(["---"] * len(_COLUMNS))
    for check in decision.checks:
        yield _row(_cells(check))
    if steps := next_steps(decision.checks):
        yield from ("", "## What to do next", "", *(f"- {step}" for step in steps))


def _row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in cells) + " |"


def html(decision: Decision, facts: Mapping[str, str], links: Sequence[pages.Link]) -> str:
    """The decision as an HTML page.

    Args:
        decision: what was decided.
        facts: date, command and commit.
        links: related pages.
    """
    dry = " (dry run: nothing was changed)" if decision.dry_run else ""
    known = {"decided": decision.at, "champion before": str(decision.former or "none")}
    if decision.checks:
        known |= {"held against": decision.opponent, "gate": decision.gate}
    context = {
        "title": f"{decision.name} version {decision.version}: {decision.outcome}{dry}",
        "reason": decision.reason,
        "facts": {**known, **facts},
        "links": links,
        "columns": _COLUMNS,
        "checks": [list(zip(_COLUMNS, _cells(check), strict=True)) for check in decision.checks],
    }
    return pages.render(__package__, "promotion.html", context)


def show(decision: Decision, console: Console | None = None) -> None:
    """Print the table of checks and the outcome."""
    console = terminal(console)
    if decision.checks:
        table = plain_table()
        for column in _COLUMNS:
            table.add_column(column, no_wrap=column in _WHOLE)
        for check in decision.checks:
            table.add_row(*_cells(check), style="" if check.passed else "red")
        console.print(table)
    console.print(decision.summary(), markup=False)
    for step in next_steps(decision.checks):
        # Each on a line of its own that can be copied, however narrow the terminal.
        console.print(f"- {step}", markup=False, highlight=False, soft_wrap=True)
