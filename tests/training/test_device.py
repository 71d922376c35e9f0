"""Where to compute is chosen once, and a wrong name is told."""

import pytest
import torch

from compo_pipeline.configuration import SettingsError
from compo_pipeline.training import device


def test_auto_takes_a_gpu_where_there_is_one() -> None:
    expected = "cuda" if torch.cuda.is_available() else "cpu"
    assert device.choose("auto", key="training.device").type == expected
    assert device.choose("cpu", key="training.device") == torch.device("cpu")


@pytest.mark.parametrize("name", ["gpu", "cuda:99", ""])
def test_a_device_that_is_not_there_is_refused(name: str) -> None:
    with pytest.raises(SettingsError, match=rf"^pretraining.device: '{name}' cannot be used here"):
        device.choose(name, key="pretraining.device")


@pytest.mark.parametrize(("precision", "kind"), [("bf16", torch.bfloat16), ("fp32", torch.float32)])
def test_precision(precision: str, kind: torch.dtype) -> None:
    a = torch.ones(2, 2)
    with device.autocast(torch.device("cpu"), precision):
        assert (a @ a).dtype == kind
        assert torch.nn.functional.scaled_dot_product_attention(a[None], a[None], a[None]).shape
    assert (a @ a).dtype == torch.float32
