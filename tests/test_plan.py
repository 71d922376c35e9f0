"""What a run says of itself before it starts, and that it does not start on a full disk."""

import logging
from collections import namedtuple
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from compo_pipeline.configuration.settings import SettingsError
from compo_pipeline.models.loading import dimensions, load
from compo_pipeline.models.settings import ModelSettings
from compo_pipeline.project import plan
from compo_pipeline.project.hooks import ProjectHooks
from compo_pipeline.project.settings import RunSettings, run_settings
from compo_pipeline.storage.records import Caption
from compo_pipeline.storage.tables import Table
from compo_pipeline.training.checkpoint import save


@pytest.fixture
def recipe(context: Callable[..., Any], tiny_clip: Path) -> Callable[..., RunSettings]:
    """Settings of an environment, with a tiny base and what else is given."""

    def of(env: str, **params: Any) -> RunSettings:
        settings = run_settings(context(env, **params).params)
        return replace(settings, model=ModelSettings(f"local-dir:{tiny_clip}"))

    return of


def test_a_run_says_rows_steps_disk_and_gpu_hours(recipe) -> None:
    said = "\n".join(plan.lines(recipe("fsc_cc3m")))
    for part in ("100,000 expected (the paper: 100,000)", "1,950 steps", "images about 10 GB"):
        assert part in said
    assert "at most 1 in the paper, on a Quadro RTX 8000" in said
    assert "GPU hours: not given in the paper, on 8 A40" in list(plan.lines(recipe("siglip_cc3m")))
    rehearsed = "\n".join(plan.lines(recipe("fsc_cc3m", subset=1000)))
    assert "Rows: 1,000 expected" in rehearsed and ": 15 steps" in rehearsed
    own = list(plan.lines(recipe("table")))
    assert own[0].startswith("Rows: counted") and not any("GPU" in line for line in own)


def test_after_validation_rows_and_steps_are_exact(recipe, caplog) -> None:
    """Of the training split alone; SPARCL shows an image once in a pass."""
    rows = [
        Caption(f"{n}", f"{n // 5}", f"{n // 5}.jpg", 8, 8, ("a cat",), "coco", split)
        for n, split in enumerate(["train"] * 1300 + ["test"] * 50)
    ]
    hooks = ProjectHooks()
    expected = {"fsc_coco": (1300, 5 * (1300 // 256)), "sparcl_coco": (260, 5 * (260 // 128))}
    for env, (views, steps) in expected.items():
        hooks._settings = recipe(env)
        with caplog.at_level(logging.INFO, "compo_pipeline"):
            hooks.after_dataset_saved("valid_captions", Table.of(rows, Caption))
        line = caplog.messages[-1]
        assert line.startswith("Rows: 1,300 train;") and f"over {views:,} " in line
        assert line.endswith(f": {steps} steps")


def test_rows_that_are_held_out_are_said_before_and_after_they_are_counted(recipe) -> None:
    rows = [
        Caption(f"{n}", f"{n}", f"{n}.jpg", 8, 8, ("a cat",), "x", "carved" if n < 30 else "train")
        for n in range(2000)
    ]
    table = Table.of(rows, Caption)
    carving, published = recipe("laion"), recipe("laion", variant="published")
    said = "\n".join(plan.lines(carving))
    assert "1 pass over 998,000 in" in said and "are not the published rows" in said
    assert "1 pass over 1,000,000 in" in "\n".join(plan.lines(published))
    line = plan.exact_line(carving, table)
    assert line.startswith("Rows: 1,970 train, not the published rows: 30 are held out for foils; ")
    assert plan.exact_line(published, table).startswith("Rows: 2,000 train; 1 pass")


def test_an_epoch_of_several_sources_is_said_by_source(recipe) -> None:
    """Three rows of one to one of the other; SPARCL shows an image once in a pass."""
    sources = {"many": {"weight": 3}, "few": {}}
    rows = [
        Caption(f"{n}", f"{n // 2}", f"{n // 2}.jpg", 8, 8, ("a cat",), source, "train")
        for n, source in enumerate(["many"] * 1300 + ["few"] * 50)
    ]
    table = Table.of(rows, Caption)
    own = recipe("coco", data={"sources": sources})
    assert next(iter(plan.lines(own))).startswith("Recipe")
    assert "Rows: counted when the captions are read" in "\n".join(plan.lines(own))
    line = plan.exact_line(own, table)
    each = "325 of few's 50, 975 of many's 1,300"
    assert line.startswith(f"Rows: 1,350 train; an epoch takes {each}; 5 passes over 1,300 in")
    given = recipe("coco", data={"sources": sources, "epoch_rows": 2000})
    assert "an epoch takes 2,000 of the sources few, many; 5 passes" in "\n".join(plan.lines(given))
    assert "500 of few's 50, 1,500 of many's 1,300" in plan.exact_line(given, table)
    images = recipe("sparcl_coco", data={"sources": sources})
    assert "163 of few's 25, 487 of many's 650" in plan.exact_line(images, table)
    rehearsed = recipe("coco", data={"sources": sources, "epoch_rows": 2000}, subset=100)
    assert "an epoch takes 100 of the sources" in "\n".join(plan.lines(rehearsed))
    with pytest.raises(SettingsError, match=r"^data.sources.few: none of its rows trains"):
        plan.exact_line(own, Table.of(rows[:1300], Caption))


def test_the_size_of_a_model_is_that_of_its_weights(tiny_clip: Path) -> None:
    model = load(tiny_clip).model
    found = dimensions(ModelSettings(f"local-dir:{tiny_clip}"))
    assert found.image == sum(each.numel() for each in model.visual.parameters())
    assert found.image + found.text == sum(each.numel() for each in model.parameters())
    assert found.width == 16


def test_a_run_writes_no_less_than_is_said(recipe, tiny_clip: Path, tmp_path: Path) -> None:
    """The files of two states, a checkpoint and its two copies, of both towers under AdamW."""
    loaded = load(tiny_clip)
    optimizer = torch.optim.AdamW(loaded.model.parameters())
    sum(each.sum() for each in loaded.model.parameters()).backward()
    optimizer.step()
    for step in (1, 2):
        save(tmp_path / "state.safetensors", {"model": loaded.model}, optimizer, {}, step=step)
    states = sum(file.stat().st_size for file in tmp_path.glob("*.safetensors"))
    weights = sum(file.stat().st_size for file in tiny_clip.glob("*.safetensors"))
    said = plan.written(recipe("fsc_coco"), 0)["checkpoints"]
    assert 0.9 * (states + 3 * weights) < said <= states + 3 * weights


Usage = namedtuple("Usage", "total used free")


def test_a_disk_that_is_too_small_is_told_before_the_start(recipe, monkeypatch) -> None:
    settings = recipe("sparcl_coco")
    needed = sum(plan.written(settings, plan.expected_rows(settings)).values())
    monkeypatch.setattr(plan.shutil, "disk_usage", lambda path: Usage(0, 0, needed))
    plan.check_disk(settings)
    monkeypatch.setattr(plan.shutil, "disk_usage", lambda path: Usage(0, 0, needed // 2))
    with pytest.raises(SettingsError) as raised:
        plan.check_disk(settings)
    message = raised.value.message
    assert "\n" not in message and plan.size(needed) in message
    assert message.endswith("counterfactuals.image_generator=null")


def test_what_an_earlier_command_has_written_is_not_asked_for_again(
    recipe, monkeypatch, tmp_path: Path
) -> None:
    settings = recipe("fsc_coco")
    needed = sum(plan.written(settings, plan.expected_rows(settings)).values())
    paths = replace(settings.paths, resume=str(tmp_path / "run" / "resume"))
    settings = replace(settings, paths=paths)
    monkeypatch.setattr(plan.shutil, "disk_usage", lambda path: Usage(0, 0, needed - 1000))
    with pytest.raises(SettingsError, match=r"^disk: "):
        plan.check_disk(settings)
    (tmp_path / "run" / "resume").mkdir(parents=True)
    (tmp_path / "run" / "resume" / "clic.safetensors").write_bytes(bytes(1000))
    plan.check_disk(settings)
