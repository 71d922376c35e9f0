"""Page of monitoring: what drifted, requests out of distribution, words, the hardest requests."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure
from rich.console import Console

from compo_pipeline.images.decoding import Limits
from compo_pipeline.monitoring.distances import LISTS
from compo_pipeline.monitoring.drift import EMBEDDINGS
from compo_pipeline.monitoring.report import Measured
from compo_pipeline.presentation import pages
from compo_pipeline.presentation.plots import STYLE, THEME, save
from compo_pipeline.presentation.tables import print_table
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


def files(
    report: Mapping[str, Any],
    measured: Measured,
    images: Path,
    facts: Mapping[str, str],
) -> dict[str, str | bytes]:
    """The page of a monitoring report, and its plot.

    Args:
        report: of `monitoring.report.summary`.
        measured: what was measured, for the plot.
        images: folder of the logged images, by hash.
        facts: about the run.
    """
    largest = report["largest_cluster"]["requests"]
    counts = (
        f"{report['requests']:,} requests of {report['clusters']:,} images (or texts without one); "
        f"the most frequent one has {largest:,}. The reference has {report['reference']:,} rows."
    )
    left_out = pages.counted(report["left_out"])
    return pages.Page(
        f"Requests of {report['model']} version {report['version']}",
        "A served model's requests against the reference sample of its version",
        [
            _drift_table(report),
            *draw(measured),
            _outside_table(report),
            *_word_sections(report),
            *_hardest_requests(measured, images),
            pages.Text(f"{left_out}." if left_out else "Nothing.", title="Left out"),
        ],
        [sentence(report), counts],
        {**facts, "window": f"{report['since']} to {report['until']}"},
        alarm=report["alarm"],
    ).files(PAGE)


def _drift_table(report: Mapping[str, Any]) -> pages.Table:
    """Each figure of requests and reference sample, with the p value of their difference."""
    rows: list[list[pages.CellLike]] = []
    for one in report["figures"]:
        means, tested = ["–"] * 3, ["–", "too few"]
        if one["means"]:
            mean, reference = one["means"]
            low, high = one["interval"]
            means = [f"{mean:.3f}", f"{reference:.3f}"]
            means.append(f"{mean - reference:+.3f} [{low:+.3f}, {high:+.3f}]")
        if one["p"] is not None:
            tested = [f"{100 * one['apart']:.0f}%", pages.p_value(one["adjusted"])]
        style = "bad" if one["name"] in report["drifted"] else "level"
        sizes = (one["requests"], one["reference"])
        rows.append([_LABELS[one["name"]], *sizes, *means, tested[0], pages.Cell(tested[1], style)])
    return pages.Table(
        ("figure", "requests", "reference", "mean", "of the reference", "difference", "apart", "p"),
        rows,
        title="Drift",
        note="Each image counts once. p is adjusted for all figures together: where nothing "
        f"drifts, one report in {1 / report['alpha']:.0f} raises an alarm. Apart: how often a "
        "request lies on the requests' side of a row of the reference, 50% without drift.",
    )


def _outside_table(report: Mapping[str, Any]) -> pages.Table:
    """Shares of images and requests that are out of the training distribution."""

    def share(one: Mapping[str, Any], name: str, style: str = "") -> pages.Cell:
        low, high = one[f"{name}interval"]
        return pages.Cell(one[f"{name}share"], style, f"[{low:.1f}, {high:.1f}]")

    return pages.Table(
        ("what", "distance above", "images", "outside", "requests", "outside", "of the reference"),
        [
            (
                one["kind"],
                f"{one['threshold']:.3f}",
                one["images"],
                share(one, "", "bad" if one["interval"][0] > one["expected"] else "level"),
                one["requests"],
                share(one, "requests_"),
                one["expected"],
            )
            for one in report["outside"]
        ],
        title="Out of the training distribution",
        note="Per cent that is farther from the reference (`monitoring.neighbours`) than nearly "
        "all of its own held-out rows; 95% intervals, by image.",
    )


def _word_sections(report: Mapping[str, Any]) -> Iterator[pages.Table | pages.Text]:
    """Words that are more or less frequent than in training, and words that are new."""
    if not report["texts_logged"]:
        yield pages.Text(
            "Words were not compared, and no text is shown: the log has none. "
            "`serving.log.content: [texts]` logs them.",
            title="Words",
        )
        return
    yield pages.Text(
        title="Words",
        note=f"Texts of {report['texts_logged']:,} images against the words of the training "
        "captions. p is by image, adjusted for all words (Holm); it raises no alarm.",
    )
    for name, sign in (("more", 1), ("less", -1)):
        own = [one for one in report["word_shifts"] if sign * (one["share"] - one["training"]) > 0]
        if own:
            yield pages.Table(
                (f"said {name} often", "images", "per cent of words", "in training", "p"),
                [
                    (
                        one["word"],
                        one["texts"],
                        *(f"{one[key]:.2f}" for key in ("share", "training")),
                        pages.p_value(one["p"]),
                    )
                    for one in own[:_SHOWN]
                ],
            )
    if report["new_words"]:
        yield pages.Table(
            ("never in training", "kind", "images", "example"),
            [
                (one["word"], one["part"], one["texts"], one["example"])
                for one in report["new_words"][:_SHOWN]
            ],
            ["kind", "example"],
        )
    else:
        yield pages.Text("Every word of these texts is in the training captions.")


def _hardest_requests(measured: Measured, images: Path) -> Iterator[pages.Cards | pages.Text]:
    """Lists of the hardest requests, with their images where the log has them."""
    if not any(images.iterdir()):
        yield pages.Text("The log has no images: `serving.log.content: [images]` logs them.")

    def shown(name: str | None) -> pages.ImageCard | None:
        there = name is not None and (images / name).exists()
        return pages.image_card(images, str(name), Limits()) if there else None

    for name, own in measured.hardest.items():
        cards = [
            pages.Card(
                [f"{each.request}, row {each.row}", f"{each.value:.3f}"],
                [pages.Side("", shown(each.image_hash), each.caption or "")],
            )
            for each in own
        ]
        if cards:
            title = f"Hardest requests: {len(own)} of the {LISTS[name]}"
            yield pages.Cards(cards, small=True, title=title)


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
    console = terminal(console)
    for table in (_drift_table(report), _outside_table(report)):
        print_table(table, console)
    console.print(sentence(report), highlight=False)


def draw(measured: Measured) -> list[pages.Plot]:
    """Histograms of requests and reference sample; none if no number was compared."""
    compared = measured.compared
    named = [one.name for one in measured.figures if one.p is not None]
    panels = [
        name for name in named if name not in EMBEDDINGS and np.nanstd(compared.values[name]) > 0
    ]
    if not panels:
        return []
    rows = -(-len(panels) // _COLUMNS)
    sides = (
        ("reference", THEME["base"], ~compared.inside),
        ("requests", THEME["ours"], compared.inside),
    )
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(6.4, 1.7 * rows), layout="constrained")
        axes = figure.subplots(rows, _COLUMNS, squeeze=False).ravel()
        for ax, name in zip(axes, panels, strict=False):
            values = compared.values[name]
            low, high = np.nanquantile(values, (0.001, 0.999))
            edges = np.linspace(low, high, _BINS + 1)
            for label, colour, side in sides:
                shown = values[side & ~np.isnan(values)].clip(low, high)
                weights = np.full(len(shown), 100 / len(shown))
                style: dict[str, Any] = {"histtype": "step", "lw": 1.4, "color": colour}
                ax.hist(shown, edges, weights=weights, label=label, **style)
            ax.set_title(_LABELS[name])
            ax.set_ylabel("per cent")
        for ax in axes[len(panels) :]:
            ax.set_visible(False)
        axes[0].legend(loc="upper left", fontsize=7)
        return [save(figure, PLOT, "Requests and reference sample")]
