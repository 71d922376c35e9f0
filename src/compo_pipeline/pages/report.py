"""Pages that compare models on the benchmarks: the report of a run, and models side by side."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import pandas as pd
import yaml

from compo_pipeline.benchmarks.registry import BENCHMARKS
from compo_pipeline.core.provenance import Site
from compo_pipeline.evaluation.availability import BenchmarkAvailability
from compo_pipeline.evaluation.comparison import CONTROL, FINE_TUNED
from compo_pipeline.evaluation.conclusions import summary_sentence
from compo_pipeline.evaluation.evaluate import Comparison
from compo_pipeline.evaluation.published import published_results
from compo_pipeline.evaluation.roles import ROLE_LABELS
from compo_pipeline.evaluation.suite import reference_rows
from compo_pipeline.pages import plots, tables
from compo_pipeline.pages.pages import Cards, Link, List, Page, Section, Table, Text

PAGE, SUITE, MARKDOWN = "report.html", "benchmark.html", "benchmark.md"
FRONTIER = "frontier.png"
HEADLINES, LEFT_OUT = "Headline metrics", "What was measured"
_TESTS = (
    "p: exact McNemar test against the base for a single subtask, t test over images for an "
    "average; Holm: corrected for all metrics of the table. Gained and lost: items that only the "
    "fine-tuned model, or only the base, has right."
)
_SLICES = (
    "The same metrics within parts of the items (`evaluation.slices`): of an item's first right "
    "text, its attributes, objects, relations and length; for `binding`, whether the "
    "attribute-object pairs that only its right texts or only its wrong texts have occur in the "
    "training captions."
)
_SKIPPED = (
    "Items without a usable image count as neither right nor wrong. Degenerate items have a true "
    "and a false text that are the same to the model (in retrieval: a caption that two images "
    "share), and are scored as wrong. Truncated texts were longer than the model's context."
)
_DIFFERENCES = (
    "Points, paired on the same items, with 95% intervals; coloured where significant at 5% after "
    "Holm's correction over all comparisons of this page."
)
_READING = {
    "sugar_crepe": "{}: of a true and a false caption, the image must be closer to the true one.",
    "sugar_crepe_pp": "{}: in ITT, the image must be closer to both of two true captions than to "
    "the false one; in TOT, by text alone, the two true captions must be closer to each other than "
    "either is to the false one.",
    "retrieval": "Retrieval R@k: right if any of a query's matches is among the first k.",
    "zero_shot": "Zero-shot: the class whose prompts, averaged, are closest to the image.",
    "": "A right answer must be strictly above a wrong one; a tie is wrong. Averages are means "
    "over subtasks, each weighted equally, as in the papers. 95% intervals have images as their "
    "unit: they cover other images for this model, not other training seeds.",
    CONTROL: "Control: plain contrastive fine-tuning of the same base (CLIP's loss; SigLIP's for "
    "methods with a pairwise loss), on the same rows and for as many steps.",
}


def run_page(
    comparison: Comparison,
    cards: Iterable[Cards],
    curves: pd.DataFrame,
    diagnosis: Sequence[Section],
    measured: Sequence[str],
    settings: Mapping[str, object],
    facts: Mapping[str, str],
    links: Sequence[Link],
    site: Site,
) -> Page:
    """The report of a run.

    Args:
        comparison: comparison of the run's models.
        cards: sections of items that are shown.
        curves: curves of the training, with a `step` column.
        diagnosis: the part about foils of own captions.
        measured: lines on the measured roles.
        settings: settings of the training.
        facts: about the run, label to text.
        links: related pages.
        site: the command of the run.
    """
    rows, labels, named = comparison.rows, comparison.labels, comparison.benchmarks
    heads = [f"{labels[FINE_TUNED]} - {role}" for role in labels if role != FINE_TUNED]
    published = published_results(
        rows, coco=comparison.dataset == "coco", deviating=comparison.deviating
    )
    tests = "skipped", "chance", "gained", "lost", "p", "Holm", tables.DETECTABLE
    known = {"", *(row.benchmark for row in rows), *comparison.models}
    tally = Counter(row.difference.significance for row in rows)
    counts = (
        f"Of all {len(rows)} metrics, {tally['above']} are above the base, {tally['below']} below "
        f"it, and {tally['level']} show no significant difference."
    )
    sections: list[Section] = [
        tables.headline_table(comparison, HEADLINES),
        tables.aggregates_table(comparison),
        *diagnosis,
        *plots.subtasks(rows, labels),
        tables.metrics_table(
            rows, labels, heads, tests, title="All metrics, with tests", note=_TESTS, folded=True
        ),
        tables.metrics_table(
            *(comparison.slices, labels, heads, ["Holm"]),
            title="Slices of the items",
            note=_SLICES,
            folded=True,
        ),
        *cards,
        *tables.published_tables(published, labels),
        *plots.curves(curves),
        List(
            [*measured, *(f"{line}." for line in comparison.left_out)],
            title=LEFT_OUT,
            note=_SKIPPED,
        ),
        tables.overlaps_table(comparison.overlaps, named),
        Text(
            code=yaml.safe_dump(dict(settings), sort_keys=False),
            title="Recipe",
            note="The settings of the training, from the checkpoint.",
            folded=True,
        ),
        List(
            [text.format(named.get(name)) for name, text in _READING.items() if name in known],
            title="How to read this",
        ),
    ]
    return Page(
        f"{labels[FINE_TUNED]} on {comparison.dataset}",
        "Compositional fine-tuning of CLIP-like models",
        sections,
        [f"{summary_sentence(rows)}.", *comparison.conclusions, counts],
        facts,
        links,
        site.run("NAME"),
    )


def suite_page(
    suite: Comparison, title: str, facts: Mapping[str, str], cards: Sequence[Cards] = ()
) -> Page:
    """The page of several models' scores, and its plot.

    Args:
        suite: the scored models.
        title: title of the page.
        facts: about the run.
        cards: sections of items on which models differ from the first one.
    """
    first, *others = suite.models
    labels = {name: name for name in suite.models}
    further = ["chance", tables.DETECTABLE] if others else ["chance"]
    sections: list[Section] = [
        tables.metrics_table(
            suite.headlines, labels, (), further, title=HEADLINES, note=tables.PER_CENT
        ),
        tables.aggregates_table(suite),
        *plots.scatter(
            _role_means(suite),
            FRONTIER,
            title="Composition against what it may cost",
            note="Means of the headline metrics of each kind. The square is the baseline.",
        ),
        tables.metrics_table(
            suite.headlines if others else (),
            {},
            others,
            title=f"Differences from {first}",
            note=_DIFFERENCES,
        ),
        tables.metrics_table(suite.rows, labels, (), ["skipped"], title="All metrics", folded=True),
        *tables.published_tables(reference_rows(suite), labels),
        *cards,
        Table.of(
            suite.models.items(),
            "model | weights | fingerprint",
            "{0} | {1.weights} | {1.fingerprint:.16}",
            words=["weights"],
            title="Models",
        ),
        List([f"{one}." for one in suite.left_out], title=LEFT_OUT, note=_SKIPPED),
    ]
    count = f"{len(suite.models)} models, the first is the baseline" if others else "one model"
    return Page(title, f"Benchmarks: {count}", sections, facts=facts)


def _role_means(suite: Comparison) -> pd.DataFrame:
    """Means of the headline metrics: a row per model, a column per role that all have."""
    values = [
        (name, ROLE_LABELS[BENCHMARKS[row.benchmark].role], estimate.value)
        for row in suite.headlines
        for name, estimate in row.values.items()
    ]
    means = pd.DataFrame(values, columns=["model", "role", "value"]).pivot_table(
        "value", "model", "role", sort=False
    )
    return means.reindex(columns=[*ROLE_LABELS.values()]).dropna(axis="columns")


def show_available(benchmarks: Sequence[BenchmarkAvailability]) -> None:
    """Print which benchmarks are present, with their numbers of items, and which are missing."""
    table = Table.of(
        zip(benchmarks),
        "name | benchmark | subtasks | items | images | missing images | state",
        "{0.benchmark.name} | {0.benchmark.label} | {0.subtasks:,} | {0.items:,} | {0.images:,} | "
        "{0.missing_images:,} | {0.state}",
        words=["benchmark", "state"],
    )
    lines = []
    for one in benchmarks:
        if one.lines:
            place = f" in {one.folder}" if one.folder else ""
            lines += [f"{one.benchmark.name}{place}:", *(f"  {line}" for line in one.lines)]
    tables.show(Page("", "", [table, List(lines)]))
