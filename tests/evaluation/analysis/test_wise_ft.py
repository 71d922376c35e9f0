"""Ratios between two models: what is scored, what is said of it, what is drawn."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from safetensors.torch import load_file, save_file
from tests.evaluating import evaluate
from tests.evaluation.conftest import write_noise

from compo_pipeline.benchmarks.items import Item, Subtask
from compo_pipeline.core.settings import SettingsError
from compo_pipeline.evaluation.analysis import wise_ft
from compo_pipeline.evaluation.analysis.wise_ft import load_ends, sweep
from compo_pipeline.evaluation.comparison import Row, compare
from compo_pipeline.evaluation.contamination import TrainingRows
from compo_pipeline.evaluation.settings import EvaluationSettings
from compo_pipeline.models.loading import load

SETTINGS = EvaluationSettings(workers=1)
NOTHING = TrainingRows()
WEIGHTS = "open_clip_model.safetensors"


@pytest.fixture
def subtasks(tmp_path: Path) -> list[Subtask]:
    """A choice and a retrieval over the same forty images."""
    write_noise(tmp_path, 40)
    items = tuple(Item(str(k), f"{k}.png", (f"cup {k}",), (f"key {k}",)) for k in range(40))
    return [
        Subtask("sugar_crepe", "swap_obj", ("image_to_text",), tmp_path, items),
        Subtask("retrieval", "raw", ("retrieval",), tmp_path, items),
    ]


def by_key(figures: pd.DataFrame, ratio: float) -> dict[tuple[str, str, str], Any]:
    """Of single metrics, without the means of roles."""
    own = [f for f in figures.itertuples() if f.ratio == ratio and f.benchmark != wise_ft.MEANS]
    return {(f.benchmark, f.metric, f.name): f for f in own}


def test_each_ratio_is_what_evaluation_says_of_weights_on_the_line(
    tiny_model: Callable[..., Path], subtasks: list[Subtask], tmp_path: Path
) -> None:
    """Of the base, of the mean of both, and of the fine-tuned model."""
    first, last = tiny_model(0), tiny_model(1, 1)
    halfway = Path(shutil.copytree(first, tmp_path / "halfway"))
    states = [load_file(folder / WEIGHTS) for folder in (first, last)]
    mean = {name: (states[0][name] + states[1][name]) / 2 for name in states[0]}
    save_file(mean, halfway / WEIGHTS, metadata={"quick_gelu": "false"})
    models = {"base": partial(load, first), "fine_tuned": partial(load, last)}
    found = sweep(subtasks, *load_ends(models, {}), (0.0, 0.5, 1.0), SETTINGS)
    base = by_key(found, 0.0)
    for ratio, folder in ((0.5, halfway), (1.0, last)):
        models = {"base": partial(load, first), "fine_tuned": partial(load, folder)}
        _, comparison = evaluate(subtasks, models, "clic", "CLIC", "toy", NOTHING, SETTINGS)
        figures = by_key(found, ratio)
        assert len(comparison.rows) == len(base) == len(figures) == 7
        for row in comparison.rows:
            figure = figures[row.key]
            assert base[row.key].value == row.values["base"].value
            assert base[row.key].against_base == 0
            assert (figure.value, figure.against_base) == (row.estimate.value, row.difference.value)
            assert (figure.low, figure.high) == (row.estimate.low, row.estimate.high)
        assert any(row.difference.value for row in comparison.rows)


def test_the_means_of_the_roles_are_those_of_their_sets(
    tiny_model: Callable[..., Path], subtasks: list[Subtask]
) -> None:
    found = sweep(subtasks, load(tiny_model(0)), load(tiny_model(1, 1)), (0.0, 1.0), SETTINGS)
    for ratio in (0.0, 1.0):
        means = {
            f.name: f
            for f in found.itertuples()
            if f.benchmark == wise_ft.MEANS and f.ratio == ratio
        }
        values = {key[1]: figure.value for key, figure in by_key(found, ratio).items()}
        assert means["composition"].value == values["accuracy"]
        both_ways = (values["i2t_r5"] + values["t2i_r5"]) / 2
        assert means["retrieval"].value == pytest.approx(both_ways)
        assert means["composition"].sets == "SugarCrepe swap obj"
        assert len(means["retrieval"].sets.split(", ")) == 2


def test_marks_are_corrected_over_all_metrics_and_ratios(
    tiny_model: Callable[..., Path], subtasks: list[Subtask], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Holm: in the order of p, the k-th of m is significant while p < 5% / (m - k)."""
    drawn = np.random.default_rng(0).uniform(0, 0.03, 1000).tolist()
    given: list[float] = []

    def compare_with_drawn(*args: Any) -> list[Row]:
        rows = []
        for row in compare(*args):
            given.append(drawn[len(given)])
            drawn_p = replace(row.difference, value=1.0, p=given[-1])
            rows.append(replace(row, differences=(drawn_p,)))
        return rows

    monkeypatch.setattr(wise_ft, "compare", compare_with_drawn)
    monkeypatch.setattr(wise_ft, "compare_roles", lambda *_: {})
    found = sweep(subtasks, load(tiny_model(0)), load(tiny_model(1)), (0.0, 0.5, 1.0), SETTINGS)
    ps = given[len(found) // 3 :]  # without the base against itself
    expected = dict.fromkeys(range(len(ps)), "level")
    for rank, place in enumerate(sorted(expected, key=ps.__getitem__)):
        if ps[place] >= 0.05 / (len(ps) - rank):
            break
        expected[place] = "above"
    assert found.significance[found.ratio > 0].tolist() == list(expected.values())
    assert set(expected.values()) == {"above", "level"} and len(ps) == 14


@pytest.mark.parametrize(("image_seed", "passes"), [(0, 1), (1, 3)])
def test_images_are_encoded_once_where_the_tower_is_the_same(
    tiny_model: Callable[..., Path], subtasks: list[Subtask], image_seed: int, passes: int
) -> None:
    base, tuned = load(tiny_model(0)), load(tiny_model(1, image_seed))
    seen: list[int] = []
    visual: Any = base.model.visual
    visual.conv1.register_forward_pre_hook(lambda _, given: seen.append(len(given[0])))
    sweep(subtasks, base, tuned, (0.0, 0.3, 1.0), SETTINGS)
    assert sum(seen) == 40 * passes


def test_a_checkpoint_of_another_base_is_refused(
    tiny_model: Callable[..., Path], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tiny_model(0)
    models = {role: partial(load, folder) for role in ("base", "fine_tuned")}
    mark = load(folder).fingerprint
    load_ends(models, {"fingerprint": {"model": mark}, "wise_ft_ratio": 1.0})
    assert not caplog.messages
    load_ends(models, {"fingerprint": {"model": mark}, "wise_ft_ratio": 0.5})
    assert "itself interpolated (ratio 0.5)" in caplog.text
    with pytest.raises(SettingsError, match="fine-tuned from another model .* set model.name"):
        load_ends(models, {"fingerprint": {"model": "other"}})
    config = json.loads((folder / "open_clip_config.json").read_text())
    config["preprocess_cfg"] = {"mean": [0.5, 0.5, 0.5]}
    (tmp_path / "open_clip_config.json").write_text(json.dumps(config))
    (tmp_path / WEIGHTS).write_bytes((folder / WEIGHTS).read_bytes())
    with pytest.raises(SettingsError, match="fine-tuned from another model"):
        load_ends({**models, "base": partial(load, tmp_path)}, {})
