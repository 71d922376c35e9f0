"""What the scripts of trained models share."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from kedro.framework.session import KedroSession
from kedro.framework.startup import bootstrap_project

from compo_pipeline.evaluation.comparison import Row
from compo_pipeline.project.settings import all_values, loader_of

PROJECT = Path(__file__).parents[2]
RESULTS = PROJECT / "benchmarks" / "results"


def configured(env: str) -> dict[str, Any]:
    """The project's parameters under an environment, with those of every method."""
    bootstrap_project(PROJECT)
    session: Any = KedroSession.create(PROJECT, env=env)
    with session:
        session.load_context()
    return all_values(loader_of(PROJECT / "conf", env, {}))


def stored(row: Row, ours: str, control: str | None = None) -> dict[str, Any]:
    """A row as the results have it: one model against the first, and perhaps against a control."""
    found = dataclasses.asdict(row)
    values, pairs = found.pop("values"), found.pop("differences")
    base = next(iter(values))
    named = {"base": base, "control": control, "fine_tuned": ours}
    for name, model in named.items():
        found[name] = values.get(model)
    for name, model in (("vs_base", base), ("vs_control", control)):
        both = {"model": ours, "against": model}
        found[name] = next((each for each in pairs if both.items() <= each.items()), None)
    return found
