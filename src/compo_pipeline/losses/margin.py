"""Ranking of real and synthetic entries by margins that depend on how well they are ranked.

Shapes: n sextuples of one device, 3 kinds (real, negative, positive) as in `sextuple`. An anchor
is an image and its entries are texts, or the other way round.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from pydantic import NonNegativeFloat
from torch import Tensor

from compo_pipeline.core.settings import settings
from compo_pipeline.losses.sextuple import NEGATIVE, POSITIVE, REAL

# (anchor, higher, lower): within a sextuple, the higher entry is nearer to the anchor.
_WITHIN = (
    (REAL, REAL, NEGATIVE),
    (REAL, POSITIVE, NEGATIVE),
    (POSITIVE, REAL, NEGATIVE),
    (POSITIVE, POSITIVE, NEGATIVE),
    (NEGATIVE, NEGATIVE, REAL),
    (NEGATIVE, NEGATIVE, POSITIVE),
)
# (anchor, higher): even the entries that are false of the anchor are nearer to it than all entries
# of other sextuples.
_BEYOND = ((REAL, NEGATIVE), (POSITIVE, NEGATIVE), (NEGATIVE, REAL), (NEGATIVE, POSITIVE))
# (anchor, higher): its own entry is nearer to it than the real entries of other sextuples.
_OWN = ((REAL, REAL), (POSITIVE, POSITIVE), (NEGATIVE, NEGATIVE))


@settings
class Margins:
    """Settings of SPARCL's adaptive margins, in logits (the paper's symbols)."""

    m0: NonNegativeFloat = 0.5
    """The margin of entries that are ranked well."""

    beta: float = -2.0
    """Entries ranked wrongly by more than this (it is negative) are suspected of being wrong
    themselves and take no part.
    """

    gamma: NonNegativeFloat = 4.0
    """How much the margin grows, in shares of m0, as the difference falls from m0 to beta."""

    alpha: NonNegativeFloat = 10.0
    """Weight of comparisons with real entries of other sextuples."""

    adaptive: bool = True
    """False: the margin is m0 for all entries."""

    def __post_init__(self) -> None:
        """Check the interval in which the margin is interpolated."""
        if not self.beta < self.m0:
            raise ValueError(f"beta: expected less than m0 ({self.m0}), got {self.beta}")


def margin(difference: Tensor, margins: Margins) -> Tensor:
    """Adaptive margin of each difference (higher logit - lower logit), without a gradient.

    Source: SPARCL, adaptive margin: m = d below beta, which leaves no loss; m0 (1 + gamma (1 -
    (d - beta) / (m0 - beta))) from there to m0; m0 above.

    Args:
        difference: [...], higher logit minus lower logit.
        margins: margins of the three branches.

    Returns:
        [...].
    """
    d = difference.detach()
    fixed = torch.full_like(d, margins.m0)
    if not margins.adaptive:
        return fixed
    way = (d - margins.beta) / (margins.m0 - margins.beta)
    hard = margins.m0 * (1 + margins.gamma * (1 - way))
    return torch.where(d < margins.beta, d, torch.where(d <= margins.m0, hard, fixed))


def ranking(logits: Tensor, images: Tensor, texts: Tensor, margins: Margins) -> Tensor:
    """SPARCL's margin ranking loss of images by texts and of texts by images.

    The sum of 13 comparisons in either direction, not divided: six within a sextuple, four with
    all entries of the others, three (times alpha) with their real entries. Each is a mean over
    its anchors, or over its pairs of an anchor and an entry of another sextuple, which weigh
    alike; one in which an anchor or an entry is absent leaves its mean, and an empty mean is 0.
    So without synthetic images no comparison of a synthetic text's own image is left.

    Source: SPARCL, L_mar. The authors' margin of a real text against other real images reads
    the positive image: a slip, not copied.

    Args:
        logits: [3, n, 3, n], s times cosine, images by texts, of `sextuple.similarities`.
        images: [3, n], bool: the image exists.
        texts: [3, n], bool: the text exists.
        margins: margins of the hinge, and the weight alpha.

    Returns:
        Scalar.
    """
    to_texts = _one_direction(logits, images, texts, margins)
    return to_texts + _one_direction(logits.permute(2, 3, 0, 1), texts, images, margins)


def _one_direction(logits: Tensor, anchors: Tensor, entries: Tensor, margins: Margins) -> Tensor:
    """Sum of all ranking losses with anchors of one kind: images or texts.

    Logits are [3, n, 3, n], the masks of the anchors and entries that exist [3, n].
    """
    own = logits.diagonal(dim1=1, dim2=3)  # [3, 3, n]: anchor kind, entry kind, sextuple
    there = anchors[:, None] & entries  # likewise
    total = logits.new_zeros(())
    for anchor, higher, lower in _WITHIN:
        d = own[anchor, higher] - own[anchor, lower]
        total = total + _hinge(d, d, there[anchor, higher] & there[anchor, lower], margins)
    for anchor, higher in _BEYOND:
        others, exist = logits[anchor], entries[None]
        total = total + _loss_beyond_sample(
            own[anchor, higher], others, there[anchor, higher], exist, margins
        )
    for anchor, higher in _OWN:
        real, exist = logits[anchor, :, REAL : REAL + 1], entries[None, REAL : REAL + 1]
        loss = _loss_beyond_sample(own[anchor, higher], real, there[anchor, higher], exist, margins)
        total = total + margins.alpha * loss
    return total


def _loss_beyond_sample(
    own: Tensor, others: Tensor, there: Tensor, exist: Tensor, margins: Margins
) -> Tensor:
    """Margin loss that ranks an anchor's own text or image above texts or images of other samples.

    The margin of an anchor is that of the hardest of them: the other entry nearest to it.

    Args:
        own: [n].
        others: [n, k, n], anchor by entry kind by sextuple.
        there: [n], bool: anchor and own entry exist.
        exist: [1, k, n], bool: the other entry exists.
        margins: margins of the hinge.
    """
    other = ~torch.eye(len(own), dtype=torch.bool, device=own.device)[:, None]
    compared = there[:, None, None] & exist & other
    d = own[:, None, None] - others
    hardest = d.masked_fill(~compared, torch.inf).amin(dim=(1, 2), keepdim=True)
    return _hinge(d, hardest, compared, margins)


def _hinge(d: Tensor, decisive: Tensor, compared: Tensor, margins: Margins) -> Tensor:
    """Mean of relu(m - d) over compared pairs, with the adaptive margin m of given differences."""
    losses = F.relu(margin(decisive, margins) - d).masked_fill(~compared, 0.0)
    return losses.sum() / compared.sum().clamp(min=1)
