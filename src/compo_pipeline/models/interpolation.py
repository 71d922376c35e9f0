"""WiSE-FT: weights on the line between a base and what it was fine-tuned to.

Source: Wortsman et al., Robust fine-tuning of zero-shot models, Eq. 1.
"""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

# Batch norms count their batches, and read the count nowhere.
COUNTER = ".num_batches_tracked"


def interpolate(
    base: Mapping[str, Tensor], tuned: Mapping[str, Tensor], ratio: float
) -> dict[str, Tensor]:
    """(1 - ratio) base + ratio tuned, tensor by tensor, float32.

    Args:
        base: state of the model that training started from.
        tuned: state of the trained model, adapters merged.
        ratio: 0 gives the base, 1 the trained model, both exactly. Weights that training left
            alone are the same at every ratio.

    Raises:
        ValueError: the states are of different models, or the ratio is outside [0, 1].
    """
    if not 0 <= ratio <= 1:
        raise ValueError(f"ratio: expected a number in [0, 1], got {ratio}")
    if base.keys() != tuned.keys():
        apart = sorted(base.keys() ^ tuned.keys())
        raise ValueError(
            f"base and tuned weights are of different models: {len(apart)} names stand in one "
            f"alone ({', '.join(apart[:3])}, ...); merge adapters before interpolating"
        )
    return {name: _between(name, base[name], tuned[name], ratio) for name in base}


def _between(name: str, base: Tensor, tuned: Tensor, ratio: float) -> Tensor:
    if base.shape != tuned.shape:
        raise ValueError(
            f"the weight {name} is {tuple(base.shape)} in the base, {tuple(tuned.shape)} in the "
            "tuned model: expected two states of one architecture"
        )
    base, tuned = base.detach(), tuned.detach().to(base.device)
    if base.equal(tuned):
        # A frozen tower stays itself, to the last bit: what is known of it holds good.
        return base.float() if base.is_floating_point() else base.clone()
    if name.endswith(COUNTER):
        return (tuned if ratio else base).clone()
    if not base.is_floating_point():
        raise ValueError(f"the integers {name} differ: nothing lies between base and tuned")
    # The weighted sum, not torch.lerp: at both ends it gives the very weights.
    return (1 - ratio) * base.float() + ratio * tuned.float()
