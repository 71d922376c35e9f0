"""Pages that compare models: the report of a run, models side by side, and diagnoses."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby, zip_longest
from operator import attrgetter
from types import MappingProxyType
from typing import Any

import pandas as pd
import yaml

from compo_pipeline.benchmarks.items import Item, Subtask
from compo_pipeline.benchmarks.loading import BenchmarkAvailability
from compo_pipeline.benchmarks.settings import BENCHMARKS
from compo_pipeline.core.provenance import CommandOptions, Site
from compo_pipeline.core.records import ItemChange
from compo_pipeline.core.seeding import rng
from compo_pipeline.evaluation.comparison import CONTROL, FINE_TUNED
from compo_pipeline.evaluation.conclusions import summary_sentence
from compo_pipeline.evaluation.diagnosis.diagnose import RULE, Diagnosis
from compo_pipeline.evaluation.evaluate import Comparison
from compo_pipeline.evaluation.protocols import GROUP_CHANCES
from compo_pipeline.evaluation.roles import ROLE_LABELS
from compo_pipeline.evaluation.suite import published_results, reference_rows
from compo_pipeline.generation.foils.build import STATES, USED
from compo_pipeline.generation.foils.review import Noise
from compo_pipeline.pages import plots, tables
from compo_pipeline.pages.pages import (
    Card,
    Cards,
    Cell,
    CellLike,
    Link,
    List,
    Page,
    Section,
    Side,
    Table,
    Text,
    image_card,
    interval,
)
from compo_pipeline.training.bases import BaseModel
from compo_pipeline.tuning.ledger import LedgerEntry, count_others

PAGE, SUITE, MARKDOWN = "report.html", "benchmark.html", "benchmark.md"
DIAGNOSIS = "diagnosis.html"
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
# Where an item is scored by several metrics, its card is of the first of these.
_SHOWN = ("itt", "accuracy", "group", "t2i", "tot", "i2t_r1", "t2i_r1", "top1")
_SAMPLE = (
    "A random sample, spread over the subtasks. The numbers are cosines of image and text under "
    "each model; an item is right if every true text (green) is above every false one (red)."
)
_LEDGER = (
    "Per cent. Differences are measured minus published. GPU hours are those that the paper states "
    "for the training. A run counts if its command has the recipe's options and no others that "
    "change weights or scores, and a value if it is of all items of the official files."
)
_SECTION = attrgetter("model", "change", "baseline")
_SUBTASK = attrgetter("benchmark", "subtask")
_NONE: Mapping[str, Any] = MappingProxyType({})
_ACCURACY = (
    "Accuracy in per cent on foils of held-out captions, each of which differs from its caption in "
    "one expression and is false of the image, with 95% intervals; corrected is the share of the "
    "base's errors that the model has right, net of new ones. Asked is the share of the training "
    "captions with a hard negative that changes them so; of {} captions {} negatives were read."
)
_TEXT = (
    " By text alone: the accuracy of a classifier that sees no image and has learnt from foils of "
    "training captions, with its upper 95% limit."
)
_REVIEW = (
    " Noise: the share of false items of a kind, with its exact 95% interval, undecided ones "
    "counted as right below and as false above. Of {} items, drawn at random and reviewed by a "
    "person, {} are false and {} undecided: between {} of all."
)


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
    heads = tables.run_heads(labels)
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
        suite: the scored models, of one base or of several.
        title: title of the page.
        facts: about the run.
        cards: sections of items on which models differ from the first one.
    """
    labels, against = {name: name for name in suite.models}, suite.against
    bases = [name for name in labels if name not in against]
    single = len(bases) == 1 or not against
    count = "one model"
    if not single:
        count = f"{len(against)} models of {len(bases)} bases"
    elif len(labels) > 1:
        count = f"{len(labels)} models, the first is the baseline"
    further = ["chance", tables.DETECTABLE] if single and against else ["chance"]
    heads = {pair: pair[0] if single else " - ".join(pair) for pair in against.items()}
    reference, tokenizer = bases[0] if single else "the own base", f" Tokenizer: {bases[0]}'s."
    sections: list[Section] = [
        tables.metrics_table(
            *(suite.headlines, labels, {}, further),
            title=HEADLINES,
            note=tables.PER_CENT if single else tables.PER_CENT_OF_SEVERAL,
        ),
        tables.costs_table(suite),
        tables.aggregates_table(suite),
        *plots.scatter(
            _role_means(suite),
            FRONTIER,
            bases,
            title="Composition against what it may cost",
            note="Means of the headline metrics of each kind. "
            f"{'The square is the baseline' if single else 'Squares are bases'}.",
        ),
        tables.metrics_table(
            suite.headlines if against else (),
            {},
            heads,
            title=f"Differences from {reference}",
            note=_DIFFERENCES,
        ),
        tables.detectable_table(() if single else suite.headlines, heads),
        tables.metrics_table(suite.rows, labels, {}, ["skipped"], title="All metrics", folded=True),
        *tables.published_tables(reference_rows(suite), labels),
        *cards,
        Table.of(
            suite.models.items(),
            "model | weights | fingerprint",
            "{0} | {1.weights} | {1.fingerprint:.16}",
            words=["weights"],
            title="Models",
        ),
        List(
            [f"{one}." for one in suite.left_out],
            title=LEFT_OUT,
            note=_SKIPPED if single else _SKIPPED + tokenizer,
        ),
    ]
    return Page(title, f"Benchmarks: {count}", sections, facts=facts)


def _role_means(suite: Comparison) -> pd.DataFrame:
    """Means of the headline metrics that all models have: a row per model, a column per role."""
    values = [
        (name, ROLE_LABELS[BENCHMARKS[row.benchmark].role], estimate.value)
        for row in suite.headlines
        for name, estimate in row.values.items()
        if row.values.keys() == suite.models.keys()
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


def show_bases(bases: Sequence[BaseModel]) -> None:
    """Print size and cost of base models, and which methods and exports fit them."""
    columns = ("base", "parameters", "GFLOPs image", "text", "tokens", "transformers", "not for")
    rows: list[list[CellLike]] = []
    for base in bases:
        cells: list[CellLike] = [""] * 5
        if not base.problem:
            operations = [f"{x:.0f}" for x in base.gflops]
            size, formats = f"{base.parameters[1]:.0f} M", base.transformers or "no"
            cells = [size, *operations, base.tokens, formats]
        rows.append([base.name, *cells, "?" if base.problem else ", ".join(base.misfits) or "-"])
    lines = [
        f"{base.name}: {reason.partition(';')[0]}"
        for base in bases
        for reason in filter(None, [base.problem, *base.misfits.values()])
    ]
    table = Table(columns, rows, ["base", "transformers", "not for"])
    tables.show(Page("", "", [table, List([*dict.fromkeys(lines)])]))


def ledger_page(entries: Sequence[LedgerEntry], *, folded: bool = True) -> Page:
    """The page of published values, each beside the one that was measured here.

    Args:
        entries: models that commands here measure, in the order of the page.
        folded: whether the values of each are shown on demand.
    """
    known = sum(len(one.cells) for one in entries)
    others, models = count_others()
    by_command: dict[str, list[LedgerEntry]] = {}
    for one in entries:
        by_command.setdefault(one.command, []).append(one)
    return Page(
        "Published and measured",
        "Are the papers' numbers reproduced?",
        [
            Table(
                ["models", "tables", "measured", "largest difference", "GPU hours", "command"],
                [_ledger_line(command, own) for command, own in by_command.items()],
                ["models", "tables", "command"],
                note=_LEDGER,
            ),
            *(_ledger_table(one, folded=folded) for one in entries),
        ],
        [
            f"{sum(len(one.differences) for one in entries):,} of {known:,} published values that "
            "commands here would measure are measured.",
            f"{others:,} further values are of {models} models that no command here trains: score "
            "the authors' checkpoints with the pipeline `benchmark` after `compo-pipeline "
            "import-model`.",
        ],
    )


def _ledger_line(command: str, entries: Sequence[LedgerEntry]) -> list[CellLike]:
    """What a command measures, and how much of it is measured."""
    differences = [each for one in entries for each in one.differences]
    return [
        ", ".join(dict.fromkeys(one.model for one in entries)),
        ", ".join(dict.fromkeys(one.table for one in entries)),
        f"{len(differences)} of {sum(len(one.cells) for one in entries)}",
        tables.points(max(differences, key=abs, default=None)),
        entries[0].hours,
        command,
    ]


def _ledger_table(one: LedgerEntry, *, folded: bool) -> Table:
    """Published and measured values of a model."""
    lines: list[list[CellLike]] = [
        [
            cell.metric,
            cell.published,
            tables.estimate_cell(cell.measured) if cell.measured else None,
            tables.points(cell.difference),
            cell.remark,
        ]
        for cell in one.cells
    ]
    note = f"{one.title}. `{one.command}`."
    if one.folders:
        note += f" Measured in {', '.join(f'`{folder}`' for folder in one.folders)}. {one.note}"
    return Table(
        [one.model, "published", "here", "difference", "remark"],
        lines,
        ["remark"],
        title=f"{one.table}: {one.model}",
        note=note.strip(),
        folded=folded,
    )


def diagnosis_page(
    diagnoses: Mapping[str, Diagnosis],
    models: Mapping[str, Mapping[str, Any]],
    facts: Mapping[str, str],
    command: CommandOptions,
) -> Page:
    """The page with the diagnoses of several models.

    Args:
        diagnoses: diagnoses by the model's name.
        models: values of `model`, by the same names.
        facts: about the run.
        command: options of the run.
    """
    sections: list[Section] = []
    for name, one in diagnoses.items():
        base = {f"model.{key}": value for key, value in models[name].items()}
        sections += diagnosis_sections(one, name, command, base)
    over = "What each model misses, what training would ask for, and what to change"
    summary = [f"{name}: {one.sentence}" for name, one in diagnoses.items()]
    return Page("Diagnosis", over, sections, summary, facts)


def diagnosis_sections(
    diagnosis: Diagnosis,
    title: str,
    command: CommandOptions,
    base: Mapping[str, Any],
    foils: Mapping[str, Any] = _NONE,
    noise: Mapping[str, Noise] = _NONE,
) -> list[Section]:
    """The part of a page about a diagnosis, none if no foils were scored.

    Args:
        diagnosis: diagnosis of a model.
        title: heading of the part.
        command: options of the run.
        base: further parameters of a training as advised, by dotted key.
        foils: kinds of foils, scored or not, from the dataset `foils_report`.
        noise: noise by kind, as a person judged. The noise of all items has the empty name.
    """
    rows: list[list[CellLike]] = []
    for one in diagnosis.kinds:
        weak = "weakness" if one.kind in diagnosis.weak else ""
        row: list[CellLike] = [Cell(one.kind.replace("_", " "), small=weak), one.items]
        row += tables.estimate_cell(one.base), tables.estimate_cell(one.model)
        row += (
            (tables.difference_cell(one.gain), f"{100 * one.corrected[0]:.0f}%")
            if one.gain
            else ("", "")
        )
        row.append(f"{100 * one.asked:.1f}%" if one.change else "not counted")
        if foils:
            alone = foils[one.kind]
            limit = f"at most {100 * alone['text_accuracy_limit']:.1f}"
            row.append(Cell(100 * alone["text_accuracy"], small=limit))
        if noise and (own := noise.get(one.kind)):
            ends = f"{interval(100 * own.low, 100 * own.high)} of {own.judged}"
            row.append(Cell(None if own.value is None else 100 * own.value, small=ends))
        elif noise:
            row.append(None)
        rows.append(row)
    columns = ["kind", "n", "base", "model", "difference", "corrected", "asked"]
    note = _ACCURACY.format(f"{diagnosis.captions:,}", f"{diagnosis.negatives:,}")
    if foils:
        columns.append("by text alone")
        note += _TEXT
    if noise:
        columns.append("noise")
        every = noise[""]
        ends = f"{100 * every.low:.1f}% and {100 * every.high:.1f}%"
        note += _REVIEW.format(every.judged, every.rejected, every.unsure, ends)
    sections: list[Section] = [Table(columns, rows, title=title, note=note)]
    if rows:
        sections.append(List([RULE, diagnosis.sentence]))
    if diagnosis.steps:
        text = (
            "With these settings in a file of the run's environment in `conf`, such as "
            "`parameters_advised.yml`, this trains as advised: "
            f"`{diagnosis.command(command, base)}`"
        )
        sections.append(Text(text, diagnosis.yaml))
    unused = [
        f"{name.replace('_', ' ')}: {kind['items']:,} items, {STATES[kind['state']]}"
        for name, kind in foils.items()
        if kind["state"] != USED
    ]
    return [*sections, List(unused, title="Foils that are not scored")]


def change_cards(
    subtasks: Sequence[Subtask], changes: Iterable[ItemChange], comparison: Comparison, count: int
) -> Iterator[Cards]:
    """Yield sections with random items that only one of two models has right.

    Args:
        subtasks: subtasks that were scored.
        changes: between the comparison's models.
        comparison: comparison of the models.
        count: items of a section at most.
    """
    tasks = {(task.benchmark, task.name): task for task in subtasks}
    labels = {model.name: model.label for model in comparison.models.values()}
    first: dict[tuple[str, ...], ItemChange] = {}
    shown = (one for one in changes if one.metric in _SHOWN)
    for one in sorted(shown, key=lambda one: _SHOWN.index(one.metric)):
        first.setdefault((*_SECTION(one), *_SUBTASK(one), one.item), one)
    ordered = sorted(first.values(), key=lambda one: (one.change == "broken", *_SUBTASK(one)))
    for (model, change, baseline), own in groupby(
        sorted(ordered, key=attrgetter("model")), _SECTION
    ):
        by_task = []
        for task, each in groupby(own, _SUBTASK):
            pool = [*each]
            by_task.append(rng("gallery", *task).sample(pool, min(count, len(pool))))
        spread = [one for turn in zip_longest(*by_task) for one in turn if one is not None]
        names, fixed = (labels[baseline], labels[model]), change == "fixed"
        yield Cards(
            [
                _item_card(comparison.benchmarks[one.benchmark], tasks[_SUBTASK(one)], one, names)
                for one in spread[:count]
            ],
            small=True,
            title=f"Only {names[fixed]} is right",
            note=_SAMPLE,
            folded=not fixed,
        )


def _item_card(label: str, task: Subtask, one: ItemChange, names: tuple[str, str]) -> Card:
    """The card of a benchmark item.

    For a choice among images, it shows the most similar wrong one.
    """
    item = Item(one.item, one.image, one.positives, one.negatives, one.other_images)
    both, fixed = (one.baseline_similarities, one.model_similarities), one.change == "fixed"
    places, columns = task.image_locations(item), [*range(len(both[0]))]
    if one.metric == "t2i":
        rival = max(columns[1:], key=both[not fixed].__getitem__)
        places, columns = (places[0], places[rival]), [0, rival]
    elif one.metric == "tot":
        places = ()
    lines: list[list[CellLike]] = [
        [
            Cell(text, "words positive" if positive else "words negative"),
            *(f"{similarities[column]:.3f}" for similarities in both),
        ]
        for (text, positive), column in zip(_compared_pairs(one.metric, item), columns, strict=True)
    ]
    right, wrong = Cell("right", "good"), Cell("wrong", "bad")
    verdicts: list[CellLike] = ["result", *((wrong, right) if fixed else (right, wrong))]
    return Card(
        [f"{label} {task.name.replace('_', ' ')}", one.item],
        [Side(image=image_card(*place)) for place in places],
        Table(["", *names], [*lines, verdicts]),
    )


def _compared_pairs(metric: str, item: Item) -> Iterator[tuple[str, bool]]:
    """Yield for each cosine on a card the texts or images compared, and whether they match."""
    right, wrong = item.positives, item.negatives
    if metric in ("accuracy", "itt"):
        yield from ((text, True) for text in right)
        yield from ((text, False) for text in wrong)
    elif metric in GROUP_CHANCES:
        for place in (0, 1):
            yield f"image {place + 1}: {right[0]}", place == 0
            yield f"image {place + 1}: {wrong[0]}", place == 1
    elif metric == "t2i":
        yield f"first image: {right[0]}", True
        yield "second image, the same text", False
    elif metric == "tot":
        yield f"{right[0]} | {right[1]}", True
        yield f"{right[0]} | {wrong[0]}", False
        yield f"{right[1]} | {wrong[0]}", False
    else:
        yield " | ".join(right), True
        yield "the most similar of the others", False
