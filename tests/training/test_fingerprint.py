"""What makes two runs the same, and what is said where they are not."""

import logging
from pathlib import Path
from typing import Any

import pytest
import torch

import compo_pipeline
from compo_pipeline import storage
from compo_pipeline.compute import Compute
from compo_pipeline.methods.clic import Clic, ClicObjective, ClicViews, ClicWeights
from compo_pipeline.training import checkpoint, fingerprint
from compo_pipeline.training.fingerprint import (
    FingerprintError,
    check,
    code_fingerprint,
    folder_fingerprint,
    run_fingerprint,
)

CLIC = Clic(ClicViews(), ClicObjective())
COMPUTE = Compute(torch.device("cpu"), "fp32")
INPUTS = {"data": "d", "views": "v", "model": "m", "code": "c"}


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
    saved = check(state, current, overwrite=False)
    assert saved is not None and saved["progress"]["step"] == 6
    assert check(state, current, overwrite=True) == saved
    assert check(tmp_path / "none.safetensors", current, overwrite=False) is None


def test_what_changes_no_outcome_changes_no_fingerprint(state: Path, recipe: Any) -> None:
    same = recipe(workers=3, save_every=9, log_every=9, overwrite=True)
    assert check(state, run_fingerprint(CLIC, same, COMPUTE, 0, INPUTS), overwrite=False)


def test_another_run_is_refused_with_keys_and_both_ways_out(state: Path, recipe: Any) -> None:
    objective = ClicObjective(weights=ClicWeights(s_neg=0.25))
    current = run_fingerprint(
        Clic(ClicViews(), objective), recipe(batch_size=8), COMPUTE, 0, {**INPUTS, "views": "w"}
    )
    with pytest.raises(FingerprintError) as error:
        check(state, current, overwrite=False)
    message = str(error.value)
    assert "objective.weights.s_neg: 0.5 -> 0.25" in message
    assert "training.batch_size: 4 -> 8" in message
    assert "views: v -> w" in message
    assert "optimizer" not in message and "seed" not in message
    assert "--params variant=<name>" in message
    assert "--params training.overwrite=true" in message


@pytest.mark.parametrize("key", ["data", "views", "model", "code"])
def test_every_input_counts(state: Path, recipe: Any, key: str) -> None:
    """A model of another architecture has another fingerprint, as have other weights."""
    current = run_fingerprint(CLIC, recipe(), COMPUTE, 0, {**INPUTS, key: "other"})
    with pytest.raises(FingerprintError, match=rf"\({key}: {INPUTS[key]} -> other\)"):
        check(state, current, overwrite=False)


def test_a_state_of_another_precision_names_the_keys_that_keep_it(state: Path, recipe: Any) -> None:
    """`auto` is another precision and device on another machine."""
    automatic = recipe(device="auto", precision="auto")
    here = Compute(torch.device("cpu"), "fp32")
    assert check(state, run_fingerprint(CLIC, automatic, here, 0, INPUTS), overwrite=False)
    there = Compute(torch.device("cuda", 1), "bf16")
    current = run_fingerprint(CLIC, automatic, there, 0, INPUTS)
    with pytest.raises(FingerprintError) as error:
        check(state, current, overwrite=False)
    assert "training.device: cpu -> cuda, training.precision: fp32 -> bf16" in str(error.value)
    assert "--params training.device=cpu,training.precision=fp32." in str(error.value)


def test_overwrite_starts_afresh_and_says_so_once(
    state: Path, recipe: Any, caplog: pytest.LogCaptureFixture
) -> None:
    current = run_fingerprint(CLIC, recipe(), COMPUTE, 1, INPUTS)
    with caplog.at_level(logging.WARNING):
        assert check(state, current, overwrite=True) is None
        assert check(state, current, overwrite=True) is None
    assert caplog.text.count("another configuration (seed): starting afresh") == 1


def test_folders_differ_by_content_and_names(tmp_path: Path) -> None:
    for name, content in (("a", "1"), ("b", "1"), ("c", "2")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "epoch=00.parquet").write_text(content)
    assert (
        folder_fingerprint(tmp_path / "a")
        == folder_fingerprint(tmp_path / "b")
        != folder_fingerprint(tmp_path / "c")
    )
    (tmp_path / "b" / "epoch=00.parquet").rename(tmp_path / "b" / "epoch=01.parquet")
    assert folder_fingerprint(tmp_path / "a") != folder_fingerprint(tmp_path / "b")


def test_code_that_trains_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in fingerprint.CODE:
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        if name.endswith(".py"):
            path.write_text("x = 1")
        else:
            path.mkdir()
            (path / "a.py").write_text("x = 1")
    (tmp_path / "other.py").write_text("x = 1")
    monkeypatch.setattr(storage, "__file__", str(tmp_path / "storage.py"))
    before = code_fingerprint()
    (tmp_path / "other.py").write_text("x = 2")
    assert code_fingerprint() == before
    seen = {before}
    for path in (tmp_path / "losses" / "a.py", tmp_path / "seeding.py"):
        path.write_text("x = 2")
        seen.add(code_fingerprint())
    assert len(seen) == 3


@pytest.mark.parametrize(
    ("old", "new", "same"),
    [
        ('"""Batches', '"""Some batches', True),
        ("\nclass ", "\n# A remark.\nclass ", True),
        ("return ", "return  ", True),
        ("    def ", '    size = 1\n    """A field."""\n\n    def ', False),
        (" 1", " 2", False),
        ("self.", "self.x.", False),
        ("\nimport ", "\nimport os, ", False),
    ],
)
def test_wording_does_not_count_and_all_else_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, old: str, new: str, same: bool
) -> None:
    source = (Path(compo_pipeline.__file__).parent / "training" / "loop.py").read_text()
    source = source.replace('"""', '"""Batches: ', 1)
    assert old in source
    monkeypatch.setattr(storage, "__file__", str(tmp_path / "storage.py"))
    found = []
    for text in (source, source.replace(old, new, 1)):
        (tmp_path / "loop.py").write_text(text)
        found.append(storage.code_fingerprint(["loop.py"]))
    assert (found[0] == found[1]) == same


def test_the_text_of_a_field_does_not_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(storage, "__file__", str(tmp_path / "storage.py"))
    found = []
    for text in ('class A:\n    b = "c"\n    """Text."""\n', 'class A:\n\n    b = "c"\n'):
        (tmp_path / "a.py").write_text(text)
        found.append(storage.code_fingerprint(["a.py"]))
    (tmp_path / "a.py").write_text('class A:\n    b = "d"\n')
    assert found[0] == found[1] != storage.code_fingerprint(["a.py"])


def test_named_code_exists() -> None:
    package = Path(compo_pipeline.__file__).parent
    assert all((package / name).exists() for name in fingerprint.CODE)
