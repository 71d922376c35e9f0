"""NegCLIP's loss gets the caption and every valid negative of the batch."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from compo_pipeline.losses.negclip import negclip
from compo_pipeline.methods.contract import Objective
from compo_pipeline.methods.negclip import NegativesBatch, NegClip, NegClipViews


class Encoder:
    """Three images, six texts: text n is token id n."""

    scale = torch.tensor(4.0)
    images_ = F.normalize(torch.randn(3, 4, generator=torch.Generator().manual_seed(0)), dim=-1)
    texts_ = F.normalize(torch.randn(6, 4, generator=torch.Generator().manual_seed(1)), dim=-1)

    def images(self, images: Tensor) -> Tensor:
        return self.images_[images]

    def texts(self, tokens: Tensor) -> Tensor:
        return self.texts_[tokens[:, 0]]


def test_captions_and_negatives_go_where_they_belong() -> None:
    """Rows alternate caption, negative; the second row has none."""
    valid = torch.tensor([[True], [False], [True]])
    batch = NegativesBatch(torch.arange(3), torch.arange(6).view(3, 2, 1), valid)
    terms = NegClip(NegClipViews(), Objective()).loss(Encoder(), batch)
    u, t = Encoder.images_, Encoder.texts_
    expected = negclip(u, t[[0, 2, 4]], t[[1, 5]], torch.ones(2).bool(), torch.tensor(4.0))
    assert list(terms) == ["negclip"]
    assert terms["negclip"].value.item() == pytest.approx(expected.item(), abs=1e-6)
