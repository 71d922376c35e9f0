"""Diagnoses for readers: their page, and their part of a report."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from compo_pipeline.core.provenance import CommandOptions
from compo_pipeline.evaluation.diagnosis.diagnose import Diagnosis
from compo_pipeline.evaluation.diagnosis.weaknesses import RULE
from compo_pipeline.generation.foils.build import STATES, USED
from compo_pipeline.generation.foils.review import Noise
from compo_pipeline.pages.pages import (
    Cell,
    CellLike,
    List,
    Page,
    Section,
    Table,
    Text,
    interval,
)
from compo_pipeline.pages.tables import difference_cell, estimate_cell

PAGE = "diagnosis.html"
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
        row += estimate_cell(one.base), estimate_cell(one.model)
        row += (
            (difference_cell(one.gain), f"{100 * one.corrected[0]:.0f}%") if one.gain else ("", "")
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
