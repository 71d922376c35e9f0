"""The line between two states of weights."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from compo_pipeline.models.weights import interpolate

BASE = {"w": torch.tensor([[1.0, -2.0], [0.3, 8.0]]), "n": torch.tensor([3, 4])}
TUNED = {"w": torch.tensor([[2.0, -2.0], [0.7, 0.0]]), "n": torch.tensor([3, 4])}


@pytest.mark.parametrize(
    ("ratio", "expected"),
    [
        (0.25, [[1.25, -2.0], [0.4, 6.0]]),
        (0.5, [[1.5, -2.0], [0.5, 4.0]]),
        (0.9, [[1.9, -2.0], [0.66, 0.8]]),
    ],
)
def test_weights_lie_on_the_line(ratio: float, expected: list[list[float]]) -> None:
    found = interpolate(BASE, TUNED, ratio)
    torch.testing.assert_close(found["w"], torch.tensor(expected))
    assert torch.equal(found["n"], BASE["n"])


@pytest.mark.parametrize("ratio", [0.0, 1.0])
def test_the_ends_are_the_states_themselves(ratio: float) -> None:
    draw = torch.Generator().manual_seed(0)
    states = [{"w": torch.randn(50, 50, generator=draw) * 1e-3} for _ in range(2)]
    assert torch.equal(interpolate(*states, ratio)["w"], states[int(ratio)]["w"])


@pytest.mark.parametrize("ratio", [0.1, 0.3, 0.7])
def test_weights_that_did_not_train_stay_to_the_bit(ratio: float) -> None:
    draw = torch.Generator().manual_seed(0)
    frozen = {"w": torch.randn(50, 50, generator=draw)}
    found = interpolate(frozen, {"w": frozen["w"].clone()}, ratio)["w"]
    assert torch.equal(found, frozen["w"])
    assert not torch.equal((1 - ratio) * frozen["w"] + ratio * frozen["w"], frozen["w"])


def test_batch_norms_counts_do_not_stand_in_the_way() -> None:
    base, tuned = ({"bn.num_batches_tracked": torch.tensor(count)} for count in (10, 30))
    found = [interpolate(base, tuned, ratio)["bn.num_batches_tracked"] for ratio in (0.0, 0.5, 1.0)]
    assert [int(count) for count in found] == [10, 30, 30]


def test_halves_are_summed_in_float32_and_states_stay_as_they_were() -> None:
    base, tuned = (
        {"w": torch.tensor([value], dtype=torch.float16)} for value in (1.0, 1.0009765625)
    )
    found = interpolate(base, tuned, 0.5)["w"]
    assert found.dtype == torch.float32 and found.item() == 1.00048828125
    assert base["w"].item() == 1.0 and base["w"].dtype == torch.float16


@pytest.mark.parametrize(
    ("changed", "problem"),
    [
        ({"w": torch.zeros(2, 3)}, r"w is \(2, 2\) in the base, \(2, 3\) in the tuned"),
        ({"n": torch.tensor([3, 5])}, "integers n differ"),
        ({"lora_A": torch.zeros(1)}, r"1 names are in one alone \(lora_A"),
    ],
)
def test_states_of_other_models_are_refused(changed: dict[str, Tensor], problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        interpolate(BASE, {**TUNED, **changed}, 0.5)
