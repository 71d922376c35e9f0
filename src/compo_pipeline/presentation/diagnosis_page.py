"""Diagnoses for readers: their page, their part of a report, and environments as advised."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import Console

from compo_pipeline.diagnosis.diagnose import Diagnosis
from compo_pipeline.diagnosis.environment import write_environment
from compo_pipeline.presentation.pages import Cell, CellLike, List, Page, Section, Table, Text
from compo_pipeline.presentation.tables import difference_cell, estimate_cell, print_table
from compo_pipeline.run.console import terminal
from compo_pipeline.run.provenance import CommandOptions
from compo_pipeline.storage.files import files_of

PAGE = "diagnosis.html"
ENVIRONMENT = "environment"
"""Folder of advised settings."""
CONF = Path("conf")
ADVISED = "advised"
"""Variant of the environment with the advised settings."""


def files(
    diagnoses: Mapping[str, Diagnosis],
    models: Mapping[str, Mapping[str, Any]],
    facts: Mapping[str, str],
    command: CommandOptions,
) -> dict[str, str | bytes]:
    """The page with the diagnoses of several models, and an environment for each with advice.

    Args:
        diagnoses: by the model's name.
        models: values of `model`, by the same names.
        facts: about the run.
        command: options of the run.
    """
    made: dict[str, str | bytes] = {}
    sections: list[Section] = []
    for name, one in diagnoses.items():
        place = f"{ENVIRONMENT}/{name}"
        sections += diagnosis_sections(one, name, place)
        base = {f"model.{key}": value for key, value in models[name].items()}
        advised = advised_files(one, command, base)
        made |= {f"{place}/{file}": content for file, content in advised.items()}
    over = "What each model misses, what training would ask for, and what to change"
    summary = [f"{name}: {one.sentence}" for name, one in diagnoses.items()]
    return made | Page("Diagnosis", over, sections, summary, facts).files(PAGE)


def advised_files(
    diagnosis: Diagnosis, command: CommandOptions, base: Mapping[str, Any]
) -> dict[str, bytes]:
    """A Kedro environment with the settings that a diagnosis advises; no file without advice.

    Args:
        diagnosis: with the settings.
        command: options of the run.
        base: further values by dotted key.
    """
    if not diagnosis.steps:
        return {}
    values = {**base, **diagnosis.advice, "variant": ADVISED}
    return files_of(
        lambda folder: write_environment(folder, CONF, command.env, command.params, values)
    )


def diagnosis_sections(diagnosis: Diagnosis, title: str, environment: str) -> list[Section]:
    """The part of a page about a diagnosis; none where no foils were scored.

    Args:
        diagnosis: of a model.
        title: heading of the part.
        environment: folder of the advised settings beside the page.
    """
    if not diagnosis.kinds:
        return []
    sections: list[Section] = [
        _kinds_table(diagnosis, title),
        List([diagnosis.rule, diagnosis.sentence]),
    ]
    if diagnosis.steps:
        text = (
            f"With the settings of this run, these are the files of the folder `{environment}` "
            "beside this page: copy it to `conf/advised` and run `kedro run --env=advised`."
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


def show(diagnoses: Mapping[str, Diagnosis], console: Console | None = None) -> None:
    """Print the accuracy of each model by kind of foil, and the settings that are advised."""
    shown = terminal(console)
    for name, diagnosis in diagnoses.items():
        print_table(_kinds_table(diagnosis, name), shown)
        shown.print(f"{name}: {diagnosis.sentence}", markup=False, highlight=False)
        if diagnosis.steps:
            shown.print(diagnosis.yaml, markup=False, highlight=False)
