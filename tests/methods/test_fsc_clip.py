"""FSC-CLIP's sum of losses, against an oracle written from the paper's equations."""

import math

import pytest
import torch
import torch.nn.functional as F
from tests.methods.conftest import Embeddings
from torch import Tensor

from compo_pipeline.methods.fsc_clip import (
    FscClip,
    FscClipObjective,
    FscClipViews,
)
from compo_pipeline.methods.negclip import NegativesBatch
from compo_pipeline.models.dense import DenseImages, DenseTexts

SCALE = 5.0


def draw(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


class Encoder(Embeddings):
    """Two images of three patches, eight texts of up to four tokens, in five dimensions."""

    def __init__(self) -> None:
        self.patches, self.tokens = draw(2, 3, 5, seed=0), draw(8, 4, 5, seed=1)
        self.mask = torch.arange(4) < torch.tensor([4, 2, 3, 1, 4, 4, 2, 3])[:, None]
        images, texts = self.patches.mean(1), draw(8, 5, seed=2)
        super().__init__(F.normalize(images, dim=-1), F.normalize(texts, dim=-1), SCALE)

    def dense_images(self, images: Tensor) -> DenseImages:
        return DenseImages(self.images(images), self.patches[images])

    def dense_texts(self, tokens: Tensor) -> DenseTexts:
        ids = tokens[:, 0]
        return DenseTexts(self.texts(tokens), self.tokens[ids], self.mask[ids])


def batch() -> NegativesBatch:
    """Row 0 lacks its second negative."""
    valid = torch.tensor([[True, False, True], [True, True, True]])
    return NegativesBatch(torch.arange(2), torch.arange(8).view(2, 4, 1), valid)


def local_score(encoder: Encoder, image: int, text: int) -> float:
    """Eq. 6-8 with min-max weights."""
    total = 0.0
    for t in range(4):
        if encoder.mask[text, t]:
            token, patches = encoder.tokens[text, t], encoder.patches[image]
            a = [float(token @ v) for v in patches]
            weights = [(x - min(a)) / (max(a) - min(a)) for x in a]
            seen = sum(w / sum(weights) * v for w, v in zip(weights, patches, strict=True))
            total += math.exp(SCALE * float(F.cosine_similarity(seen, token, dim=0)))
    return math.log(total)


def choice(logits: list[list[float]], valid: Tensor, gamma: float, beta: float) -> float:
    """Eq. 9-10, mean over rows."""
    total = 0.0
    for row, there in zip(logits, valid.tolist(), strict=True):
        kept = [row[0], *(x for x, ok in zip(row[1:], there, strict=True) if ok)]
        p = [math.exp(x) / sum(math.exp(y) for y in kept) for x in kept]
        for k, probability in enumerate(p):
            label = (1 - beta) * (k == 0) + beta / len(p)
            total -= label * (1 - probability) ** gamma * math.log(probability)
    return total / len(logits)


@pytest.mark.parametrize(("gamma", "beta"), [(0.0, 0.0), (2.0, 0.0), (0.0, 0.1), (2.0, 0.02)])
def test_the_terms_are_the_papers(gamma: float, beta: float) -> None:
    encoder, rows = Encoder(), batch()
    method = FscClip(FscClipViews(), FscClipObjective(gamma=gamma, beta=beta))
    terms = method.loss(encoder, rows)
    images = encoder.images(rows.images)
    pooled = [
        [SCALE * float(images[i] @ encoder.text_table[4 * i + k]) for k in range(4)] for i in (0, 1)
    ]
    local = [[local_score(encoder, i, 4 * i + k) for k in range(4)] for i in (0, 1)]
    assert {name: term.weight for name, term in terms.items()} == {
        "contrastive": 1.0,
        "global_hn": 0.5,
        "local_hn": 0.2,
    }
    expected = choice(pooled, rows.valid, gamma, beta)
    assert terms["global_hn"].value.item() == pytest.approx(expected, abs=1e-9)
    expected = choice(local, rows.valid, gamma, beta)
    assert terms["local_hn"].value.item() == pytest.approx(expected, abs=1e-4)
    logits = SCALE * images @ encoder.text_table[[0, 4]].T
    target = torch.arange(2)
    both = (F.cross_entropy(logits, target) + F.cross_entropy(logits.T, target)) / 2
    assert terms["contrastive"].value.item() == pytest.approx(both.item(), abs=1e-9)
