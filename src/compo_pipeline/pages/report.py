"""Report of a run: one page with its plots."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

import pandas as pd
import yaml

from compo_pipeline.core.provenance import Site
from compo_pipeline.evaluation.comparison import CONTROL, FINE_TUNED, Row
from compo_pipeline.evaluation.conclusions import MAIN_METRICS, TEXT_ONLY, summary_sentence
from compo_pipeline.evaluation.diagnosis.diagnose import Diagnosis
from compo_pipeline.evaluation.evaluate import Comparison
from compo_pipeline.evaluation.published import aggregate_rows, published_results
from compo_pipeline.pages import pages, plots, tables
from compo_pipeline.pages.diagnosis_page import diagnosis_sections

PAGE = "report.html"
_TESTS = (
    "p: exact McNemar test against the base for a single subtask, t test over images for an "
    "average; Holm: corrected for all metrics of the table. Gained and lost: items that only the "
    "fine-tuned model, or only the base, has right."
)
_COLUMNS = ("skipped", "chance", "gained", "lost", "p", "Holm", tables.DETECTABLE)
_SLICES = (
    "The same metrics within parts of the items (`evaluation.slices`): of an item's first right "
    "text, its attributes, objects, relations and length; for `binding`, whether the "
    "attribute-object pairs that only its right texts or only its wrong texts have occur in the "
    "training captions."
)
_AUDITS = (
    "Skipped items have no usable image and count as neither right nor wrong. Degenerate items "
    "have a true and a false text that are the same to the model (in retrieval: a caption that two "
    "images share), and are scored as wrong. Truncated texts were longer than the model's context."
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


def files(
    comparison: Comparison,
    cards: Iterable[pages.Cards],
    curves: pd.DataFrame,
    foils: Sequence[pages.Section],
    diagnosis: Diagnosis,
    settings: Mapping[str, object],
    facts: Mapping[str, str],
    links: Sequence[pages.Link],
    site: Site,
) -> dict[str, str | bytes]:
    """The page of a run, and its plots.

    Args:
        comparison: comparison of the run's models.
        cards: sections of items that are shown.
        curves: curves of the training, with a `step` column.
        foils: the part about foils of own captions.
        diagnosis: diagnosis of the fine-tuned model.
        settings: settings of the training.
        facts: about the run, label to text.
        links: related pages.
        site: places of the pages, and the command of the run.
    """
    rows, labels, named = comparison.rows, comparison.labels, comparison.benchmarks
    heads = [f"vs {role}" for role in labels if role != FINE_TUNED]
    coco, deviating = comparison.dataset == "coco", comparison.deviating
    sections: list[pages.Section] = [
        pages.Cards([_key_card(row) for row in _key_rows(rows)], small=True),
        tables.headline_table(comparison, [tables.DETECTABLE]),
        tables.aggregates_table(aggregate_rows(comparison), [*labels.values()]),
        *foils,
        *diagnosis_sections(diagnosis, "Diagnosis", site.command, {}),
        *plots.subtasks(rows, labels),
        tables.metrics_table(
            *(rows, labels, heads, _COLUMNS),
            title="All metrics, with tests",
            note=_TESTS,
            folded=True,
        ),
        tables.metrics_table(
            *(comparison.slices, labels, heads, ["Holm"]),
            title="Slices of the items",
            note=_SLICES,
            folded=True,
        ),
        *cards,
        *tables.published_tables(published_results(rows, coco=coco, deviating=deviating), labels),
        *plots.curves(curves),
        *_data_sections(comparison),
    ]
    if settings:
        code = yaml.safe_dump(dict(settings), sort_keys=False)
        note = "The settings of the training, from the checkpoint."
        sections.append(pages.Text(title="Recipe", note=note, code=code, folded=True))
    known = {"", *(row.benchmark for row in rows), *comparison.models}
    tally = Counter(row.difference.significance for row in rows)
    counts = (
        f"Of all {len(rows)} metrics, {tally['above']} are above the base, {tally['below']} below "
        f"it, and {tally['level']} show no significant difference."
    )
    reading = [each.format(named.get(name)) for name, each in _READING.items() if name in known]
    page = pages.Page(
        f"{labels[FINE_TUNED]} on {comparison.dataset}",
        "Compositional fine-tuning of CLIP-like models",
        [*sections, pages.List(reading, title="How to read this")],
        [f"{summary_sentence(rows)}.", *comparison.conclusions, counts],
        facts,
        links,
        site.run("NAME"),
    )
    return page.files(PAGE)


def _key_rows(rows: Sequence[Row]) -> list[Row]:
    """Rows of the main metrics for the top of the report, at most four."""
    found = {row.key: row for row in rows}
    keys = [found[key] for key in (*MAIN_METRICS, TEXT_ONLY) if key in found]
    return (keys + [row for row in rows if row.metric == "i2t_r1"])[:4]


def _key_card(row: Row) -> pages.Card:
    """A main metric as a large number, with its differences from the other models."""
    lines = [
        (f"{one.against} {row.values[one.against].value:.1f}", tables.difference_cell(one))
        for one in row.differences
    ]
    figure = pages.Side(text=f"{row.estimate.value:.1f}", kind="figure")
    return pages.Card([row.label], [figure], pages.Table(("against", "points"), lines))


def _data_sections(comparison: Comparison) -> Iterator[pages.Section]:
    """What the metrics rest on: benchmark items, and their overlap with the training rows."""
    labels, audits = comparison.benchmarks, comparison.audits
    names = [f"{labels[each.benchmark]} {each.subtask.replace('_', ' ')}" for each in audits]
    yield pages.Table(
        ("subtask", "items", "skipped", "why", "degenerate", "texts", "truncated"),
        [
            (
                *(name, each.items, each.skipped, ", ".join(each.reasons).replace("_", " ")),
                *(each.degenerate, each.texts, each.truncated),
            )
            for name, each in zip(names, audits, strict=True)
        ],
        title="Benchmark items",
        note=_AUDITS,
    )
    yield pages.List([f"{line}." for line in comparison.left_out])
    yield tables.overlaps_table(comparison.overlaps, labels)
