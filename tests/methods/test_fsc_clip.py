"""FSC-CLIP's sum of losses: each gets what the paper's equations say."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from tests.methods.conftest import Embeddings
from torch import Tensor

from compo_pipeline.losses import contrastive
from compo_pipeline.losses.calibrated import calibrated_loss
from compo_pipeline.losses.local_alignment import local_scores
from compo_pipeline.methods.fsc_clip import FscClip, FscClipObjective, FscClipViews
from compo_pipeline.methods.negclip import NegativesBatch
from compo_pipeline.models.dense import DenseImages, DenseTexts


class Encoder(Embeddings):
    """Two images of three patches, eight texts of up to four tokens, in five dimensions."""

    def __init__(self) -> None:
        draw = torch.Generator().manual_seed(0)
        self.patches, self.tokens, texts = (
            torch.randn(*shape, generator=draw, dtype=torch.float64)
            for shape in ((2, 3, 5), (8, 4, 5), (8, 5))
        )
        self.mask = torch.arange(4) < torch.tensor([4, 2, 3, 1, 4, 4, 2, 3])[:, None]
        images = self.patches.mean(1)
        super().__init__(F.normalize(images, dim=-1), F.normalize(texts, dim=-1), 5.0)

    def dense_images(self, images: Tensor) -> DenseImages:
        return DenseImages(self.images(images), self.patches[images])

    def dense_texts(self, tokens: Tensor) -> DenseTexts:
        ids = tokens[:, 0]
        return DenseTexts(self.texts(tokens), self.tokens[ids], self.mask[ids])


@pytest.mark.parametrize("norm", ["minmax", "softmax"])
@pytest.mark.parametrize(("gamma", "beta"), [(0.0, 0.0), (2.0, 0.02)])
def test_the_terms_are_those_of_equation_11(gamma: float, beta: float, norm: Any) -> None:
    """Row 0 lacks its second negative."""
    encoder: Any = Encoder()
    valid = torch.tensor([[True, False, True], [True, True, True]])
    rows = NegativesBatch(torch.arange(2), torch.arange(8).view(2, 4, 1), valid)
    objective = FscClipObjective(gamma=gamma, beta=beta, attention=norm)
    terms = FscClip(FscClipViews(), objective).loss(encoder, rows)
    images, texts = encoder.image_table, encoder.text_table.view(2, 4, 5)
    pooled = encoder.scale * (images[:, None] * texts).sum(-1)
    tokens, mask = encoder.tokens.view(2, 4, 4, 5), encoder.mask.view(2, 4, 4)
    local = local_scores(encoder.patches, tokens, mask, encoder.scale, norm)
    expected = {
        "contrastive": (contrastive.clip(images, texts[:, 0], encoder.scale), 1.0),
        "global_hn": (calibrated_loss(pooled, valid, gamma, beta), 0.5),
        "local_hn": (calibrated_loss(local, valid, gamma, beta), 0.2),
    }
    assert terms.keys() == expected.keys()
    for name, (value, weight) in expected.items():
        torch.testing.assert_close(terms[name].value, value)
        assert terms[name].weight == weight
