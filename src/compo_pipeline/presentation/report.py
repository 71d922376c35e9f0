"""The report of a run: one self-contained page, and its figures beside it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from compo_pipeline.evaluation.benchmarks import Subtask
from compo_pipeline.evaluation.comparison import FINE_TUNED, Difference, Row
from compo_pipeline.evaluation.conclusions import summary_sentence
from compo_pipeline.evaluation.evaluate import Comparison
from compo_pipeline.evaluation.published import published_results
from compo_pipeline.presentation import pages
from compo_pipeline.presentation import report_figures as figures
from compo_pipeline.presentation.gallery import FATES, cards
from compo_pipeline.records import Rejected, Score

if TYPE_CHECKING:
    import pandas as pd

PAGE = "report.html"
SUBTASKS = "subtasks.png"
CURVES = "curves.png"


@dataclass(frozen=True, slots=True)
class Material:
    """All that a report is made of.

    Attributes:
        comparison: the run's figures.
        scores: the rows behind them.
        subtasks: the choice benchmarks, whose items are shown.
        quarantine: rows that validation set aside.
        curves: training curves, with a `step` column.
        gallery: items of each fate to image.
        facts: what the page says of the run, label to text: date, command, commit, recipe, ...
        settings: that the model was trained with, for the page's last part.
        links: related pages.
    """

    comparison: Comparison
    scores: Iterable[Score]
    subtasks: Sequence[Subtask]
    quarantine: Sequence[Rejected]
    curves: pd.DataFrame
    gallery: int
    facts: Mapping[str, str]
    settings: Mapping[str, Any]
    links: Sequence[pages.Link] = ()


def write(material: Material, folder: Path) -> Path:
    """Write `report.html` and its figures; the page itself needs no other file and no network."""
    folder.mkdir(parents=True, exist_ok=True)
    page = pages.render(PAGE, _context(material, folder))
    (folder / PAGE).write_text(page, encoding="utf-8")
    return folder


def _context(material: Material, folder: Path) -> dict[str, Any]:
    comparison = material.comparison
    rows, models = comparison.rows, comparison.models
    shown = cards(material.subtasks, material.scores, models, material.gallery)
    name = comparison.labels[FINE_TUNED]
    return {
        "title": f"{name} on {comparison.dataset}",
        "facts": material.facts,
        "links": material.links,
        "settings": yaml.safe_dump(dict(material.settings), sort_keys=False),
        "sentence": summary_sentence(rows),
        "comparison": comparison,
        "models": models,
        "labels": comparison.labels,
        "name": name,
        "p_value": _p_value,
        "share": _share,
        "opponents": [role for role in ("base", "control") if role in models],
        "headlines": _grouped([row for row in rows if row.headline]),
        "every": _grouped(rows),
        "keys": _key_rows(rows),
        "limit": _limit(rows),
        "tally": Counter(row.vs_base.significance for row in rows),
        "benchmarks": comparison.benchmarks,
        "subtask_figure": figures.subtasks(rows, comparison.labels, folder / SUBTASKS),
        "curve_figure": figures.curves(material.curves, folder / CURVES),
        "fates": FATES,
        "cards": shown,
        "fate_counts": Counter(card.fate for card in shown),
        "published": published_results(rows, coco=comparison.dataset == "coco"),
        "quarantine": Counter(row.rule for row in material.quarantine).most_common(),
        "quarantined": len({(row.row, row.sample_id, row.image) for row in material.quarantine}),
    }


def _grouped(rows: Iterable[Row]) -> dict[str, list[Row]]:
    groups: dict[str, list[Row]] = {}
    for row in rows:
        groups.setdefault(row.benchmark, []).append(row)
    return groups


def _key_rows(rows: Sequence[Row]) -> list[Row]:
    """The four figures at the top of the page."""
    wanted = (
        ("sugar_crepe_pp", "itt", "average"),
        ("sugar_crepe", "accuracy", "average"),
        ("sugar_crepe_pp", "tot", "average"),
    )
    found = {(row.benchmark, row.metric, row.name): row for row in rows}
    keys = [found[key] for key in wanted if key in found]
    return (keys + [row for row in rows if row.metric == "i2t_r1"])[:4]


def _limit(rows: Iterable[Row]) -> float:
    """The largest difference that the little interval plots must hold."""
    ends = [1.0]
    for row in rows:
        for difference in (row.vs_base, row.vs_control):
            if row.headline and isinstance(difference, Difference):
                ends += [abs(difference.low), abs(difference.high)]
    return max(ends) * 1.05


def _p_value(p: float) -> str:
    return "< .001" if p < 0.001 else f"{p:.3f}".removeprefix("0")


def _share(part: int, whole: int) -> str:
    return f"{100 * part / whole:.1f}" if whole else "0.0"
