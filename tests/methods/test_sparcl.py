"""SPARCL's loss is that of its parts, on what there is."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from tests.methods.conftest import Embeddings

from compo_pipeline.losses import margin, sextuple
from compo_pipeline.losses.margin import Margins
from compo_pipeline.losses.negclip import negclip
from compo_pipeline.methods.clip import control_of
from compo_pipeline.methods.counterfactual_pairs import PairsBatch
from compo_pipeline.methods.sparcl import Sparcl, SparclObjective, SparclWeights
from compo_pipeline.methods.triplet_clip import TripletClip, TripletClipObjective

TABLE = F.normalize(torch.randn(40, 6, generator=torch.Generator().manual_seed(0)), dim=-1)
ENCODER: Any = Embeddings(TABLE, TABLE, 20.0, -9.0)


def batch(images: list[list[int]], texts: list[list[int]]) -> PairsBatch:
    """What there is, as 0 and 1; embeddings are numbered through, texts from 20 on."""
    seen, told = (torch.tensor(rows, dtype=torch.bool) for rows in (images, texts))
    tokens = torch.arange(20, 20 + int(told.sum()))[:, None]
    return PairsBatch(torch.arange(int(seen.sum())), tokens, seen, told)


WHOLE = batch([[1] * 4] * 3, [[1] * 4] * 3)
PARTS = batch([[1] * 4, [1, 0, 0, 0], [0, 0, 1, 0]], [[1] * 4, [1, 1, 0, 0], [0, 0, 1, 1]])


def sparcl(**objective: Any) -> Sparcl:
    return Sparcl(Sparcl.views_type(), SparclObjective(**objective))


@pytest.mark.parametrize("part", [WHOLE, PARTS])
def test_the_two_losses_and_their_weights(part: PairsBatch) -> None:
    margins = Margins(m0=1.0, beta=-1.5)
    chosen = sparcl(weights=SparclWeights(2.0, 0.5), margins=margins, bias=-9.0)
    terms = chosen.loss(ENCODER, part)
    there = part.images_there, part.texts_there
    seen, told = (torch.zeros(3, 4, 6) for _ in range(2))
    seen[there[0]], told[there[1]] = ENCODER.images(part.images), ENCODER.texts(part.texts)
    logits = sextuple.similarities(seen, told, ENCODER.scale)
    assert {name: weight for name, (_, weight) in terms.items()} == {
        "contrastive": 2.0,
        "margin": 0.5,
    }
    assert terms["contrastive"].value == pytest.approx(
        sextuple.contrast(logits, ENCODER.bias, *there)
    )
    assert terms["margin"].value == pytest.approx(margin.ranking(logits, *there, margins))
    assert terms["margin"].value > 0


def test_a_softmax_with_ranked_pairs_at_a_scale_of_its_own() -> None:
    """It needs no bias, and what stands beside it is plain CLIP."""
    chosen = sparcl(contrast="softmax", scale=7.0, weights=SparclWeights(1.0, 0.0, 0.5))
    terms = chosen.loss(ENCODER, WHOLE)
    seen, told = TABLE[:12].view(3, 4, 6), TABLE[20:32].view(3, 4, 6)
    logits, there = sextuple.similarities(seen, told, 7.0), (WHOLE.images_there, WHOLE.texts_there)
    assert terms["contrastive"].value.equal(sextuple.softmax_contrast(logits, *there))
    assert terms["pairs"] == (sextuple.pair_ranking(logits, *there), 0.5)
    assert chosen.bias is None
    assert control_of(chosen).name == "clip"
    assert control_of(sparcl()).name == "siglip"


def test_the_papers_values_are_the_defaults() -> None:
    assert SparclObjective() == SparclObjective(
        weights=SparclWeights(1.0, 0.01),
        margins=Margins(m0=0.5, beta=-2.0, gamma=4.0, alpha=10.0, adaptive=True),
        bias=-30.0,
        trains=("image", "text"),
    )
    assert not sparcl().trains_scale


def test_triplet_clip_is_negclip_both_ways() -> None:
    method = TripletClip(TripletClip.views_type(), TripletClipObjective())
    rows = batch([[1] * 4, [1, 1, 0, 1], [0] * 4], [[1] * 4, [1, 1, 1, 0], [0] * 4])
    terms = method.loss(ENCODER, rows)
    real, captions, edited = TABLE[:4], TABLE[20:24], TABLE[24:27]
    valid = torch.ones(3, dtype=torch.bool)
    assert terms["real"].value == pytest.approx(
        negclip(real, captions, edited, valid, ENCODER.scale)
    )
    # The second way knows the two rows that have a negative's text and image.
    own, every = (TABLE[4:6], edited[:2]), torch.ones(4, dtype=torch.bool)
    assert terms["synthetic"].value == pytest.approx(negclip(*own, captions, every, ENCODER.scale))
    assert [weight for _, weight in terms.values()] == [1.0, 1.0]


@pytest.mark.parametrize("negatives", [[0] * 4, [0, 1, 0, 0]])
def test_without_a_whole_negative_pair_one_way_is_left(negatives: list[int]) -> None:
    method = TripletClip(TripletClip.views_type(), TripletClipObjective())
    rows = batch([[1] * 4, [1, 0, 0, 0], [0] * 4], [[1] * 4, negatives, [0] * 4])
    terms = method.loss(ENCODER, rows)
    assert set(terms) == {"real"} and terms["real"].value.isfinite()
