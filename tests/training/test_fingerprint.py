"""What makes two runs the same, and what is said where they are not."""

import importlib
import logging
from pathlib import Path
from typing import Any

import pytest
import torch

from compo_pipeline.methods.clic import Clic, ClicObjective, ClicViews, ClicWeights
from compo_pipeline.run.compute import Compute
from compo_pipeline.training import checkpoint, fingerprint
from compo_pipeline.training.fingerprint import (
    FingerprintError,
    read_matching_progress,
    run_fingerprint,
)

CLIC = Clic(ClicViews(), ClicObjective())
COMPUTE = Compute(torch.device("cpu"), "fp32")
INPUTS = {"data": "d", "views": "v", "model": "m"}


@pytest.fixture
def state(tmp_path: Path, recipe: Any) -> Path:
    """A state of six steps."""
    model = torch.nn.Linear(2, 2)
    current = run_fingerprint(CLIC, recipe(), COMPUTE, 0, INPUTS)
    saved = {"fingerprint": current, "progress": {"step": 6}}
    path = tmp_path / "clic.safetensors"
    checkpoint.save(path, {"model": model}, torch.optim.AdamW(model.parameters()), saved, step=6)
    return path


def test_the_same_run_goes_on(state: Path, recipe: Any, tmp_path: Path) -> None:
    current = run_fingerprint(CLIC, recipe(), COMPUTE, 0, INPUTS)
    saved = read_matching_progress(state, current, overwrite=False)
    assert saved is not None and saved["progress"]["step"] == 6
    assert read_matching_progress(state, current, overwrite=True) == saved
    assert read_matching_progress(tmp_path / "none.safetensors", current, overwrite=False) is None


def test_what_changes_no_outcome_changes_no_fingerprint(state: Path, recipe: Any) -> None:
    same = recipe(workers=3, save_every=9, log_every=9, overwrite=True)
    assert read_matching_progress(
        state, run_fingerprint(CLIC, same, COMPUTE, 0, INPUTS), overwrite=False
    )


def test_another_run_is_refused_with_keys_and_both_ways_out(state: Path, recipe: Any) -> None:
    objective = ClicObjective(weights=ClicWeights(s_neg=0.25))
    current = run_fingerprint(
        Clic(ClicViews(), objective), recipe(batch_size=8), COMPUTE, 0, {**INPUTS, "views": "w"}
    )
    with pytest.raises(FingerprintError) as error:
        read_matching_progress(state, current, overwrite=False)
    message = str(error.value)
    assert "objective.weights.s_neg: 0.5 -> 0.25" in message
    assert "training.batch_size: 4 -> 8" in message
    assert "views: v -> w" in message
    assert "optimizer" not in message and "seed" not in message
    assert "--params variant=<name>" in message
    assert "--params training.overwrite=true" in message


@pytest.mark.parametrize("key", ["data", "views", "model"])
def test_every_input_counts(state: Path, recipe: Any, key: str) -> None:
    """A model of another architecture has another fingerprint, as have other weights."""
    current = run_fingerprint(CLIC, recipe(), COMPUTE, 0, {**INPUTS, key: "other"})
    with pytest.raises(FingerprintError, match=rf"\({key}: {INPUTS[key]} -> other\)"):
        read_matching_progress(state, current, overwrite=False)


def test_a_state_of_another_precision_names_the_keys_that_keep_it(state: Path, recipe: Any) -> None:
    """`auto` is another precision and device on another machine."""
    automatic = recipe(device="auto", precision="auto")
    here = Compute(torch.device("cpu"), "fp32")
    assert read_matching_progress(
        state, run_fingerprint(CLIC, automatic, here, 0, INPUTS), overwrite=False
    )
    there = Compute(torch.device("cuda", 1), "bf16")
    current = run_fingerprint(CLIC, automatic, there, 0, INPUTS)
    with pytest.raises(FingerprintError) as error:
        read_matching_progress(state, current, overwrite=False)
    assert "training.device: cpu -> cuda, training.precision: fp32 -> bf16" in str(error.value)
    assert "--params training.device=cpu,training.precision=fp32." in str(error.value)


def test_overwrite_starts_afresh_and_says_so_once(
    state: Path, recipe: Any, caplog: pytest.LogCaptureFixture
) -> None:
    current = run_fingerprint(CLIC, recipe(), COMPUTE, 1, INPUTS)
    with caplog.at_level(logging.WARNING):
        assert read_matching_progress(state, current, overwrite=True) is None
        assert read_matching_progress(state, current, overwrite=True) is None
    assert caplog.text.count("another configuration (seed): starting afresh") == 1


def test_the_file_of_a_method_and_the_version_of_training_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A method that its author changes is not taken for the one whose state is stored."""
    file, found = tmp_path / "own_method.py", []
    monkeypatch.syspath_prepend(tmp_path)
    for text in ("class Own: pass", "class Own: pass  # changed"):
        file.write_text(text)
        found.append(fingerprint.code_version(importlib.import_module("own_method").Own))
    monkeypatch.setattr(fingerprint, "TRAINING", fingerprint.TRAINING + 1)
    found.append(fingerprint.code_version(importlib.import_module("own_method").Own))
    assert len(set(found)) == 3
