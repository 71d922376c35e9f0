"""Results in mteb's format are those that mteb's own classes compute and read.

`<python with mteb> tests/evaluation/test_mteb_results.py` stores what mteb writes for drawn
similarities.
"""

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

# Images and texts of an item of mteb's tasks.
SHAPES = {
    "SugarCrepe": (1, 2),
    "AROCocoOrder": (1, 5),
    "AROFlickrOrder": (1, 5),
    "Winoground": (2, 2),
    "ImageCoDe": (10, 1),
}
STORED = Path(__file__).with_name("mteb_results.json")
REVISION = "f" * 40


def drawn(task: str, items: int) -> Any:
    """Similarities [n, I, T] of few values, so that many are equal."""
    random = np.random.default_rng(len(task))
    return random.integers(0, 4, (items, *SHAPES[task])) / np.float32(8)


def mtebs_own(task: str, folder: Path) -> dict[str, Any]:
    """The file that mteb writes for the drawn similarities."""
    import mteb
    import torch
    from mteb.results import TaskResult

    own = mteb.get_task(task)
    assert SHAPES[task] == (len(own.images_column_names), len(own.texts_column_names))
    items = own.metadata.descriptive_stats["test"]["num_samples"]
    scores = own._compute_metrics([*map(torch.from_numpy, drawn(task, items))], *SHAPES[task])
    scores["main_score"] = scores[own.metadata.main_score]
    result = TaskResult.from_task_results(own, {"test": {"default": scores}}, evaluation_time=1.0)
    result.to_disk(folder / "result.json")
    written: dict[str, Any] = json.loads((folder / "result.json").read_text())
    return {**written, "items": items}


if __name__ == "__main__":
    import tempfile

    with tempfile.TemporaryDirectory() as temporary:
        found = {task: mtebs_own(task, Path(temporary)) for task in SHAPES}
    STORED.write_text(json.dumps(found, indent=1) + "\n")
    sys.exit()

from compo_pipeline.core.records import Score, schema  # noqa: E402
from compo_pipeline.core.tables import Table  # noqa: E402
from compo_pipeline.evaluation.evaluate import ComparedModel, Comparison  # noqa: E402
from compo_pipeline.evaluation.mteb_results import TASKS, MtebTask, write_results  # noqa: E402

EXPECTED: dict[str, Any] = json.loads(STORED.read_text()) if STORED.exists() else {}
COMPARISON = Comparison({"fine_tuned": ComparedModel("clic", "CLIC", fingerprint=REVISION)}, ())


def scored(task: MtebTask, items: int, image: str = "test.parquet/image/0") -> Table[Score]:
    """Scores of the drawn similarities, the verdict of each being wrong."""
    columns = {
        "model": ["clic"] * items,
        "benchmark": [task.benchmark] * items,
        "subtask": [task.subtask or ("a", "b")[k % 2] for k in range(items)],
        "metric": [task.metric] * items,
        "item": [*map(str, range(items))],
        "group": [image] * items,
        "similarities": drawn(task.name, items).reshape(items, -1).tolist(),
        "correct": [False] * items,
        "skipped": [None] * items,
    }
    return Table(Score, pa.table(columns, schema(Score)))


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of results of one model, of every task."""
    folder = tmp_path_factory.mktemp("mteb")
    scores = Table.joined([scored(task, task.items) for task in TASKS])
    written, left_out = write_results(scores, COMPARISON, folder, "me")
    assert [path.stem for path in written] == [*SHAPES] and not left_out
    return folder


def test_results_are_mtebs(results: Path) -> None:
    folder = results / "results" / "me__clic" / REVISION
    for task, expected in EXPECTED.items():
        found = json.loads((folder / f"{task}.json").read_text())
        ((subset,), (wanted,)) = found["scores"]["test"], expected["scores"]["test"]
        near = {
            key: pytest.approx(value, abs=2e-6) if isinstance(value, float) else value
            for key, value in wanted.items()
        }
        assert {**subset, "mteb_version": wanted["mteb_version"]} == near
        for key in ("task_name", "dataset_revision"):
            assert found[key] == expected[key]
        assert found.keys() <= expected.keys()


def test_mteb_reads_them(results: Path, tmp_path: Path) -> None:
    mteb = pytest.importorskip("mteb")
    loaded = mteb.cache.ResultCache(results).load_results(models=["me/clic"])
    (model,) = loaded.model_results
    assert (model.model_name, model.model_revision) == ("me/clic", REVISION)
    own = {task: mtebs_own(task, tmp_path) for task in SHAPES}
    assert {each.task_name: each.get_score() for each in model.task_results} == pytest.approx(
        {task: one["scores"]["test"][0]["main_score"] for task, one in own.items()}, abs=2e-6
    )
    assert {task: one["items"] for task, one in own.items()} == {
        task.name: task.items for task in TASKS
    }


def test_what_mteb_measures_otherwise_is_left_out_and_said(tmp_path: Path) -> None:
    crepe, order, *_ = TASKS
    rows = [("coco", "i2t_r1"), ("zero_shot", "top1"), ("valse", "accuracy"), ("aro", "accuracy")]
    others = [
        Score("clic", name, "vg_relation/on", metric, "0", "a", (0.5, 0.1), True, None)
        for name, metric in rows
    ]
    broken = scored(crepe, crepe.items - 1)
    tables = [broken, scored(order, order.items, "val2014/1.jpg"), Table.of(others, Score)]
    translated = scored(TASKS[3], TASKS[3].items)
    own = replace(COMPARISON, titles={"winoground": "Winoground in German"})
    scores = Table.joined([*tables, translated])
    written, left_out = write_results(scores, own, tmp_path, "me")
    assert not written and not [*tmp_path.iterdir()]
    assert "7,510 items were scored, mteb has 7,511" in left_out["SugarCrepe"]
    assert "Parquet" in left_out["AROCocoOrder"] and "nDCG@10" in left_out["coco"]
    assert "prompts" in left_out["zero_shot"] and "no such task" in left_out["valse"]
    assert "in German" in left_out["winoground"]
    assert "symmetric" in left_out["aro, relations and attributes"]
