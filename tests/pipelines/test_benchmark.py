import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from compo_pipeline.configuration import SettingsError
from compo_pipeline.evaluation.benchmarks import BENCHMARKS
from compo_pipeline.evaluation.comparison import Difference, Estimate, Row
from compo_pipeline.evaluation.settings import BenchmarkSet, BenchmarksSettings
from compo_pipeline.evaluation.suite import (
    AGGREGATES,
    Suite,
    SuiteModel,
    available,
    listed_models,
)
from compo_pipeline.pipelines.benchmark.nodes import score_list, write_suite_page


@pytest.fixture
def benchmarks(tmp_path: Path) -> dict[str, Any]:
    """Two benchmarks over four images."""
    (tmp_path / "images").mkdir()
    items = {}
    for number in range(4):
        noise = np.random.default_rng(number).integers(0, 255, (40, 40, 3), dtype=np.uint8)
        Image.fromarray(noise).save(tmp_path / "images" / f"{number}.png")
        items[str(number)] = {
            "filename": f"{number}.png",
            "caption": f"{number} red cubes",
            "negative_caption": f"{number} blue cubes",
        }
    for name, content in (("sugar_crepe", items), ("sugar_crepe_pp", [])):
        (tmp_path / name).mkdir()
        records = content or [
            {**record, "caption2": "cubes", "id": key} for key, record in items.items()
        ]
        (tmp_path / name / "swap_att.json").write_text(json.dumps(records))
    return {"root": str(tmp_path), "sets": {"sugar_crepe": {}, "sugar_crepe_pp": {}}}


def test_a_list_of_models_is_compared_with_its_first(
    benchmarks: dict[str, Any], tiny_model: Callable[..., Path], tmp_path: Path
) -> None:
    models = {name: {"name": f"local-dir:{tiny_model(k)}"} for k, name in enumerate(("a", "b"))}
    evaluation = {"device": "cpu"}
    data = {"format": "coco_captions", "root": str(tmp_path), "splits": {"train": "train"}}
    inputs = (
        "two",
        {"two": models},
        benchmarks,
        evaluation,
        data,
        {},
        {},
        str(tmp_path / "stored"),
    )
    scores, suite = score_list(*inputs)
    assert {row.model for row in scores} == {"a", "b"} and len(scores) == 2 * (4 + 4 + 4)
    first, second = suite["models"]
    assert first["fingerprint"] != second["fingerprint"]
    for own, other in zip(first["rows"], second["rows"], strict=True):
        assert own["vs_base"]["value"] == 0 and other["base"] == own["base"]
        right = [row.correct for row in scores if (row.model, row.metric) == ("b", own["metric"])]
        assert other["fine_tuned"]["value"] == pytest.approx(100 * np.mean(right))
    assert score_list(*inputs)[1] == suite
    facts = {"env": None, "params": {}}
    folder = write_suite_page(suite, "two", benchmarks, facts, str(tmp_path / "page"))
    for page in ("benchmark.html", "benchmark.md"):
        assert "SugarCrepe++ ITT swap att" in (folder / page).read_text()


@pytest.mark.parametrize(
    ("name", "lists", "named"),
    [
        ("tow", {"two": {"a": {}}}, "models: .*'two'"),
        ("two", {"two": {}}, r"model_lists\.two: "),
        ("two", {"two": {"a": {"nmae": "x"}}}, r"model_lists\.two\.a\.nmae"),
    ],
)
def test_a_list_that_cannot_be_used_is_named(name: str, lists: Any, named: str) -> None:
    with pytest.raises(SettingsError, match=named):
        listed_models(name, lists)


def test_what_is_there_of_every_benchmark(benchmarks: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "images" / "3.png").unlink()
    sets = {
        "sugar_crepe": BenchmarkSet(),
        "sugar_crepe_pp": BenchmarkSet(root=str(tmp_path / "absent")),
    }
    found = {one.name: one for one in available(BenchmarksSettings(str(tmp_path), sets=sets))}
    there = found["sugar_crepe"]
    counts = (there.subtasks, there.items, there.images, there.missing_images, there.problem)
    assert counts == (1, 4, 4, 1, "")
    assert "absent" in found["sugar_crepe_pp"].problem
    assert not found["zero_shot"].enabled and found["zero_shot"].source


def test_an_aggregate_is_a_mean_of_all_its_members_or_names_the_missing() -> None:
    keys = [key for member in AGGREGATES[0].members for key in member]
    assert all(key[0] in BENCHMARKS for key in keys)

    def row(key: tuple[str, str, str], value: float) -> Row:
        one = Estimate(value, value, value)
        same = Difference(0, 0, 0, 1, 1, 0, 0, 0)
        return Row(*key, "", False, True, 1, 0, 1, None, one, None, one, same, None)

    rows = tuple(row(key, 10.0 * number) for number, key in enumerate(keys))
    whole = Suite((SuiteModel("m", "w", "f", rows),), (), "", "strict")
    (found,) = whole.aggregates
    # The two of SPEC, 40 and 50, are one member.
    assert found.values == (pytest.approx((660 - 40 - 50 + 45) / 11),) and not found.missing
    (partial,) = replace(whole, models=(SuiteModel("m", "w", "f", rows[1:]),)).aggregates
    assert partial.values == () and partial.missing == ("ARO",)
