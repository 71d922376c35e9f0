"""What makes two runs the same, and what is said where they are not."""

import importlib
from dataclasses import replace
from pathlib import Path
from shutil import copytree
from typing import Any

import pytest
import torch

from compo_pipeline.core.compute import Compute
from compo_pipeline.methods.clic import Clic, ClicObjective, ClicViews, ClicWeights
from compo_pipeline.methods.registry import build
from compo_pipeline.models.settings import ModelSettings
from compo_pipeline.training import checkpoint, inputs
from compo_pipeline.training.checkpoint import FingerprintError, read_matching_progress
from compo_pipeline.training.inputs import TrainingInputs, fingerprint_of
from compo_scenes import scenes_base

CLIC = Clic(ClicViews(), ClicObjective())


@pytest.fixture
def plan(recipe: Any, tmp_path: Path) -> TrainingInputs:
    folder(tmp_path / "views", "rows")
    base = ModelSettings("local-dir:base")
    return TrainingInputs([], "d", tmp_path / "views", tmp_path, base, recipe(), 0, tmp_path)


def folder(path: Path, content: str, name: str = "epoch=00.parquet") -> Path:
    path.mkdir()
    (path / name).write_text(content)
    return path


def mark(plan: TrainingInputs, method: Clic = CLIC, base: str = "m") -> dict[str, Any]:
    return fingerprint_of(plan, method, base=base)


@pytest.fixture
def state(plan: TrainingInputs, tmp_path: Path) -> Path:
    """A state of six steps."""
    model = torch.nn.Linear(2, 2)
    saved = {"fingerprint": mark(plan), "progress": {"step": 6}}
    path = tmp_path / "clic.safetensors"
    modules = {"model": model}
    checkpoint.save(path, modules, torch.optim.AdamW(model.parameters()), saved, step=6)
    return path


def test_the_same_run_goes_on(state: Path, plan: TrainingInputs, tmp_path: Path) -> None:
    saved = read_matching_progress(state, mark(plan), overwrite=False)
    assert saved is not None and saved["progress"]["step"] == 6
    assert read_matching_progress(state, mark(plan), overwrite=True) == saved
    none = tmp_path / "none.safetensors"
    assert read_matching_progress(none, mark(plan), overwrite=False) is None


def test_what_changes_no_outcome_changes_no_fingerprint(plan: TrainingInputs, recipe: Any) -> None:
    same = recipe(workers=3, save_every=9, log_every=9, overwrite=True)
    assert mark(replace(plan, settings=same)) == mark(plan)


def test_another_run_is_refused_with_keys_and_both_ways_out(
    state: Path, plan: TrainingInputs, recipe: Any
) -> None:
    method = Clic(ClicViews(), ClicObjective(weights=ClicWeights(s_neg=0.25)))
    current = mark(replace(plan, settings=recipe(batch_size=8), data_hash="e"), method)
    with pytest.raises(FingerprintError) as error:
        read_matching_progress(state, current, overwrite=False)
    message = str(error.value)
    assert "objective.weights.s_neg: 0.5 -> 0.25" in message
    assert "training.batch_size: 4 -> 8" in message
    assert "data: d -> e" in message
    assert "optimizer" not in message and "seed" not in message
    assert "--params variant=<name>" in message
    assert "--params training.overwrite=true" in message


def test_every_input_counts(plan: TrainingInputs, tmp_path: Path) -> None:
    """Of the views, content and names; a model of another architecture has another fingerprint."""
    others = [
        folder(tmp_path / "other", "others"),
        folder(tmp_path / "name", "rows", "epoch=01.parquet"),
    ]
    marks = [mark(replace(plan, views=views)) for views in others]
    marks += [mark(replace(plan, data_hash="other")), mark(plan, base="other")]
    marks.append(mark(replace(plan, seed=1)))
    assert len({str(one) for one in (mark(plan), *marks)}) == 6
    assert mark(replace(plan, views=folder(tmp_path / "copy", "rows"))) == mark(plan)


def test_another_decoder_in_its_folder_counts(plan: TrainingInputs, tmp_path: Path) -> None:
    """Of its weights and its tokenizer, where the decoder is read at all."""
    decoder = copytree(scenes_base() / "decoder", tmp_path / "decoder")
    read = build("read_clip", {}, {"read": {"decoder": str(decoder)}})
    without = build("read_clip", {}, {"read": {"decoder": str(decoder), "reconstruction": 0.0}})
    first, unread = (fingerprint_of(plan, each, base="m") for each in (read, without))
    (decoder / "README.md").write_text("Notes.")
    assert fingerprint_of(plan, read, base="m") == first
    for name in ("model.safetensors", "tokenizer.json"):
        content = (decoder / name).read_bytes()
        (decoder / name).write_bytes(content[::-1])
        other = fingerprint_of(plan, read, base="m")
        assert [*checkpoint.differences(first, other)] == ["files.decoder"]
        (decoder / name).write_bytes(content)
    assert "files" not in unread and "files" not in mark(plan)


def test_a_state_of_another_precision_names_the_keys_that_keep_it(
    state: Path, plan: TrainingInputs, recipe: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`auto` is another precision and device on another machine."""
    automatic = replace(plan, settings=recipe(device="auto", precision="auto"))
    monkeypatch.setattr(TrainingInputs, "compute", Compute(torch.device("cpu"), "fp32"))
    assert mark(automatic) == mark(plan)
    monkeypatch.setattr(TrainingInputs, "compute", Compute(torch.device("cuda", 1), "bf16"))
    with pytest.raises(FingerprintError) as error:
        read_matching_progress(state, mark(automatic), overwrite=False)
    assert "training.device: cpu -> cuda, training.precision: fp32 -> bf16" in str(error.value)
    assert "--params training.device=cpu,training.precision=fp32." in str(error.value)


def test_the_file_of_a_method_and_the_version_of_training_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A method that its author changes is not taken for the one whose state is stored."""
    file, found = tmp_path / "own_method.py", []
    monkeypatch.syspath_prepend(tmp_path)
    for text in ("class Own: pass", "class Own: pass  # changed"):
        file.write_text(text)
        found.append(inputs.code_version(importlib.import_module("own_method").Own))
    monkeypatch.setattr(inputs, "TRAINING", inputs.TRAINING + 1)
    found.append(inputs.code_version(importlib.import_module("own_method").Own))
    assert len(set(found)) == 3
