"""State on disk: the whole of it, safely written, free of code."""

import json
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from torch import nn

from compo_pipeline.training import checkpoint


def network() -> nn.Module:
    """With a buffer, a scalar, and two names for one weight."""
    torch.manual_seed(0)
    first, second = nn.Linear(3, 3), nn.Linear(3, 3)
    second.weight = first.weight
    module = nn.Sequential(first, nn.BatchNorm1d(3), second)
    module.register_parameter("scale", nn.Parameter(torch.tensor(2.0)))
    return module


def step(module: nn.Module, optimizer: torch.optim.Optimizer, number: int) -> None:
    torch.manual_seed(number)
    optimizer.zero_grad()
    (module(torch.randn(4, 3)).square().sum() * module.scale).backward()
    optimizer.step()


def trained(steps: int) -> tuple[nn.Module, torch.optim.Optimizer]:
    module = network()
    optimizer = torch.optim.AdamW(module.parameters(), lr=0.1, fused=True)
    for number in range(steps):
        step(module, optimizer, number)
    return module, optimizer


def test_a_restored_state_goes_on_to_the_bit(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "state.safetensors"
    module, optimizer = trained(3)
    checkpoint.save(path, {"model": module}, optimizer, {"step": 3, "curve": [1.5]}, step=3)
    for number in range(3, 6):
        step(module, optimizer, number)

    other, fresh = trained(0)
    assert checkpoint.restore(path, {"model": other}, fresh) == {"step": 3, "curve": [1.5]}
    for number in range(3, 6):
        step(other, fresh, number)

    for (name, one), two in zip(
        module.state_dict().items(), other.state_dict().values(), strict=True
    ):
        assert torch.equal(one, two), name


def test_progress_is_read_alone(tmp_path: Path) -> None:
    path = tmp_path / "state.safetensors"
    assert checkpoint.read_progress(path) is None
    checkpoint.save(path, {"model": network()}, trained(1)[1], {"step": 1}, step=1)
    assert checkpoint.read_progress(path) == {"step": 1}


def test_the_file_is_tensors_and_json(tmp_path: Path) -> None:
    """No pickle: safetensors opens it, and the header is JSON."""
    path = tmp_path / "state.safetensors"
    module, optimizer = trained(1)
    checkpoint.save(path, {"model": module}, optimizer, {"step": 1}, step=1)
    with safe_open(path, framework="pt") as file:
        assert json.loads(file.metadata()["progress"]) == {"step": 1}
        assert {"model/0.weight", "model/1.running_mean", "optimizer/0/exp_avg"} <= set(file.keys())
    raw = path.read_bytes()
    length = int.from_bytes(raw[:8], "little")
    header = json.loads(raw[8 : 8 + length])
    ends = [entry["data_offsets"][1] for name, entry in header.items() if name != "__metadata__"]
    assert 8 + length + max(ends) == len(raw)


def test_a_save_that_fails_leaves_the_last_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "state.safetensors"
    module, optimizer = trained(1)
    checkpoint.save(path, {"model": module}, optimizer, {"step": 1}, step=1)
    whole = path.read_bytes()

    def killed(tensors: object, file: Path, **options: object) -> None:
        file.write_bytes(b"half")
        raise KeyboardInterrupt

    monkeypatch.setattr("safetensors.torch.save_file", killed)
    with pytest.raises(KeyboardInterrupt):
        checkpoint.save(path, {"model": module}, optimizer, {"step": 2}, step=2)
    assert path.read_bytes() == whole
    monkeypatch.undo()
    checkpoint.save(path, {"model": module}, optimizer, {"step": 2}, step=2)
    assert checkpoint.read_progress(path) == {"step": 2}
    assert {file.name for file in tmp_path.iterdir()} == {
        path.name,
        checkpoint.previous_state_file(path).name,
    }


def test_a_damaged_state_gives_way_to_the_one_before_it_and_then_to_none(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "state.safetensors"
    module, optimizer = trained(1)
    for number in (1, 2):
        checkpoint.save(path, {"model": module}, optimizer, {"step": number}, step=number)
    for left, said in (({"step": 1}, "the state before"), (None, "starting afresh")):
        content = bytearray(path.read_bytes())
        content[-3] ^= 1
        path.write_bytes(content)
        caplog.clear()
        assert checkpoint.read_progress(path) == left
        assert checkpoint.read_progress(path) == left
        assert len(caplog.records) == 1 and said in caplog.text
    assert list(tmp_path.iterdir()) == []


def test_another_architecture_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "state.safetensors"
    module, optimizer = trained(1)
    checkpoint.save(path, {"model": module}, optimizer, {"step": 1}, step=1)
    other = nn.Linear(2, 2)
    with pytest.raises(RuntimeError, match="Linear"):
        checkpoint.restore(path, {"model": other}, torch.optim.AdamW(other.parameters()))
