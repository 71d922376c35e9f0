"""Half-truths: the authors' files, and the scores of hand-made vectors."""

import io
import json
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image
from tests.benchmarks.conftest import load

from compo_pipeline.core.settings import SettingsError
from compo_pipeline.data.images import decoding
from compo_pipeline.evaluation.embed import Embedded
from compo_pipeline.evaluation.metrics import metric_values
from compo_pipeline.evaluation.scoring import score_model

KINDS = ("entity", "relation", "relation", "relation")


def record(number: int, kind: str) -> dict[str, str]:
    texts = {"anchor": "a dog", "full_truth": "a dog runs", "half_truth": "a dog sits"}
    named = {key: f"{text} {number}" for key, text in texts.items()}
    return {"id": "same", "image": f"{number}.jpg", "triplet_type": kind, **named}


def test_a_half_truth_lowers_and_a_full_truth_raises_the_score(
    tmp_path: Path, embedded: Callable[..., Embedded]
) -> None:
    lines = [json.dumps(record(number, kind)) for number, kind in enumerate(KINDS)]
    (tmp_path / "coco_qwen.jsonl").write_text("\n".join(lines))
    subtasks = load("half_truths", tmp_path)
    names = {task.name: len(task.items) for task in subtasks}
    assert names == {"coco_qwen_entity": 1, "coco_qwen_relation": 3}
    # Angles to the image of the caption, the full truth and the half truth, item by item: in order,
    # caption above both, a tie with the half truth, half truth first.
    angles = ((2, 1, 3), (1, 2, 3), (2, 1, 2), (3, 2, 1))
    texts = {
        text: [1.0, 0.1 * angle]
        for number, of_item in enumerate(angles)
        for text, angle in zip(
            (f"a dog {number}", f"a dog runs {number}", f"a dog sits {number}"),
            of_item,
            strict=True,
        )
    }
    images = {f"{tmp_path}/images/{number}.jpg": [1.0, 0.0] for number in range(4)}
    rows = score_model(subtasks, embedded(images, texts), "m")
    found = metric_values(rows.rows)
    names = {key.removeprefix("half_truths/"): round(value) for key, value in found.items()}
    assert names == {
        "half_truth/coco_qwen": 50,
        "half_truth/coco_qwen_entity": 100,
        "half_truth/coco_qwen_relation": 33,
        "truth_order/coco_qwen": 25,
        "truth_order/coco_qwen_entity": 100,
        "truth_order/coco_qwen_relation": 0,
    }
    assert {key[1]: round(value, 2) for key, value in rows.chance.items()} == {
        "half_truth": 0.5,
        "truth_order": 0.17,
    }


def test_the_parquet_files_of_the_authors_hold_the_images(tmp_path: Path) -> None:
    rows = []
    for number, kind in enumerate(KINDS):
        buffer = io.BytesIO()
        Image.new("RGB", (4 + number, 4)).save(buffer, "PNG")
        image = {"bytes": buffer.getvalue(), "path": f"{number}.png"}
        rows.append(record(number, kind) | {"image": image})
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "cc3m_qwen.parquet")
    entity, relation = load("half_truths", tmp_path)
    assert relation.items[0].positives == ("a dog runs 1", "a dog 1")
    assert relation.items[0].negatives == ("a dog sits 1",)
    widths = [decoding.load(*relation.image_locations(item)[0]).width for item in relation.items]
    assert widths == [5, 6, 7]
    assert decoding.load(*entity.image_locations(entity.items[0])[0]).width == 4


@pytest.mark.parametrize(
    ("file", "content", "problem"),
    [
        (
            "a.jsonl",
            json.dumps(record(1, "object")),
            r"a\.jsonl, item 0: .*entity, relation.*'object'",
        ),
        ("a.parquet", "PAR1", r"a\.parquet is damaged"),
        ("a.txt", "", r"no \*\.parquet or \*\.jsonl"),
    ],
)
def test_other_files_are_refused(tmp_path: Path, file: str, content: str, problem: str) -> None:
    (tmp_path / file).write_text(content)
    with pytest.raises(SettingsError, match=problem):
        load("half_truths", tmp_path)


def test_two_files_of_one_subtask_are_refused(tmp_path: Path) -> None:
    (tmp_path / "coco_qwen.jsonl").write_text(json.dumps(record(0, "entity")))
    pq.write_table(pa.Table.from_pylist([record(1, "entity")]), tmp_path / "coco_qwen.parquet")
    with pytest.raises(SettingsError, match=r"coco_qwen\.parquet are both the subtask coco_qwen"):
        load("half_truths", tmp_path)
