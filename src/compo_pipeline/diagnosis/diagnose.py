"""The diagnosis of a model: results by kind of change, weaknesses, and what to change."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import yaml

from compo_pipeline.datasets.generators import Recipe
from compo_pipeline.diagnosis.advice import Step, TrainingRun, advise, join_kinds
from compo_pipeline.diagnosis.weaknesses import (
    RULE,
    KindResult,
    foil_rows,
    kind_result,
    weaknesses,
    worst,
)
from compo_pipeline.evaluation.comparison import Row


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """Diagnosis of a model: results by kind of foil, weak kinds, and what to train instead.

    Attributes:
        kinds: results by kind; none where no foils were scored.
        weak: names of the kinds that are weaknesses, the worst first.
        first: those of them that the advice is for.
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
    def advice(self) -> dict[str, Any]:
        """The advised values of settings, by dotted key."""
        return {step.key: step.value for step in self.steps}

    @property
    def yaml(self) -> str:
        """The advised settings as YAML, each with its reason in a comment before it."""
        return "\n".join(_yaml_lines({step.key: step for step in self.steps}))

    @property
    def rule(self) -> str:
        """A text that defines when a kind of change is a weakness."""
        return RULE


def diagnose(
    rows: Iterable[Row],
    base: str,
    model: str,
    run: TrainingRun,
) -> Diagnosis:
    """Diagnose a model: which kinds of change it misses, and which settings to change.

    Args:
        rows: of a comparison; those of foils count.
        base: key of the base in the rows' values.
        model: key of the model, which may be the base.
        run: its training, or one that could follow.
    """
    scored = foil_rows(rows)
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
        advise(first, kinds, run, run.rules()) if first and recipe is None else (),
        asked.captions,
        asked.negatives,
    )


def _yaml_lines(steps: Mapping[str, Step], indent: str = "") -> Iterator[str]:
    """Yield nested YAML lines for steps, by the remaining parts of their dotted keys."""
    groups: dict[str, dict[str, Step]] = {}
    for key, step in steps.items():
        name, _, rest = key.partition(".")
        groups.setdefault(name, {})[rest] = step
    for name, inner in groups.items():
        if leaf := inner.get(""):
            flow = yaml.safe_dump([leaf.value], default_flow_style=True, width=math.inf)
            yield from (f"{indent}# {leaf.reason}", f"{indent}{name}: {flow.strip()[1:-1]}")
        else:
            yield f"{indent}{name}:"
            yield from _yaml_lines(inner, f"{indent}  ")
