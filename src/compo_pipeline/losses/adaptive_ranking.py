"""Hard negatives ranked below their caption by thresholds that grow with the model.

Shapes: m rows of a batch, K kinds of hard negatives.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def cross_modal_ranking(right: Tensor, wrong: Tensor, valid: Tensor, thresholds: Tensor) -> Tensor:
    """Mean hinge loss that keeps a negative's image logit below its caption's by a threshold.

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


def adapted_thresholds(
    right: Tensor, wrong: Tensor, valid: Tensor, thresholds: Tensor, most: float
) -> Tensor:
    """Thresholds [K] of the next step: mean gap between the logits of captions and negatives.

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
    """Cross entropy of a caption's logit with its image against its logits with hard negatives.

    Source: CE-CLIP, intra-modal contrastive loss.

    Args:
        right: [m], logits of the images and their captions.
        wrong: [m, N], of the captions and the N negatives that each is contrasted with.
        valid: [m, N], or [N] the same for all captions, bool: the negative exists.

    Returns:
        Scalar, mean over captions; one without any negative has 0.
    """
    return (_log_sum_exp(right, wrong, valid) - right).mean()


def towards_first_negative(right: Tensor, wrong: Tensor, valid: Tensor) -> Tensor:
    """Cross entropy whose target is the batch's first hard negative, as CE-CLIP published it.

    Source: CE-CLIP's code as published (Enhance-FineGrained, revision 3cd1cf2,
    src/open_clip/loss.py, `get_tec_loss`): the labels are 1 where the caption's own logit is
    column 0. The next revision has `intra_modal`; since 47cef4e the caption's own logit is no
    column. An absent negative has a logit there and none here, so that the first that exists takes
    its place.

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
    return (_log_sum_exp(right, wrong, valid) - first).mean()


def _log_sum_exp(right: Tensor, wrong: Tensor, valid: Tensor) -> Tensor:
    """Log-sum-exp [m] of each caption's own logit and its logits with valid negatives."""
    logits = torch.cat([right[:, None], wrong.masked_fill(~valid, -torch.inf)], dim=1)
    return logits.logsumexp(dim=1)
