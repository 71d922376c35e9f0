"""Page of monitoring: drift, requests out of distribution, words, the hardest requests."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from compo_pipeline.data.images.decoding import Limits
from compo_pipeline.pages import pages
from compo_pipeline.serving.monitoring.distances import LISTS
from compo_pipeline.serving.monitoring.report import Measured

PAGE = "monitoring.html"
SHOWN = "Drift", "Out of the training distribution"
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


def monitoring_page(
    report: Mapping[str, Any], measured: Measured, images: Path, facts: Mapping[str, str]
) -> pages.Page:
    """The page of a monitoring report.

    Args:
        report: report that `serving.monitoring.report.summary` returns.
        measured: measurements, for the hardest requests.
        images: folder of the logged images, by hash.
        facts: about the run.
    """
    largest = report["largest_cluster"]["requests"]
    counts = (
        f"{report['requests']:,} requests of {report['clusters']:,} images (or texts without one); "
        f"the most frequent one has {largest:,}. The reference has {report['reference']:,} rows."
    )
    if report["left_out"]:
        counts += f" Left out: {pages.counted(report['left_out'])}."
    return pages.Page(
        f"Requests of {report['model']} version {report['version']}",
        "A served model's requests against the reference sample of its version",
        [
            drift_table(report),
            _outside_table(report),
            *_word_sections(report),
            *_hardest_requests(measured, images),
        ],
        [sentence(report), counts],
        {**facts, "window": f"{report['since']} to {report['until']}"},
        alarm=report["alarm"],
    )


def drift_table(report: Mapping[str, Any]) -> pages.Table:
    """Each figure of requests and reference sample, with the p value of their difference."""
    rows: list[list[pages.CellLike]] = []
    for one in report["figures"]:
        means, tested = ["–"] * 3, ["–", "too few"]
        if one["means"]:
            mean, reference = one["means"]
            low, high = one["interval"]
            means = [f"{mean:.3f}", f"{reference:.3f}"]
            means.append(f"{mean - reference:+.3f} {pages.interval(low, high, '+.3f')}")
        if one["p"] is not None:
            tested = [f"{100 * one['apart']:.0f}%", pages.p_value(one["adjusted"])]
        style = "bad" if one["name"] in report["drifted"] else "level"
        sizes = (one["requests"], one["reference"])
        rows.append([_LABELS[one["name"]], *sizes, *means, tested[0], pages.Cell(tested[1], style)])
    return pages.Table(
        ("figure", "requests", "reference", "mean", "of the reference", "difference", "apart", "p"),
        rows,
        title=SHOWN[0],
        note="Each image counts once. p is adjusted for all figures together: where nothing "
        f"drifts, one report in {1 / report['alpha']:.0f} raises an alarm. Apart: how often a "
        "request lies on the requests' side of a row of the reference, 50% without drift.",
    )


def _outside_table(report: Mapping[str, Any]) -> pages.Table:
    """Shares of images and requests that are out of the training distribution."""

    def share(one: Mapping[str, Any], name: str, style: str = "") -> pages.Cell:
        return pages.Cell(one[f"{name}share"], style, pages.interval(*one[f"{name}interval"]))

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
        title=SHOWN[1],
        note="Per cent that is farther from the reference (its tenth neighbour) than nearly "
        "all of its own held-out rows; 95% intervals, by image.",
    )


def _word_sections(report: Mapping[str, Any]) -> Iterator[pages.Section]:
    """Words that are more or less frequent than in training, and words that are new."""
    note = (
        f"Texts of {report['texts_logged']:,} images against the words of the training captions. "
        "p is by image, adjusted for all words (Holm); it raises no alarm."
    )
    if not report["texts_logged"]:
        note = "The log has no texts to compare: `serving.log.content: [texts]` logs them."
    yield pages.Text(title="Words", note=note)
    yield pages.Table(
        ("more or less frequent", "images", "per cent of words", "in training", "p"),
        [
            (
                *(one["word"], one["texts"], f"{one['share']:.2f}", f"{one['training']:.2f}"),
                pages.p_value(one["p"]),
            )
            for one in report["word_shifts"][:_SHOWN]
        ],
    )
    yield pages.Table(
        ("never in training", "images", "example"),
        [(one["word"], one["texts"], one["example"]) for one in report["new_words"][:_SHOWN]],
        ["example"],
    )


def _hardest_requests(measured: Measured, images: Path) -> Iterator[pages.Cards]:
    """Lists of the hardest requests, with their images where the log has them."""

    def shown(name: str | None) -> pages.ImageCard | None:
        there = name is not None and (images / name).exists()
        return pages.image_card(images, str(name), Limits()) if there else None

    note = "The log has no images: `serving.log.content: [images]` logs them."
    note *= not any(images.iterdir())
    for name, own in measured.hardest.items():
        yield pages.Cards(
            [
                pages.Card(
                    [f"{each.request}, row {each.row}", f"{each.value:.3f}"],
                    [pages.Side("", shown(each.image_hash), each.caption or "")],
                )
                for each in own
            ],
            small=True,
            title=f"Hardest requests: {len(own)} of the {LISTS[name]}",
            note=note,
        )


def sentence(report: Mapping[str, Any]) -> str:
    """One sentence on whether, and in which figures, the requests drifted from the reference."""
    tested = [each for each in report["figures"] if each["p"] is not None]
    if not tested:
        return "Nothing could be compared: there are too few images and texts."
    if not report["alarm"]:
        return f"No drift: none of {len(tested)} figures differs from the reference sample."
    named = ", ".join(_LABELS[name] for name in report["drifted"])
    return f"Drift from the reference sample: {named}."
