"""The pipelines that `kedro run --pipeline=...` knows.

One is imported when it is looked up.

Each package of `pipelines` is a pipeline. An installed package adds others by entry points of the
group `compo_pipeline.pipelines`, each a function that returns a Kedro pipeline.
"""

from __future__ import annotations

import ast
import pkgutil
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

from kedro.pipeline import Pipeline

from compo_pipeline import pipelines
from compo_pipeline.core import plugins

GROUP = "compo_pipeline.pipelines"

# The whole chain in order: together they train and evaluate a model.
TRAIN_EVAL = (
    "ingest",
    "validation",
    "foils",
    "counterfactuals",
    "views",
    "training",
    "evaluation",
    "registration",
)
# Pipelines that run those of several packages.
SUMS = {
    "comparison": ("ingest", "validation", "foils", "comparison"),
    "train_eval": TRAIN_EVAL,
    "__default__": TRAIN_EVAL,
}

# First steps of a pipeline that are those of another one: the other, and what they make.
FIRST_STEPS = {
    "diagnosis": ("evaluation", ("training_run",)),
    "rescore": ("evaluation", ("benchmark_items", "item_slices", "training_rows")),
    "tuning": ("training", ("training_inputs",)),
}
_ALL = f"Run all of {TRAIN_EVAL[0]} to {TRAIN_EVAL[-1]}: a training and its evaluation."


class Pipelines(dict[str, tuple[EntryPoint, ...]]):
    """Pipelines by name, from the functions whose pipelines each adds up."""

    def __getitem__(self, name: str) -> Any:
        """Import and create a pipeline."""
        found = sum((each.load()() for each in super().__getitem__(name)), Pipeline([]))
        if name in FIRST_STEPS:
            other, made = FIRST_STEPS[name]
            found += self[other].to_outputs(*made)
        return found


def register_pipelines() -> Pipelines:
    """Kedro pipelines by name.

    `__default__` is `train_eval`, the whole chain.
    """
    root = pipelines.__name__
    own = [
        EntryPoint(each.name, f"{root}.{each.name}.pipeline:create_pipeline", GROUP)
        for each in pkgutil.iter_modules(pipelines.__path__)
    ]
    found = {point.name: point for point in (*own, *plugins.points_of(GROUP))}
    names = dict.fromkeys((*TRAIN_EVAL, *sorted(found), *SUMS))
    return Pipelines(
        {name: tuple(found[part] for part in SUMS.get(name, (name,))) for name in names}
    )


def descriptions() -> dict[str, str]:
    """What each pipeline is for, by name: the first line of its function's docstring."""
    found = dict.fromkeys(SUMS, _ALL)
    for point in plugins.points_of(GROUP):
        found[point.name] = str(point.load().__doc__)
    for file in Path(pipelines.__path__[0]).glob("*/pipeline.py"):
        # Not imported: this takes seconds.
        (function,) = (
            each
            for each in ast.parse(file.read_text(encoding="utf-8")).body
            if isinstance(each, ast.FunctionDef) and each.name == "create_pipeline"
        )
        found[file.parent.name] = str(ast.get_docstring(function))
    return {name: found[name].partition("\n")[0] for name in register_pipelines()}
