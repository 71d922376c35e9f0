"""Hard negatives ranked below their caption by thresholds that grow with the model.

Shapes: m rows of a batch, K kinds of hard negatives.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def cross_modal_ranking(right: Tensor, wrong: Tensor, valid: Tensor, thresholds: Tensor) -> Tensor:
    """Hinge of each negative's logit against its caption's, by the threshold of its kind.

    Source: CE-CLIP (Zhang et al. 2024), cross-modal ranking loss.

    Args:
        right: [m], logits of the images and their captions.
        wrong: [m, K], of the images and the negatives of each kind.
        valid: [m, K], bool: the negative exists.
        thresholds: [K], in logits; without a gradient.

    Returns:
        Scalar, mean over the negatives that exist; 0 where none does.
    """
    hinges = F.relu(thresholds + wrong - right[:, None])
    return hinges.masked_fill(~valid, 0.0).sum() / valid.sum().clamp(min=1)


def adapted(right: Tensor, wrong: Tensor, valid: Tensor, thresholds: Tensor, most: float) -> Tensor:
    """The next step's thresholds [K]: how far negatives of a kind are below their captions now.

    Source: CE-CLIP, adaptive threshold. A kind without a negative in this batch keeps its own. The
    authors' code subtracts the mean of the negatives from that of all captions, those without a
    negative of the kind included.

    Args:
        right: [m], logits of the images and their captions.
        wrong: [m, K], of the images and the negatives of each kind.
        valid: [m, K], bool: the negative exists.
        thresholds: [K], of this step.
        most: upper bound; the lower one is 0.
    """
    gaps = (right[:, None] - wrong).detach().masked_fill(~valid, 0.0)
    count = valid.sum(0)
    means = (gaps.sum(0) / count.clamp(min=1)).clamp(0.0, most)
    return torch.where(count > 0, means, thresholds)


def intra_modal(right: Tensor, wrong: Tensor, valid: Tensor) -> Tensor:
    """A caption's logit with its image among its logits with hard negatives, text by text.

    Source: CE-CLIP, intra-modal contrastive loss.

    Args:
        right: [m], logits of the images and their captions.
        wrong: [m, N], of the captions and the N negatives that each is contrasted with.
        valid: [m, N], or [N] the same for all captions, bool: the negative exists.

    Returns:
        Scalar, mean over captions; one without any negative has 0.
    """
    return (_against(right, wrong, valid) - right).mean()


def towards_first_negative(right: Tensor, wrong: Tensor, valid: Tensor) -> Tensor:
    """The same choice with the batch's first hard negative as the right answer of every caption.

    Source: CE-CLIP's code as published (Enhance-FineGrained, revision 3cd1cf2,
    src/open_clip/loss.py, `get_tec_loss`): the labels are 1 where the caption's own logit is
    column 0. A later revision has `intra_modal`. An absent negative has a logit there and none
    here, so that the first that exists takes its place.

    Args:
        right: [m], logits of the images and their captions.
        wrong: [m, N], of the captions and all N negatives of the batch.
        valid: [N], bool: the negative exists.

    Returns:
        Scalar, mean over captions; 0 where no negative exists.
    """
    if not valid.any():
        return right.sum() * 0.0
    first = wrong[:, int(valid.int().argmax())]
    return (_against(right, wrong, valid) - first).mean()


def _against(right: Tensor, wrong: Tensor, valid: Tensor) -> Tensor:
    """Log of the sum [m] over the exponentials of a row's logits."""
    logits = torch.cat([right[:, None], wrong.masked_fill(~valid, -torch.inf)], dim=1)
    return logits.logsumexp(dim=1)
