"""The pipelines that `kedro run --pipeline=...` knows; one is imported when it is asked for.

Each package of `pipelines` is a pipeline. An installed package adds others by entry points of the
group `compo_pipeline.pipelines`, each a function that returns a Kedro pipeline. (Kedro's
`find_pipelines` warns about a requested name that is no package: a sum of others, or a plug-in's.)
"""

from __future__ import annotations

import pkgutil
from collections.abc import Callable, Iterator, Mapping

from kedro.pipeline import Pipeline

from compo_pipeline import pipelines
from compo_pipeline.configuration.plugins import Registry

GROUP = "compo_pipeline.pipelines"

# The whole chain in order: together they train and evaluate a model.
TRAIN_EVAL = (
    "raw",
    "ingest",
    "validation",
    "foils",
    "counterfactuals",
    "views",
    "training",
    "evaluation",
    "registration",
)
# Packages whose results are in memory: parts of other pipelines, and no pipelines of their own.
_INPUTS, _ITEMS, _ROWS, _NEGATIVES, _SUITE, _LIST = PARTS = (
    "training_inputs",
    "benchmark_items",
    "training_rows",
    "training_negatives",
    "suite_items",
    "listed_models",
)
# Part of ingest; alone it begins with the data.
_RECAPTION = "recaption"
# Pipelines that run those of several packages.
SUMS = {
    "recaption": ("raw", _RECAPTION),
    "ingest": (_RECAPTION, "ingest"),
    "training": (_INPUTS, "training"),
    "evaluation": (_ITEMS, _ROWS, _NEGATIVES, "evaluation"),
    "rescore": (_ITEMS, _ROWS, "rescore"),
    "wise_ft": (_ITEMS, "wise_ft"),
    "tuning": (_INPUTS, "tuning"),
    "benchmark": (_SUITE, _LIST, "benchmark"),
    "diagnosis": (_LIST, _NEGATIVES, "diagnosis"),
    "benchmark_diff": (_SUITE, "benchmark_diff"),
    "comparison": ("raw", _RECAPTION, "ingest", "validation", "foils", "comparison"),
    "train_eval": (_INPUTS, _ITEMS, _ROWS, _NEGATIVES, _RECAPTION, *TRAIN_EVAL),
    "__default__": (_INPUTS, _ITEMS, _ROWS, _NEGATIVES, _RECAPTION, *TRAIN_EVAL),
}


class Pipelines(Mapping[str, Pipeline]):
    """Mapping from pipeline name to Kedro pipeline; a lookup imports and creates the pipeline."""

    def __init__(self) -> None:
        packages = pkgutil.iter_modules(pipelines.__path__)
        own = {each.name: f"{pipelines.__name__}.{each.name}:create_pipeline" for each in packages}
        self._functions: Registry[Callable[[], Pipeline]] = Registry(GROUP, own)

    def __getitem__(self, name: str) -> Pipeline:
        if name in PARTS:
            raise KeyError(name)
        members = SUMS.get(name, (name,))
        return sum((self._functions[each]() for each in members), Pipeline([]))

    def __iter__(self) -> Iterator[str]:
        # What looks for the writer of an entry imports the pipelines before it: the chain comes
        # first, in its order, and what runs other pipelines last.
        names = dict.fromkeys((*TRAIN_EVAL, *sorted(self._functions.keys() - SUMS), *SUMS))
        yield from (name for name in names if name not in PARTS)

    def __len__(self) -> int:
        return sum(1 for _ in self)


def register_pipelines() -> Mapping[str, Pipeline]:
    """Mapping from name to Kedro pipeline; `__default__` is `train_eval`, the whole chain."""
    return Pipelines()
