"""Page of monitoring: what drifted, requests out of distribution, words, the hardest requests."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray
from rich.console import Console

from compo_pipeline.images.decoding import Limits
from compo_pipeline.monitoring.captioning import TABLE, image_files
from compo_pipeline.monitoring.distances import LISTS
from compo_pipeline.monitoring.drift import EMBEDDINGS, PERMUTATIONS
from compo_pipeline.monitoring.report import Measured
from compo_pipeline.presentation import pages
from compo_pipeline.presentation.pages import ImageCard, image_card
from compo_pipeline.presentation.plots import STYLE, THEME, save
from compo_pipeline.run.console import table as plain_table
from compo_pipeline.run.console import terminal

PAGE = "monitoring.html"
PLOT = "distributions.png"
_LABELS = {
    "images": "images",
    "texts": "texts",
    "cosines": "cosine of image and text",
    "margins": "margin over texts of the reference",
    "tokens": "tokens of the text",
    "words": "words of the text",
    "unknown_words": "share of unknown words",
}
_SHOWN = 25  # words of a table
_BINS = 30
_COLUMNS = 2


class HardCard(NamedTuple):
    """A hard request as the page shows it: image, caption, and the value it is ranked by."""

    image: ImageCard
    caption: str | None
    label: str
    value: float


def write(
    report: Mapping[str, Any],
    measured: Measured,
    images: Path,
    lines: str,
    facts: Mapping[str, str],
    folder: Path,
) -> None:
    """Write the page of a monitoring report, `monitoring.html`, and its plot.

    Args:
        report: of `monitoring.report.summary`.
        measured: what was measured, for the plot.
        images: folder of `monitoring.captioning`.
        lines: YAML that adds that folder to a training.
        facts: about the run.
        folder: for the page.
    """
    folder.mkdir(parents=True, exist_ok=True)
    files = image_files(images)
    shown: dict[str, ImageCard] = {}
    for own in measured.hardest.values():
        for each in own:
            if each.image_hash in files and each.image_hash not in shown:
                shown[each.image_hash] = image_card(images, files[each.image_hash], Limits())
    cards = {
        LISTS[name]: [
            HardCard(
                shown.get(each.image_hash or "", ImageCard()),
                each.caption,
                f"{each.request}, row {each.row}",
                each.value,
            )
            for each in own
        ]
        for name, own in measured.hardest.items()
        if own
    }
    more = [each for each in report["word_shifts"] if each["share"] > each["training"]]
    less = [each for each in report["word_shifts"] if each["share"] < each["training"]]
    context = {
        "title": f"Requests of {report['model']} version {report['version']}",
        "facts": {**facts, "window": f"{report['since']} to {report['until']}"},
        "report": report,
        "labels": _LABELS,
        "permutations": PERMUTATIONS,
        "sentence": sentence(report),
        "plot": draw(measured, folder / PLOT),
        "shifts": {"more often": more[:_SHOWN], "less often": less[:_SHOWN]},
        "new_words": report["new_words"][:_SHOWN],
        "cards": cards,
        "logged": len(files.keys() & set(measured.worth)),
        "worth": len(measured.worth),
        "images": images,
        "table": TABLE,
        "lines": lines,
    }
    pages.write(folder / PAGE, PAGE, context)


def sentence(report: Mapping[str, Any]) -> str:
    """One sentence on whether the requests drifted from the reference sample, and in what."""
    tested = [each for each in report["figures"] if each["p"] is not None]
    if not tested:
        return "Nothing could be compared: there are too few images and texts."
    if not report["alarm"]:
        return f"No drift: none of {len(tested)} figures differs from the reference sample."
    named = ", ".join(_LABELS[name] for name in report["drifted"])
    return f"Drift from the reference sample: {named}."


def show(report: Mapping[str, Any], console: Console | None = None) -> None:
    """Print a monitoring report: the drift of each quantity, and the shares out of distribution."""
    table = plain_table("p for all figures together; apart: 50% is no drift")
    for name in ("figure", "requests", "reference", "mean", "of the reference", "apart", "p"):
        table.add_column(name, justify="left" if name == "figure" else "right")
    for each in report["figures"]:
        means = each["means"] or (None, None)
        table.add_row(
            _LABELS[each["name"]],
            *(f"{each[name]:,}" for name in ("requests", "reference")),
            *("-" if mean is None else f"{mean:.3f}" for mean in means),
            "-" if each["apart"] is None else f"{100 * each['apart']:.0f}%",
            "-" if each["adjusted"] is None else f"{each['adjusted']:.3f}",
        )
    shown = terminal(console)
    shown.print(table)
    for one in report["outside"]:
        low, high = one["interval"]
        shown.print(
            f"{one['kind']} out of distribution: {one['share']:.1f}% [{low:.1f}, {high:.1f}], "
            f"expected {one['expected']:.1f}%",
            highlight=False,
        )
    shown.print(sentence(report), highlight=False)


def draw(measured: Measured, path: Path) -> str:
    """Plot histograms of requests and reference sample; returns SVG, empty if nothing is drawn.

    Args:
        measured: with the values.
        path: of the PNG file.
    """
    compared = measured.compared
    panels: list[tuple[str, NDArray[Any], NDArray[Any]]] = []
    for each in measured.figures:
        if each.p is not None and each.name not in EMBEDDINGS:
            values = compared.values[each.name]
            there = ~np.isnan(values)
            if np.ptp(values[there]) > 0:
                window, reference = (
                    values[there & side] for side in (compared.inside, ~compared.inside)
                )
                panels.append((_LABELS[each.name], window, reference))
    if not panels:
        return ""
    rows = -(-len(panels) // _COLUMNS)
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(6.4, 1.7 * rows), layout="constrained")
        axes = figure.subplots(rows, _COLUMNS, squeeze=False).ravel()
        for ax, (label, window, reference) in zip(axes, panels, strict=False):
            low, high = np.quantile(np.concatenate([window, reference]), (0.001, 0.999))
            edges = np.linspace(low, high, _BINS + 1)
            for values, colour, name in (
                (reference, THEME["base"], "reference"),
                (window, THEME["ours"], "requests"),
            ):
                weights = np.full(len(values), 100 / len(values))
                ax.hist(
                    np.clip(values, low, high), edges, weights=weights, histtype="step", lw=1.4,
                    color=colour, label=name,
                )  # fmt: skip
            ax.set_title(label)
            ax.set_ylabel("per cent")
        for ax in axes[len(panels) :]:
            ax.set_visible(False)
        axes[0].legend(loc="upper left", fontsize=7)
        return save(figure, path)
