"""What the attention of a run's models comes to: a page and a table on the terminal."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from PIL import Image

from compo_pipeline.analysis.localisation import Located
from compo_pipeline.console import table as plain_table
from compo_pipeline.console import terminal
from compo_pipeline.evaluation.comparison import ROLES, Difference, Row
from compo_pipeline.presentation.pages import environment
from compo_pipeline.presentation.report_terminal import STYLES
from compo_pipeline.presentation.thumbnails import thumbnail

if TYPE_CHECKING:
    from rich.console import Console

PAGE = "attention.html"
_SIDE = 2200
_EXAMPLES = 5
_LABELS = {"base": "base", "control": "control", "fine_tuned": "fine-tuned"}
_OPPONENTS = ("base", "control")


@dataclass(frozen=True, slots=True)
class Summary:
    """What is told of a run.

    Attributes:
        name: of the run, for the heading.
        rows: the measures; none where no region is known.
        asked: phrases asked of images.
        drawn: how many of them are drawn.
        left_out: phrases that could not be measured, by reason.
        unreadable: examples of images that could not be read.
    """

    name: str
    rows: Sequence[Row]
    asked: int
    drawn: int
    left_out: Mapping[str, int]
    unreadable: Sequence[str]

    @property
    def roles(self) -> list[str]:
        """The models that were measured."""
        return [role for role in ROLES if self.rows and getattr(self.rows[0], role)]

    @property
    def opponents(self) -> list[str]:
        """The models that the fine-tuned one is held against."""
        return [role for role in _OPPONENTS if role in self.roles]


def summarise(
    name: str,
    rows: Sequence[Row],
    base: Sequence[Located],
    skipped: Mapping[str, int],
    drawn: int,
) -> Summary:
    """Put together what is told.

    Args:
        name: of the run.
        rows: of `localisation.compare_located`.
        base: what was measured of the base, for what could not be.
        skipped: phrases that could not even be asked, by reason.
        drawn: phrases that are drawn.
    """
    problems = [(row.problem, row.image) for row in base if row.problem is not None]
    left_out = Counter(skipped) + Counter(problem for problem, _ in problems)
    unreadable = {image: None for problem, image in problems if "unreadable" in problem}
    return Summary(name, rows, len(base), drawn, dict(left_out), list(unreadable)[:_EXAMPLES])


def figures(rows: Sequence[Row]) -> dict[str, dict[str, float]]:
    """Numbers for the record of a run, by measure."""
    found: dict[str, dict[str, float]] = {}
    for row in rows:
        own = found.setdefault(row.metric, {})
        for role in ROLES:
            estimate = getattr(row, role)
            if estimate is not None:
                own[role] = estimate.value
        own["chance"] = row.chance or 0.0
        own["against_base"] = row.vs_base.value
    return found


def write(summary: Summary, grids: Sequence[Path], folder: Path) -> Path:
    """Write `attention.html`; it needs no other file and no network."""
    images = []
    for path in grids:
        with Image.open(path) as image:
            images.append(thumbnail(image.convert("RGB"), _SIDE))
    context: dict[str, Any] = {
        "summary": summary,
        "labels": _LABELS,
        "grids": images,
        "signed": _signed,
    }
    page = environment().get_template(PAGE).render(context)
    (folder / PAGE).write_text(page, encoding="utf-8")
    return folder / PAGE


def show(summary: Summary, page: Path, console: Console | None = None) -> None:
    """Print the measures of all models, what was left out, and where the page lies."""
    from rich.text import Text

    console = terminal(console)
    if summary.rows:
        first = summary.rows[0]
        table = plain_table(
            f"per cent; {first.items:,} phrases, each naming a thing whose place is known, "
            f"in {first.images:,} images; 95% intervals"
        )
        table.add_column("")
        for label in ("chance", *(_LABELS[role] for role in summary.roles)):
            table.add_column(label, justify="right", no_wrap=True)
        for role in summary.opponents:
            table.add_column(f"against {role}", justify="right", no_wrap=True)
        for row in summary.rows:
            cells = [Text(f"{row.chance:.2f}")]
            cells += [Text(f"{getattr(row, role).value:.2f}") for role in summary.roles]
            for role in summary.opponents:
                difference = getattr(row, f"vs_{role}")
                cells.append(Text(_signed(difference), style=STYLES[difference.significance]))
            table.add_row(row.label, *cells)
        console.print(table)
    for reason, count in summary.left_out.items():
        console.print(Text(f"{count:,} phrases left out: {reason}", style="yellow"))
    if summary.unreadable:
        console.print(Text(f"unreadable: {', '.join(summary.unreadable)}", style="yellow"))
    console.print(Text(f"{summary.drawn} of {summary.asked} phrases are drawn: {page}"))


def _signed(difference: Difference) -> str:
    """A difference with its interval; the unscaled attention moves by tenths of a per cent."""
    return f"{difference.value:+.2f} [{difference.low:+.2f}, {difference.high:+.2f}]"
