import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from compo_pipeline.benchmarks.registry import BENCHMARKS
from compo_pipeline.configuration.settings import SettingsError
from compo_pipeline.evaluation.references import _MTEB, _UNIBENCH, read_references
from compo_pipeline.evaluation.settings import ReferenceSettings


def _task(name: str, **scores: float) -> dict[str, Any]:
    subset = {**scores, "main_score": 0.5, "hf_subset": "default", "languages": ["eng-Latn"]}
    fields = {"dataset_revision": "r", "mteb_version": "2.26", "evaluation_time": 1.0}
    return {**fields, "task_name": name, "scores": {"test": [subset]}}


@pytest.fixture
def mteb(tmp_path: Path) -> Path:
    """A results folder of one model, as mteb's cache has it."""
    folder = tmp_path / "results" / "openai__clip" / "abc"
    folder.mkdir(parents=True)
    (folder / "model_meta.json").write_text(json.dumps({"name": "openai/clip"}))
    tasks = [
        _task("Winoground", text_acc=0.3, image_acc=0.1, accuracy=0.08),
        _task("SugarCrepe", text_acc=0.73, image_acc=1.0, accuracy=0.73),
        _task("AROVisualRelation", text_acc=0.5),
        _task("STS12", cosine_spearman=-0.2),
    ]
    for task in tasks:
        (folder / f"{task['task_name']}.json").write_text(json.dumps(task))
    return tmp_path / "results"


def test_mteb_results_of_a_folder_and_of_a_model(mteb: Path, tmp_path: Path) -> None:
    (paper,), (line,) = read_references(ReferenceSettings(mteb=(str(mteb),)))
    assert paper.models == ("openai/clip",)
    assert paper.results == {
        "sugar_crepe/accuracy/by_item": (pytest.approx(73.0),),
        "winoground/text/all": (pytest.approx(30.0),),
        "winoground/image/all": (pytest.approx(10.0),),
        "winoground/group/all": (pytest.approx(8.0),),
    }
    # Another rule and another kind of task are named, not dropped in silence.
    assert "2 benchmarks" in line and "AROVisualRelation (a mean" in line and "STS12" in line
    whole = tmp_path / "whole.json"
    tasks = [json.loads(file.read_text()) for file in sorted(mteb.rglob("[A-Z]*.json"))]
    content = {"model_name": "openai/clip", "model_revision": "abc", "task_results": tasks}
    whole.write_text(json.dumps(content))
    (again,), _ = read_references(ReferenceSettings(mteb=(str(whole),)))
    assert again.results == paper.results


@pytest.mark.parametrize("ending", ["f", "csv"])
def test_unibench_tables_of_models_and_of_items(tmp_path: Path, ending: str) -> None:
    columns = {
        "model_name": ["blip", "clip", "clip", "clip", "clip"],
        "benchmark_name": ["winoground", "winoground", "cars", "cars", "vg_relation"],
        "correctness": [0.2, 0.1, 1, 0, 0.6],
    }
    table, file = pa.table(columns), tmp_path / f"aggregate.{ending}"
    if ending == "csv":
        table.to_pandas().to_csv(file, index=False)
    else:
        with pa.ipc.new_file(file, table.schema) as writer:
            writer.write_table(table)
    (paper,), (line,) = read_references(ReferenceSettings(unibench=(str(file),)))
    assert paper.models == ("blip", "clip")
    group = paper.results["winoground/group/all"]
    assert group == (pytest.approx(20.0), pytest.approx(10.0))
    assert paper.results["zero_shot_sets/top1/stanford_cars"] == (None, pytest.approx(50.0))
    assert "vg_relation (a mean" in line


@pytest.mark.parametrize(
    "content",
    [
        "[]",
        "{",
        '{"task_name": "Winoground"}',
        '{"task_name": "Winoground", "scores": {}}',
        '{"task_name": "Winoground", "scores": {"test": [{"accuracy": 8.75}]}}',
        '{"task_name": "Winoground", "scores": {"test": [{"accuracy": NaN}]}}',
        '{"task_name": "Winoground", "scores": {"test": [3]}}',
        '{"model_name": "m", "task_results": [null]}',
    ],
)
def test_a_malformed_file_is_named(tmp_path: Path, content: str) -> None:
    file = tmp_path / "Winoground.json"
    file.write_text(content)
    with pytest.raises(SettingsError, match=r"suite\.references\.mteb: .*Winoground\.json"):
        read_references(ReferenceSettings(mteb=(str(file),)))
    table = tmp_path / "aggregate.f"
    table.write_text(content)
    with pytest.raises(SettingsError, match=r"suite\.references\.unibench: .*aggregate\.f"):
        read_references(ReferenceSettings(unibench=(str(table),)))


def test_files_that_are_missing_or_disagree_are_named(mteb: Path) -> None:
    with pytest.raises(SettingsError, match=r"suite\.references\.mteb: .*absent"):
        read_references(ReferenceSettings(mteb=(str(mteb / "absent"),)))
    other = mteb / "openai__clip" / "def"
    other.mkdir()
    (other / "Winoground.json").write_text(json.dumps(_task("Winoground", accuracy=0.09)))
    with pytest.raises(SettingsError, match=r"abc.*def.*Winoground"):
        read_references(ReferenceSettings(mteb=(str(mteb),)))


def test_counterparts_are_benchmarks_of_ours() -> None:
    assert {key[0] for key in (*_MTEB.values(), *_UNIBENCH.values())} <= BENCHMARKS.keys()
