"""Page of a diagnosis: results by kind, weaknesses, and the settings that are advised."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import yaml
from rich.console import Console

from compo_pipeline.configuration.settings import overlay
from compo_pipeline.diagnosis.advice import Step
from compo_pipeline.diagnosis.environment import write_environment
from compo_pipeline.diagnosis.negatives import AskedChanges
from compo_pipeline.diagnosis.weaknesses import LEAST_CORRECTED, LEAST_WRONG, KindResult
from compo_pipeline.presentation import pages
from compo_pipeline.run.console import table as plain_table
from compo_pipeline.run.console import terminal
from compo_pipeline.run.provenance import CommandOptions

PAGE = "diagnosis.html"
CONF = Path("conf")
ADVISED = "advised"
"""Variant of the environment with the advised settings."""


def diagnosis_record(
    results: Sequence[KindResult],
    weak: Sequence[KindResult],
    steps: Sequence[Step],
    asked: AskedChanges,
) -> dict[str, Any]:
    """A diagnosis as JSON."""
    return {
        "kinds": [asdict(one) | {"corrected": one.corrected} for one in results],
        "weak": [one.kind for one in weak],
        "steps": [step._asdict() for step in steps],
        "captions": asked.captions,
        "negatives": asked.negatives,
    }


def sentence(diagnosis: Mapping[str, Any]) -> str:
    """What a diagnosis says, in a sentence or two."""
    weak = ", ".join(kind.replace("_", " ") for kind in diagnosis["weak"])
    if not weak:
        return "No kind of change is missed and seldom asked for."
    if not diagnosis["steps"]:
        return f"Missed and seldom asked for: {weak}. No rule of any method makes such negatives."
    return f"Missed and seldom asked for: {weak}."


def advised_yaml(steps: Sequence[Mapping[str, Any]]) -> str:
    """The steps as YAML, each with its reason before it."""
    lines = []
    for step in steps:
        lines.append(f"# {step['reason']}")
        lines.append(yaml.safe_dump(overlay({step["key"]: step["value"]}), sort_keys=False))
    return "\n".join(lines)


def write(
    diagnosis: Mapping[str, Any],
    facts: Mapping[str, str],
    links: Sequence[pages.Link],
    command: CommandOptions,
    folder: Path,
) -> None:
    """Write the page, and the environment with the advised settings if there are any.

    Args:
        diagnosis: of `diagnosis_record`.
        facts: about the run.
        links: related pages.
        command: options of the run.
        folder: for both.
    """
    folder.mkdir(parents=True, exist_ok=True)
    limits = {"accuracy": 100 - LEAST_WRONG, "corrected": 100 * LEAST_CORRECTED}
    context = {
        **diagnosis,
        "title": "Diagnosis",
        "facts": facts,
        "links": links,
        "sentence": sentence(diagnosis),
        "yaml": advised_yaml(diagnosis["steps"]),
        "limits": limits,
    }
    pages.write(folder / PAGE, PAGE, context)
    if diagnosis["steps"]:
        advice = {step["key"]: step["value"] for step in diagnosis["steps"]}
        environment = folder / "environment"
        environment.mkdir()
        write_environment(
            environment, CONF, command.env, command.params, {**advice, "variant": ADVISED}
        )


def show(diagnosis: Mapping[str, Any], console: Console | None = None) -> None:
    """Print a line for each kind, and what to change."""
    table = plain_table("per cent of the foils; asked: of the training captions")
    for name in ("kind", "items", "base", "model", "asked"):
        table.add_column(name, justify="left" if name == "kind" else "right")
    for one in diagnosis["kinds"]:
        asked = f"{100 * one['asked']:.1f}" if one["change"] else "-"
        values = (f"{one[name]['value']:.1f}" for name in ("base", "model"))
        table.add_row(one["kind"].replace("_", " "), f"{one['items']}", *values, asked)
    shown = terminal(console)
    shown.print(table)
    shown.print(sentence(diagnosis))
    if diagnosis["steps"]:
        shown.print(advised_yaml(diagnosis["steps"]), markup=False)
