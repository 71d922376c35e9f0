"""Where and how precisely to compute is resolved once, from what the machine has.

GPUs and processors are simulated by what they say of themselves: fp16 and mps were tried on no
hardware.
"""

from typing import Any

import pytest
import torch

from compo_pipeline.core import compute
from compo_pipeline.core.compute import Compute, choose_device, resolve
from compo_pipeline.core.settings import SettingsError

CPU = torch.device("cpu")


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Pretends that a device of a kind is there, with or without bf16."""

    def pretend(kind: str, bf16: bool) -> None:
        monkeypatch.setattr(compute, "choose_device", lambda name, key: torch.device(kind))
        monkeypatch.setattr(compute, "multiplies_bf16", lambda device: bf16)
        monkeypatch.setattr(compute, "_hardware", lambda device: "Pretended")

    return pretend


@pytest.mark.parametrize(
    ("kind", "bf16", "expected"),
    [
        ("cuda", True, "bf16"),
        ("cuda", False, "fp16"),
        ("cpu", True, "bf16"),
        ("cpu", False, "fp32"),
    ],
)
def test_auto_is_the_fastest_that_the_device_has_instructions_for(
    machine: Any, kind: str, bf16: bool, expected: str
) -> None:
    machine(kind, bf16)
    found = resolve("auto", "auto", key="training")
    assert (found.device.type, found.precision) == (kind, expected)


def test_mps_is_used_where_it_is_named_and_in_fp32_alone(
    machine: Any, caplog: pytest.LogCaptureFixture
) -> None:
    machine("mps", False)
    found = resolve("mps", "auto", key="training")
    assert (found.device.type, found.precision) == ("mps", "fp32")
    compute.report("training", found)
    assert "mps has not been tried" in caplog.text
    with pytest.raises(SettingsError, match=r"training.precision: 'bf16' .*allowed here: fp32"):
        resolve("mps", "bf16", key="training")


@pytest.mark.parametrize(
    ("kind", "precision", "message"),
    [
        ("cpu", "fp16", "'fp16' is not supported on cpu .*: fp32, bf16$"),
        ("cuda", "bf16", "'bf16' is not supported on cuda .*: fp16, fp32$"),
    ],
)
def test_a_precision_that_the_device_lacks_is_refused_under_its_key(
    machine: Any, kind: str, precision: str, message: str
) -> None:
    machine(kind, bf16=False)
    with pytest.raises(SettingsError, match=f"^evaluation.precision: {message}"):
        resolve("auto", precision, key="evaluation")


def test_emulated_bf16_on_a_cpu_can_be_asked_for_and_is_warned_of(
    machine: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """So a run that was begun elsewhere can go on."""
    machine("cpu", bf16=False)
    found = resolve("cpu", "bf16", key="training")
    assert found == Compute(CPU, "bf16")
    compute.report("training", found)
    assert "training: this processor emulates bf16" in caplog.text


@pytest.mark.parametrize("name", ["gpu", "cuda:99", "", "meta"])
def test_a_device_that_is_not_there_is_refused(name: str) -> None:
    message = rf"^pretraining.device: '{name}' cannot be used here .*; allowed here: auto, cpu"
    with pytest.raises(SettingsError, match=message):
        choose_device(name, key="pretraining.device")
