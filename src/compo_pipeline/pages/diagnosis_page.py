"""Diagnoses for readers: their page, and their part of a report."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from compo_pipeline.core.provenance import CommandOptions
from compo_pipeline.evaluation.diagnosis.diagnose import Diagnosis
from compo_pipeline.evaluation.diagnosis.weaknesses import RULE
from compo_pipeline.pages.pages import Cell, CellLike, List, Page, Section, Table, Text
from compo_pipeline.pages.tables import difference_cell, estimate_cell

PAGE = "diagnosis.html"


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
    diagnosis: Diagnosis, title: str, command: CommandOptions, base: Mapping[str, Any]
) -> list[Section]:
    """The part of a page about a diagnosis, or None if no foils were scored.

    Args:
        diagnosis: diagnosis of a model.
        title: heading of the part.
        command: options of the run.
        base: further parameters of a training as advised, by dotted key.
    """
    if not diagnosis.kinds:
        return []
    table = _kinds_table(diagnosis, title)
    sections: list[Section] = [table, List([RULE, diagnosis.sentence])]
    if diagnosis.steps:
        text = (
            "With these settings in a file of the run's environment in `conf`, such as "
            "`parameters_advised.yml`, this trains as advised: "
            f"`{diagnosis.command(command, base)}`"
        )
        sections.append(Text(text, diagnosis.yaml))
    return sections


def _kinds_table(diagnosis: Diagnosis, title: str) -> Table:
    """Accuracy by kind of foil, and how many training captions ask for the change."""
    rows: list[list[CellLike]] = []
    for one in diagnosis.kinds:
        gain: list[CellLike] = [None, None]
        if one.gain is not None:
            gain = [difference_cell(one.gain), f"{100 * one.corrected[0]:.0f}%"]
        weak = "weakness" if one.kind in diagnosis.weak else ""
        rows.append(
            [
                Cell(one.kind.replace("_", " "), small=weak),
                one.items,
                *map(estimate_cell, (one.base, one.model)),
                *gain,
                f"{100 * one.asked:.1f}%" if one.change else "not counted",
            ]
        )
    return Table(
        ("kind", "n", "base", "model", "difference", "corrected", "asked"),
        rows,
        title=title,
        note="Accuracy in per cent on foils of held-out captions, with 95% intervals; corrected is "
        "the share of the base's errors that the model has right, net of new ones. Asked is the "
        "share of the training captions with a hard negative that changes them so; of "
        f"{diagnosis.captions:,} captions {diagnosis.negatives:,} negatives were read.",
    )
