"""State on disk: the whole of it, safely written, free of code."""

from pathlib import Path

import pytest
import torch
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
    progress, best = checkpoint.restore(path, {"model": other}, fresh)
    assert progress == {"step": 3, "curve": [1.5]} and not best
    for number in range(3, 6):
        step(other, fresh, number)

    for (name, one), two in zip(
        module.state_dict().items(), other.state_dict().values(), strict=True
    ):
        assert torch.equal(one, two), name


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
