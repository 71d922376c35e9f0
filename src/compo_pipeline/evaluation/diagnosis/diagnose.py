"""The diagnosis of a model: results by kind of change, weaknesses, and advice."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import yaml

from compo_pipeline.core import variants
from compo_pipeline.core.next_steps import kedro_run
from compo_pipeline.core.provenance import CommandOptions
from compo_pipeline.core.settings import leaves
from compo_pipeline.data.generators import Recipe
from compo_pipeline.evaluation.comparison import FINE_TUNED
from compo_pipeline.evaluation.diagnosis.advice import Step, TrainingRun, advise, join_kinds
from compo_pipeline.evaluation.diagnosis.weaknesses import (
    KindResult,
    foil_rows,
    kind_result,
    weaknesses,
    worst,
)
from compo_pipeline.evaluation.evaluate import Comparison

ADVISED = "advised"
"""Variant with the advised settings."""


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """Diagnosis of a model: results by kind of foil, weak kinds, and advice.

    Attributes:
        kinds: results by kind; none where no foils were scored.
        weak: names of the kinds that are weaknesses, the worst first.
        first: weaknesses that the advice is for.
        recipe: an environment that teaches all of them.
        steps: settings to change, where no recipe does.
        captions: number of training captions whose negatives were counted.
        negatives: number of these.
    """

    kinds: tuple[KindResult, ...] = ()
    weak: tuple[str, ...] = ()
    first: tuple[str, ...] = ()
    recipe: Recipe | None = None
    steps: tuple[Step, ...] = ()
    captions: int = 0
    negatives: int = 0

    @property
    def sentence(self) -> str:
        """The diagnosis as text: weak kinds, and for which of them there is advice."""
        if not self.weak:
            return "No kind of change is missed and seldom asked for."
        found = f"Missed and seldom asked for: {join_kinds(self.weak)}."
        if self.recipe:
            command = f"kedro run --pipeline=train_eval --env={self.recipe.env}"
            return f"{found} {command} teaches {join_kinds(self.first)}: {self.recipe.gained}."
        if not self.steps:
            return f"{found} No rule of any method makes negatives of {join_kinds(self.first)}."
        return f"{found} The advice is for {join_kinds(self.first)}."

    @property
    def yaml(self) -> str:
        """The advised settings as an entry of `variants`, each with its reason in a comment."""
        lines = [f"{variants.KEY}:", f"  {variants.ALL}:", f"    {ADVISED}:"]
        for step in self.steps:
            value = yaml.safe_dump([step.value], default_flow_style=True, width=math.inf)
            # A variant names no method: the command does.
            hidden = "# " if step.key == "method" else ""
            entry = f"{hidden}{step.key}: {value.strip()[1:-1]}"
            lines += [f"      # {step.reason}", f"      {entry}"]
        return "\n".join(lines)

    def command(self, options: CommandOptions, values: Mapping[str, Any]) -> str:
        """Command line that trains with the advised settings, once their entry is in `variants`.

        Args:
            options: options of the run.
            values: further parameters, by dotted key.
        """
        advice = {step.key: step.value for step in self.steps}
        given = {key: value for key, value in leaves(options.params) if key not in advice}
        own = str(given.get("variant", "default"))
        variant = ADVISED if own == "default" else f"{own}{variants.PLUS}{ADVISED}"
        method = {"method": advice["method"]} if "method" in advice else {}
        params = {**given, **values, **method, "variant": variant}
        return kedro_run("train_eval", options.env, params)


def diagnose(comparison: Comparison, run: TrainingRun, *, model: str = FINE_TUNED) -> Diagnosis:
    """Diagnose a model: which kinds of change it misses, and which settings to change.

    Args:
        comparison: comparison of the model with its base, the first one. The rows of foils count.
        run: training run of the model, or one that could follow.
        model: key of the model, which may be that of the base.
    """
    scored, base = foil_rows(comparison.rows), comparison.reference
    if not scored:
        return Diagnosis()
    asked = run.asked
    kinds = [kind_result(row, base, model, asked) for row in scored]
    weak = weaknesses(kinds, asked)
    first = worst(weak)
    missed = {one.kind for one in first}
    recipe = next((one for one in run.recipes if missed and missed <= set(one.kinds)), None)
    return Diagnosis(
        tuple(kinds),
        tuple(one.kind for one in weak),
        tuple(one.kind for one in first),
        recipe,
        advise(first, run, run.rules()) if first and recipe is None else (),
        asked.captions,
        asked.negatives,
    )
