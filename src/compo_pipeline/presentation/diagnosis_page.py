"""Diagnoses for readers: their page, their part of a report, and environments as advised."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import Console

from compo_pipeline.diagnosis.diagnose import Diagnosis
from compo_pipeline.diagnosis.environment import write_environment
from compo_pipeline.presentation import pages
from compo_pipeline.run.console import table as plain_table
from compo_pipeline.run.console import terminal
from compo_pipeline.run.provenance import CommandOptions

PAGE = "diagnosis.html"
ENVIRONMENT = "environment"
"""Folder of advised settings."""
CONF = Path("conf")
ADVISED = "advised"
"""Variant of the environment with the advised settings."""


def write(
    diagnoses: Mapping[str, Diagnosis],
    models: Mapping[str, Mapping[str, Any]],
    facts: Mapping[str, str],
    command: CommandOptions,
    folder: Path,
) -> None:
    """Write the page with the diagnoses of several models, and an environment for each with advice.

    Args:
        diagnoses: by the model's name.
        models: values of `model`, by the same names.
        facts: about the run.
        command: options of the run.
        folder: for the page, and for a folder `environment/<model>`.
    """
    folder.mkdir(parents=True, exist_ok=True)
    context = {"title": "Diagnosis", "facts": facts, "links": [], "diagnoses": diagnoses}
    pages.write(folder / PAGE, PAGE, context)
    for name, diagnosis in diagnoses.items():
        base = {f"model.{key}": value for key, value in models[name].items()}
        write_advised(diagnosis, command, folder / ENVIRONMENT / name, base)


def write_advised(
    diagnosis: Diagnosis, command: CommandOptions, folder: Path, base: Mapping[str, Any]
) -> None:
    """Write a Kedro environment with the settings that a diagnosis advises; nothing without advice.

    Args:
        diagnosis: with the settings.
        command: options of the run.
        folder: of the environment.
        base: further values by dotted key.
    """
    if diagnosis.steps:
        folder.mkdir(parents=True)
        values = {**base, **diagnosis.advice, "variant": ADVISED}
        write_environment(folder, CONF, command.env, command.params, values)


def show(diagnoses: Mapping[str, Diagnosis], console: Console | None = None) -> None:
    """Print the accuracy of each model by kind of foil, and the settings that are advised."""
    table = plain_table("per cent of the foils; asked: of the training captions")
    for name in ("model", "kind", "items", "base", "accuracy", "asked"):
        table.add_column(name, justify="left" if name in ("model", "kind") else "right")
    for name, diagnosis in diagnoses.items():
        for one in diagnosis.kinds:
            asked = f"{100 * one.asked:.1f}" if one.change else "-"
            values = (f"{each.value:.1f}" for each in (one.base, one.model))
            table.add_row(name, one.kind.replace("_", " "), f"{one.items}", *values, asked)
    shown = terminal(console)
    shown.print(table)
    for name, diagnosis in diagnoses.items():
        shown.print(f"{name}: {diagnosis.sentence}", markup=False, highlight=False)
        if diagnosis.steps:
            shown.print(diagnosis.yaml, markup=False, highlight=False)
