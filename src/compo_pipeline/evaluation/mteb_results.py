"""Results in mteb's format, from scores of the benchmarks that mteb has with the same items.

`<folder>/results/<owner>__<model>/<fingerprint>/<task>.json` is what mteb's `ResultCache(folder)`
reads. The metrics are computed from the similarities by mteb's rule, by which the first of equals
is the closest.

n items, I images and T texts of an item.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from compo_pipeline.benchmarks.settings import BENCHMARKS
from compo_pipeline.core.files import write_json
from compo_pipeline.core.records import Score
from compo_pipeline.core.tables import Table
from compo_pipeline.evaluation.evaluate import Comparison


@dataclass(frozen=True, slots=True)
class MtebTask:
    """A task of mteb, and which scores are of its items.

    Attributes:
        name: name of the task.
        revision: of its data set on the Hugging Face hub.
        main: the metric that is the main score.
        items: number of its items.
        benchmark: name of the benchmark here.
        metric: metric whose rows have the similarities.
        shape: images and texts of an item; -1 for as many as there are similarities.
        subtask: subtask that has its items. None takes all.
        inside: whether only the data set's own Parquet files have its texts.
    """

    name: str
    revision: str
    main: str
    items: int
    benchmark: str
    metric: str
    shape: tuple[int, int]
    subtask: str | None = None
    inside: bool = False


_SUGAR_CREPE = "e9e0e3ce40c94023c819d3413edb5d090ec9f0d8"
_COCO_ORDER = "53c20afc02a87fed8c0245dde2e00f054da4b861"
_FLICKR_ORDER = "e5d7f3502345b2c398a6645b4d09b44e650287bf"
_WINOGROUND = "b400e173549071916ad1b3d449293bc8d8b4b763"
_IMAGECODE = "0a27b28e13841897d490a40fb88a003f04d7e314"
_ORDER = ("aro", "accuracy", (1, -1))
TASKS = (
    MtebTask("SugarCrepe", _SUGAR_CREPE, "text_acc", 7511, "sugar_crepe", "accuracy", (1, -1)),
    MtebTask("AROCocoOrder", _COCO_ORDER, "text_acc", 25010, *_ORDER, "coco_order", True),
    MtebTask("AROFlickrOrder", _FLICKR_ORDER, "text_acc", 5000, *_ORDER, "flickr30k_order", True),
    MtebTask("Winoground", _WINOGROUND, "accuracy", 400, "winoground", "group", (2, 2)),
    MtebTask("ImageCoDe", _IMAGECODE, "image_acc", 2302, "imagecode", "t2i", (-1, 1)),
)
"""Of mteb 2.26."""
_OTHERS = {
    "retrieval": "mteb's main score, nDCG@10, is not measured",
    "zero_shot": "mteb's tasks have other prompts",
    "composition": "mteb has no such task",
}
_SHUFFLES = "the items are not of the Parquet files of mteb's data set, whose shuffles are its own"
_ARO = "mteb takes symmetric relations and rare attributes too, and the mean over items"


def write_results(
    scores: Table[Score], comparison: Comparison, folder: Path, owner: str
) -> tuple[list[Path], dict[str, str]]:
    """Write the results of models in mteb's format.

    Args:
        scores: scores of the models.
        comparison: of the scores, with names and fingerprints of the models: these are the
            revisions.
        folder: folder of results, such as mteb's cache; other files in it stay.
        owner: organisation in the names of the models.

    Returns:
        The written files, and why scored benchmarks have none, by name.
    """
    written: list[Path] = []
    left_out: dict[str, str] = {}
    for name in scores.column("benchmark").unique().to_pylist():
        if name in comparison.titles:
            left_out[name] = f"its items are others ({comparison.titles[name]})"
        elif name not in {task.benchmark for task in TASKS}:
            known = BENCHMARKS.get(name)
            left_out[name] = _OTHERS[known.role if known else "composition"]
    subtasks = scores.having("benchmark", ["aro"]).column("subtask").unique().to_pylist()
    if any(name.startswith("vg_") for name in subtasks):
        left_out["aro, relations and attributes"] = _ARO
    tasks = [task for task in TASKS if task.benchmark not in comparison.titles]
    for model in comparison.models.values():
        own = scores.having("model", [model.name])
        place = folder / "results" / f"{owner}__{model.name}" / model.fingerprint
        for task in tasks:
            rows = own.having("benchmark", [task.benchmark]).having("metric", [task.metric])
            if task.subtask is not None:
                rows = rows.having("subtask", [task.subtask])
            table = rows.to_arrow()
            table = table.filter(pc.is_valid(table["correct"]))
            inside = pc.all(pc.match_substring(table["group"], ".parquet/")).as_py()
            if len(table) == task.items and (inside or not task.inside):
                written.append(place / f"{task.name}.json")
                write_json(written[-1], _result(task, table["similarities"]))
                name = f"{owner}/{model.name}"
                write_json(place / "model_meta.json", {"name": name, "revision": model.fingerprint})
            elif len(rows):
                count = f"{len(table):,} items were scored, mteb has {task.items:,}"
                left_out[task.name] = _SHUFFLES if len(table) == task.items else count
    return written, left_out


def _result(task: MtebTask, similarities: pa.ChunkedArray) -> dict[str, Any]:
    """JSON of mteb's `TaskResult`. mteb did not run, and so has no version and no time."""
    flat = similarities.combine_chunks().flatten().to_numpy()
    metrics = _accuracies(flat.reshape(task.items, *task.shape))
    subset = {"hf_subset": "default", "languages": ["eng-Latn"]}
    return {
        "dataset_revision": task.revision,
        "task_name": task.name,
        "mteb_version": None,
        "scores": {"test": [{**metrics, "main_score": metrics[task.main], **subset}]},
        "evaluation_time": None,
    }


def _accuracies(similarities: NDArray[np.floating]) -> dict[str, float]:
    """Accuracies of mteb, of items [n, I, T] whose k-th image belongs to the k-th text."""
    _, images, texts = similarities.shape
    text = (similarities.argmax(axis=2) == np.arange(images)).all(axis=1)
    image = (similarities.argmax(axis=1) == np.arange(texts)).all(axis=1)
    found = {"image_acc": image, "text_acc": text, "accuracy": image & text}
    return {name: round(float(right.mean()), 6) for name, right in found.items()}
