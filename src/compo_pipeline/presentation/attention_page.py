"""Page and terminal table of the attention of a run's models."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from PIL import Image
from rich.console import Console
from rich.text import Text

from compo_pipeline.evaluation.analysis.localisation import Located
from compo_pipeline.evaluation.comparison import Row
from compo_pipeline.presentation import pages
from compo_pipeline.presentation.pages import ImageCard, thumbnail
from compo_pipeline.presentation.tables import difference_text, number_table
from compo_pipeline.run.console import terminal

PAGE = "attention.html"
_SIDE = 2200
_EXAMPLES = 5
_LABELS = {"base": "base", "control": "control", "fine_tuned": "fine-tuned"}


@dataclass(frozen=True, slots=True)
class AttentionSummary:
    """Result of a run's attention analysis: measures by model, and phrases that were left out."""

    name: str
    """Name of the run."""
    rows: Sequence[Row]
    """The measures, of `localisation.compare_located`; empty if no region is known."""
    base: Sequence[Located]
    """A row of the base for each case: a phrase in an image."""
    skipped: Mapping[str, int]
    """Number of phrases without a case, by reason."""
    drawn: int
    """Number of cases that are drawn."""

    @property
    def case_count(self) -> int:
        """Number of cases (a phrase in an image), including those that were not measured."""
        return len(self.base)

    @property
    def left_out(self) -> dict[str, int]:
        """Number of phrases that could not be measured, by reason."""
        problems = (row.problem for row in self.base if row.problem is not None)
        return dict(Counter(self.skipped) + Counter(problems))

    @property
    def unreadable(self) -> list[str]:
        """Paths of images that could not be read, at most five."""
        images = (row.image for row in self.base if "unreadable" in (row.problem or ""))
        return list(dict.fromkeys(images))[:_EXAMPLES]

    @property
    def roles(self) -> list[str]:
        """Roles of the measured models, such as `base` and `fine_tuned`."""
        return list(self.rows[0].values) if self.rows else []

    @property
    def opponents(self) -> list[str]:
        """Roles of the models that the fine-tuned model is compared with."""
        return [each.against for each in self.rows[0].differences] if self.rows else []


def metrics(rows: Sequence[Row]) -> dict[str, dict[str, float]]:
    """The attention measures as metrics for MLflow, by measure and model."""
    found = {}
    for row in rows:
        values = {role: each.value for role, each in row.values.items()}
        further = {"chance": row.chance or 0.0, "against_base": row.difference.value}
        found[row.metric] = values | further
    return found


def write(summary: AttentionSummary, grids: Sequence[Path], folder: Path) -> Path:
    """Write the page of the attention analysis, `attention.html`, as one self-contained file."""
    images = []
    for path in grids:
        with Image.open(path) as image:
            images.append(ImageCard(path.name, *thumbnail(image.convert("RGB"), _SIDE)))
    context = {
        "title": f"Attention of {summary.name}",
        "summary": summary,
        "labels": _LABELS,
        "grids": images,
    }
    return pages.write(folder / PAGE, PAGE, context)


def show(summary: AttentionSummary, page: Path, console: Console | None = None) -> None:
    """Print the attention measures of all models, the phrases left out, and the page's path."""
    console = terminal(console)
    if summary.rows:
        first = summary.rows[0]
        labels = [_LABELS[role] for role in summary.roles]
        against = [f"against {role}" for role in summary.opponents]
        table = number_table(
            f"per cent; {first.items:,} phrases, each with a known region, "
            f"in {first.images:,} images; 95% intervals",
            ["chance", *labels, *against],
        )
        for row in summary.rows:
            values = [row.chance, *(each.value for each in row.values.values())]
            differences = row.differences
            table.add_row(
                row.label,
                *(f"{value:.2f}" for value in values),
                # Unscaled attention changes by tenths of a per cent.
                *(difference_text(difference, decimals=2) for difference in differences),
            )
        console.print(table)
    for reason, count in summary.left_out.items():
        console.print(Text(f"{count:,} phrases left out: {reason}", style="yellow"))
    if summary.unreadable:
        console.print(Text(f"unreadable: {', '.join(summary.unreadable)}", style="yellow"))
    console.print(Text(f"{summary.drawn} of {summary.case_count} phrases are drawn: {page}"))
