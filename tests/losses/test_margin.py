"""Ranking by margins, against an oracle that writes every comparison out, and by hand."""

from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from compo_pipeline.losses import margin as module
from compo_pipeline.losses.margin import Margins, margin, ranking

MARGINS = Margins()
R, N, P = 0, 1, 2
ALL = torch.ones(3, 4, dtype=torch.bool)
NO_IMAGES = torch.tensor([[True] * 4, [False] * 4, [False] * 4])
SOME = torch.tensor([[True] * 4, [True, False, True, True], [False, True, True, False]])
OTHERS = torch.tensor([[True] * 4, [False, True, True, False], [True, True, False, True]])
THERE = [(ALL, ALL), (NO_IMAGES, ALL), (SOME, OTHERS), (ALL, SOME), (NO_IMAGES, NO_IMAGES)]


def draw(n: int = 4, seed: int = 0, spread: float = 1.5) -> Tensor:
    """Logits whose differences fall into all three branches of the margin; with a small spread
    none is suspected of being wrong.
    """
    chance = torch.Generator().manual_seed(seed)
    return spread * torch.randn(3, n, 3, n, generator=chance, dtype=torch.float64)


def slow_margin(d: float, margins: Margins) -> float:
    if not margins.adaptive:
        return margins.m0
    if d < margins.beta:
        return d
    if d > margins.m0:
        return margins.m0
    share = (d - margins.beta) / (margins.m0 - margins.beta)
    return margins.m0 * (1 + margins.gamma * (1 - share))


def mean(values: list[Tensor]) -> Tensor:
    return torch.stack(values).mean() if values else torch.zeros((), dtype=torch.float64)


class Oracle:
    """One direction: `logit(a, i, b, j)` of anchor i of kind a and entry j of kind b."""

    def __init__(self, logits: Tensor, anchors: Tensor, entries: Tensor, margins: Margins) -> None:
        self.logits, self.anchors, self.entries = logits, anchors, entries
        self.margins, self.n = margins, logits.shape[1]

    def one(self, anchor: int, higher: int, lower: int) -> Tensor:
        """An anchor's entry against another entry of its own sextuple."""
        losses = []
        for i in range(self.n):
            if self.anchors[anchor, i] and self.entries[higher, i] and self.entries[lower, i]:
                d = self.logits[anchor, i, higher, i] - self.logits[anchor, i, lower, i]
                losses.append(torch.relu(slow_margin(d.item(), self.margins) - d))
        return mean(losses)

    def many(self, anchor: int, higher: int, kinds: tuple[int, ...]) -> Tensor:
        """An anchor's entry against those kinds of entries of all other sextuples."""
        losses = []
        for i in range(self.n):
            if not (self.anchors[anchor, i] and self.entries[higher, i]):
                continue
            differences = [
                self.logits[anchor, i, higher, i] - self.logits[anchor, i, kind, j]
                for j in range(self.n)
                for kind in kinds
                if j != i and self.entries[kind, j]
            ]
            if differences:
                m = slow_margin(min(d.item() for d in differences), self.margins)
                losses += [torch.relu(m - d) for d in differences]
        return mean(losses)

    def comparisons(self) -> Iterator[tuple[str, Tensor]]:
        """Every comparison that the specification names."""
        alpha, every = self.margins.alpha, (R, N, P)
        # Real anchor.
        yield "own text > own negative text", self.one(R, R, N)
        yield "own positive text > own negative text", self.one(R, P, N)
        yield "own negative text > every text of other samples", self.many(R, N, every)
        # Positive anchor: the same, with (real, positive) in the higher place.
        yield "real text > negative text", self.one(P, R, N)
        yield "positive text > negative text", self.one(P, P, N)
        yield "negative text > every text of other samples", self.many(P, N, every)
        # Negative anchor.
        yield "its own text > the real text", self.one(N, N, R)
        yield "its own text > the positive text", self.one(N, N, P)
        yield "the real text > other samples' texts", self.many(N, R, every)
        yield "the positive text > other samples' texts", self.many(N, P, every)
        # Each kind of anchor, alpha times: its own > every real entry of other samples.
        yield "real > real entries of others", alpha * self.many(R, R, (R,))
        yield "positive > real entries of others", alpha * self.many(P, P, (R,))
        yield "negative > real entries of others", alpha * self.many(N, N, (R,))


def slow(logits: Tensor, images: Tensor, texts: Tensor, margins: Margins) -> Tensor:
    turned = logits.permute(2, 3, 0, 1)
    total = torch.zeros((), dtype=torch.float64)
    for oracle in (
        Oracle(logits, images, texts, margins),
        Oracle(turned, texts, images, margins),
    ):
        for _, loss in oracle.comparisons():
            total = total + loss
    return total


@pytest.mark.parametrize(
    "margins", [MARGINS, Margins(0.8, -1.0, 2.0, 3.0), Margins(adaptive=False)]
)
@pytest.mark.parametrize("there", THERE)
def test_equals_the_oracle_with_its_gradient(
    there: tuple[Tensor, Tensor], margins: Margins
) -> None:
    for seed in range(3):
        logits = draw(seed=seed).requires_grad_()
        expected, got = slow(logits, *there, margins), ranking(logits, *there, margins)
        assert got.item() == pytest.approx(expected.item(), abs=1e-12)
        (mine,), (theirs,) = (torch.autograd.grad(loss, logits) for loss in (got, expected))
        torch.testing.assert_close(mine, theirs)
        assert mine.ne(0).any()


@pytest.mark.parametrize("place", range(13))
def test_the_oracle_has_thirteen_comparisons_that_count_here(place: int) -> None:
    """Each of the oracle's 13 takes part of the loss: none is empty on these logits."""
    logits = draw(spread=0.4)
    for turned in (logits, logits.permute(2, 3, 0, 1)):
        losses = [loss for _, loss in Oracle(turned, ALL, ALL, MARGINS).comparisons()]
        assert len(losses) == 13
        assert losses[place] > 0


@pytest.mark.parametrize(
    ("d", "expected"),
    [
        (-7.0, -7.0),  # suspected of being wrong: no loss
        (-2.001, -2.001),
        (-2.0, 2.5),  # hardest of the hard: 0.5 (1 + 4)
        (-0.75, 1.5),  # half-way: 0.5 (1 + 4 / 2)
        (0.0, 0.9),  # 0.5 (1 + 4 (1 - 2 / 2.5))
        (0.5, 0.5),
        (0.501, 0.5),
        (30.0, 0.5),
    ],
)
def test_margin_by_hand(d: float, expected: float) -> None:
    assert margin(torch.tensor([d]), MARGINS).item() == pytest.approx(expected)
    assert margin(torch.tensor([d]), replace(MARGINS, adaptive=False)).item() == 0.5


def test_gradient_with_the_margin_frozen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Finite differences hold once margins keep the values they had at the start."""
    frozen: list[Tensor] = []
    logits, whole = draw(n=3, spread=0.4).requires_grad_(), module.margin

    def record(d: Tensor, margins: Margins) -> Tensor:
        frozen.append(whole(d, margins))
        return frozen[-1]

    monkeypatch.setattr(module, "margin", record)
    ranking(logits, SOME[:, :3], OTHERS[:, :3], MARGINS)
    kept = list(frozen)

    def loss(given: Tensor) -> Tensor:
        waiting = iter(kept)
        monkeypatch.setattr(module, "margin", lambda d, margins: next(waiting))
        return ranking(given, SOME[:, :3], OTHERS[:, :3], MARGINS)

    assert torch.autograd.gradcheck(loss, (logits,))


@pytest.mark.parametrize("there", THERE)
def test_absent_entries_take_no_part(there: tuple[Tensor, Tensor]) -> None:
    """Whatever stands in their place: same loss, no gradient for them, none that is not finite."""
    absent = ~(there[0][:, :, None, None] & there[1])
    losses = []
    for filler in (0.0, 1e4):
        logits = draw().masked_fill(absent, filler).requires_grad_()
        losses.append(ranking(logits, *there, MARGINS))
        (gradient,) = torch.autograd.grad(losses[-1], logits)
        assert gradient.isfinite().all()
        assert gradient[absent].eq(0).all()
        assert gradient[~absent].ne(0).any()
    assert losses[0].equal(losses[1])


def test_nothing_to_compare_is_zero_with_zero_gradient() -> None:
    logits = draw(n=1).requires_grad_()
    real = torch.tensor([[True], [False], [False]])
    loss = ranking(logits, real, real, MARGINS)
    assert loss.item() == 0
    assert torch.autograd.grad(loss, logits)[0].eq(0).all()


def test_margins_that_cannot_be_interpolated_are_refused() -> None:
    with pytest.raises(ValueError, match=r"beta: expected less than m0 \(0.5\), got 0.5"):
        Margins(beta=0.5)
    for name in ("m0", "gamma", "alpha"):
        with pytest.raises(ValueError, match=name):
            Margins(**{name: -1})  # type: ignore[arg-type]
