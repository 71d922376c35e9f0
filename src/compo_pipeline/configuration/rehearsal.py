"""Rehearsal: the whole chain on a few training rows, `--params subset=<rows>`.

It has folders and a registered model of its own, and is never promoted.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from compo_pipeline.configuration.settings import SettingsError, with_values

KEY = "subset"
# Of the training rows, one held-out image to so many at most.
_SHARE = 10
TAG = "rehearsal"
"""In MLflow: of runs and of registered versions."""


def dataset_name(dataset: str, rows: int | None) -> str:
    """Name of the data, with the ending `-rehearsal-<rows>` in a rehearsal (run on few rows).

    Args:
        dataset: its own name, or the one that this function gave.
        rows: of the rehearsal; None for a run that is none.
    """
    ending = f"-rehearsal-{rows}"
    return dataset if rows is None or dataset.endswith(ending) else f"{dataset}{ending}"


def applied(values: Mapping[str, Any], runtime: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a run, reduced to few rows if it is a rehearsal (`subset=<rows>`).

    The rows are the first ones of the sample that a run with `data.sample.rows` would draw; of
    several sources each has at most so many, and an epoch too. A warm-up of a fixed number of steps
    would outlast the training: it becomes a share of it. Images that are held out (`foils.carve`)
    are at most a tenth as many as the rows, as of a recipe's training images at most a tenth is.

    Args:
        values: all settings, as YAML has them.
        runtime: `--params`.

    Raises:
        SettingsError: a file sets `subset`, which names folders by `--params` alone.
    """
    rows = values[KEY]
    if rows is None:
        return dict(values)
    if KEY not in runtime:
        raise SettingsError(
            f"{KEY}: a rehearsal is asked for by --params {KEY}={rows} alone; remove the key from "
            "the environment's files, or set data.sample.rows there"
        )
    sample = values["data"]["sample"]["rows"]
    trains = values["views"]["split"]
    sample = rows if sample is None else min(rows, sample)
    carve = values["foils"]["carve"]
    split = trains if isinstance(trains, str) else trains[0]
    own = {}
    for name, source in values["data"]["sources"].items():
        if source["sample"] is not None:
            least = min(filter(None, (sample, source["sample"]["rows"])))
            own[f"data.sources.{name}.sample.rows"] = least
            own[f"data.sources.{name}.sample.split"] = split
    epoch = values["data"]["epoch_rows"]
    changes = {
        "dataset": dataset_name(values["dataset"], rows),
        "data.sample.rows": sample,
        "data.epoch_rows": epoch and min(epoch, sample),
        "foils.carve": min(carve, max(1, sample // _SHARE)),
        "data.sample.split": split,
        **own,
        "training.optimizer.warmup_steps": None,
        "registration.alias": None,
    }
    return with_values(values, changes)


def note(rows: int) -> str:
    """Sentence which says that results are of a rehearsal: a run on few training rows."""
    return f"A rehearsal on {rows:,} training rows: it tries the chain, its figures say nothing."
