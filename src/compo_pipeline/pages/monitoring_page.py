"""Page of monitoring: drift, requests out of distribution, words, the hardest requests."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from compo_pipeline.data.images.decoding import Limits
from compo_pipeline.pages.pages import (
    Card,
    Cards,
    Cell,
    Page,
    Section,
    Side,
    Table,
    Text,
    counted,
    image_card,
    interval,
    p_value,
)
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
_LISTED = 25  # words of a table


def monitoring_page(
    report: Mapping[str, Any], measured: Measured, images: Path, facts: Mapping[str, str]
) -> Page:
    """The page of a monitoring report.

    Args:
        report: report that `serving.monitoring.report.summary` returns.
        measured: measurements, for the hardest requests.
        images: folder of the logged images, by hash.
        facts: about the run.
    """
    counts = (
        f"{report['requests']:,} requests of {report['clusters']:,} images (or texts without one); "
        f"the most frequent one has {report['largest_cluster']['requests']:,}. The reference has "
        f"{report['reference']:,} rows."
    )
    if report["left_out"]:
        counts += f" Left out: {counted(report['left_out'])}."
    words = (
        f"Texts of {report['texts_logged']:,} images against the words of the training captions. "
        "p is by image, adjusted for all words (Holm); it raises no alarm."
    )
    if not report["texts_logged"]:
        words = "The log has no texts to compare: `serving.log.content: [texts]` logs them."
    sections: list[Section] = [
        _drift_table(report),
        Table(
            ("what", "distance above", "images", "outside", "of the reference"),
            [
                (
                    *(one["kind"], f"{one['threshold']:.3f}", one["images"]),
                    Cell(
                        one["share"],
                        "bad" if one["interval"][0] > one["expected"] else "level",
                        interval(*one["interval"]),
                    ),
                    one["expected"],
                )
                for one in report["outside"]
            ],
            title=SHOWN[1],
            note="Per cent that is farther from the reference (its tenth neighbour) than nearly "
            "all of its own held-out rows; 95% intervals, by image.",
        ),
        Text(title="Words", note=words),
        Table.of(
            ((one, p_value(one["p"])) for one in report["word_shifts"][:_LISTED]),
            "more or less frequent | images | per cent of words | in training | p",
            "{0[word]} | {0[texts]:,} | {0[share]:.2f} | {0[training]:.2f} | {1}",
        ),
        Table.of(
            zip(report["new_words"][:_LISTED]),
            "never in training | images | example",
            "{0[word]} | {0[texts]:,} | {0[example]}",
            words=["example"],
        ),
    ]
    for name, own in measured.hardest.items():
        cards = []
        for each in own:
            logged = each.image_hash is not None and (images / each.image_hash).exists()
            image = image_card(images, str(each.image_hash), Limits()) if logged else None
            head = f"{each.request}, row {each.row}", f"{each.value:.3f}"
            cards.append(Card(head, [Side("", image, each.caption or "")]))
        title = f"Hardest requests: {len(own)} of the {LISTS[name]}"
        note = "" if any(images.iterdir()) else "`serving.log.content: [images]` logs images too."
        sections.append(Cards(cards, small=True, title=title, note=note))
    return Page(
        f"Requests of {report['model']} version {report['version']}",
        "A served model's requests against the reference sample of its version",
        sections,
        [_sentence(report), counts],
        {**facts, "window": f"{report['since']} to {report['until']}"},
        alarm=report["alarm"],
    )


def _drift_table(report: Mapping[str, Any]) -> Table:
    """Each figure of requests and reference sample, with the p value of their difference."""
    rows = []
    for one in report["figures"]:
        means = ["–"] * 3
        if one["means"]:
            (mean, reference), (low, high) = one["means"], one["interval"]
            difference = f"{mean - reference:+.3f} {interval(low, high, '+.3f')}"
            means = [f"{mean:.3f}", f"{reference:.3f}", difference]
        tested = "too few" if one["p"] is None else p_value(one["adjusted"])
        style = "bad" if one["name"] in report["drifted"] else "level"
        sizes = one["requests"], one["reference"]
        rows.append([_LABELS[one["name"]], *sizes, *means, Cell(tested, style)])
    return Table(
        ("figure", "requests", "reference", "mean", "of the reference", "difference", "p"),
        rows,
        title=SHOWN[0],
        note="Each image counts once. p is adjusted for all figures together: where nothing "
        f"drifts, one report in {1 / report['alpha']:.0f} raises an alarm.",
    )


def _sentence(report: Mapping[str, Any]) -> str:
    """One sentence on whether, and in which figures, the requests drifted from the reference."""
    tested = [each for each in report["figures"] if each["p"] is not None]
    if not tested:
        return "Nothing could be compared: there are too few images and texts."
    if not report["alarm"]:
        return f"No drift: none of {len(tested)} figures differs from the reference sample."
    named = ", ".join(_LABELS[name] for name in report["drifted"])
    return f"Drift from the reference sample: {named}."
