"""S-Neg, SVLC-R, CE-CLIP, DAC and CS-CLIP: what their views hold, and where each text goes."""

import json
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from tests.methods.conftest import Embeddings
from torch import Tensor

from compo_pipeline.core.records import Caption, Parse, View
from compo_pipeline.losses import contrastive
from compo_pipeline.losses.adaptive_ranking import cross_modal_ranking, intra_modal
from compo_pipeline.losses.calibrated import calibrated_loss
from compo_pipeline.losses.multiple_instance import multiple_instance, multiple_negatives
from compo_pipeline.losses.negclip import negclip, own_negative
from compo_pipeline.methods.ce_clip import CeClip
from compo_pipeline.methods.contract import Example, Method, ViewContext
from compo_pipeline.methods.cs_clip import CsClip
from compo_pipeline.methods.dac_mil import DacMil
from compo_pipeline.methods.sneg import Sneg
from compo_pipeline.methods.svlc_r import SvlcR

TEXT = "A brown dog chases a horse."
SOURCE = (
    "[ A/DET/DT brown/ADJ/JJ dog/NOUN/NN ] chases/VERB/VBZ [ a/DET/DT horse/NOUN/NN ] _./PUNCT/."
)
SECOND = "A small cat sits."
SECOND_SOURCE = "[ A/DET/DT small/ADJ/JJ cat/NOUN/NN ] sits/VERB/VBZ _./PUNCT/."
SCALE = torch.tensor(4.0)


def built(kind: type[Method], views: dict[str, Any] | None = None, **objective: Any) -> Any:
    return kind(kind.views_type(**(views or {})), kind.objective_type(**objective))


TEXTS = F.normalize(torch.randn(18, 4, generator=torch.Generator().manual_seed(1)), dim=-1)
# Each is near to every third text.
IMAGES = F.normalize(TEXTS[:9:3] + 0.5 * TEXTS[9::3], dim=-1)


@pytest.fixture
def rows(caption: Callable[..., Caption]) -> list[Caption]:
    return [caption("full", TEXT, SECOND), caption("bare", "Nothing.")]


@pytest.fixture
def context(tagged: Callable[[str], Parse]) -> ViewContext:
    parses = {"full": tagged(SOURCE), "bare": tagged("Nothing/PRON/NN _./PUNCT/.")}
    further = {"full": [replace(tagged(SECOND_SOURCE), sentence=1)]}
    return ViewContext(parses, "hand", 0, 0, sentences=further)


def drawn(method: Method, rows: Iterable[Caption], context: ViewContext) -> list[View]:
    return list(method.views(list(rows), context))


def collated(method: Method, rows: list[Caption], context: ViewContext, reader: Any) -> Any:
    views = drawn(method, rows, context)
    examples = [Example(row, view) for row, view in zip(rows, views, strict=True)]
    return method.collate(examples, 0, reader)


def values(method: Method, batch: Any, encoder: Embeddings | None = None) -> dict[str, float]:
    terms = method.loss(encoder or Embeddings(IMAGES, TEXTS, 4.0), batch)  # type: ignore[arg-type]
    return {name: value.item() for name, (value, _) in terms.items()}


def same(got: dict[str, float], **expected: Tensor) -> None:
    assert got == pytest.approx({name: one.item() for name, one in expected.items()}, abs=1e-6)


def batch_of(kind: type[Method], valid: Tensor, texts: int) -> Any:
    """Rows whose texts are numbered as they come."""
    method = kind.__module__
    tokens = torch.arange(3 * texts).view(3, texts, 1)
    module = __import__(method, fromlist=["x"])
    made = getattr(module, "ParaphrasedBatch", None) or module.NegativesBatch
    return made(torch.arange(3), tokens, valid)


def test_s_neg_and_where_its_negatives_go() -> None:
    valid = torch.tensor([[True, True], [False, True], [False, False]])
    batch = batch_of(Sneg, valid, 3)
    u, t = IMAGES, TEXTS[:9].view(3, 3, 4)
    choice = calibrated_loss(SCALE * torch.einsum("md,mkd->mk", u, t), valid)
    plain = contrastive.clip(u, t[:, 0], SCALE)
    same(values(built(Sneg), batch), contrastive=plain, s_neg=choice)


def test_svlc_r_contrasts_paraphrases(
    rows: list[Caption], context: ViewContext, reader: Any
) -> None:
    method = built(SvlcR)
    full, bare = drawn(method, rows, context)
    assert full.positives[0] == TEXT and full.positives[1] == "A horse is chased by a brown dog."
    assert bare.positives == ("Nothing.",) * 2
    (_, texts, valid), counts = collated(method, rows, context, reader)
    assert texts.shape[:2] == (2, 3) and valid.tolist() == [[True], [False]]
    assert counts["rows without a paraphrase"] == 1

    valid = torch.tensor([[True], [False], [True]])
    u, t = IMAGES, TEXTS[:9].view(3, 3, 4)
    choice = calibrated_loss(SCALE * torch.einsum("md,mkd->mk", u, t[:, :2]), valid)
    same(
        values(method, batch_of(SvlcR, valid, 3)),
        contrastive=negclip(u, t[:, 0], t[:, 1], valid[:, 0], SCALE),
        s_neg=choice,
        positive=contrastive.paraphrase_contrast(u, t[:, 0], t[:, 2], SCALE),
    )


def test_ce_clip_ranks_by_the_gaps_of_the_step_before() -> None:
    valid = torch.tensor([[True, True], [False, True], [True, False]])
    batch, encoder = batch_of(CeClip, valid, 3), Embeddings(IMAGES, TEXTS, 4.0)
    method = built(CeClip)
    u, t = IMAGES, TEXTS[:9].view(3, 3, 4)
    logits = SCALE * torch.einsum("md,mkd->mk", u, t)
    right, wrong = logits[:, 0], logits[:, 1:]
    negatives = t[:, 1:].flatten(0, 1)
    others = {
        "negclip": negclip(u, t[:, 0], negatives, valid.flatten(), SCALE),
        "intra_modal": intra_modal(right, SCALE * t[:, 0] @ negatives.T, valid.flatten()),
    }
    for _ in range(2):
        thresholds = encoder.memory.get("thresholds", torch.zeros(2))
        ranking = cross_modal_ranking(right, wrong, valid, thresholds)
        same(values(method, batch, encoder), ranking=ranking, **others)
    gaps = [[float(right[i] - wrong[i, k]) for i in range(3) if valid[i, k]] for k in range(2)]
    means = [min(max(sum(gap) / len(gap), 0.0), 10.0) for gap in gaps]
    assert encoder.memory["thresholds"].tolist() == pytest.approx(means) and any(means)

    own = built(CeClip, intra_modal_negatives="own")
    between = SCALE * torch.einsum("md,mkd->mk", t[:, 0], t[:, 1:])
    expected = intra_modal(right, between, valid).item()
    assert values(own, batch)["intra_modal"] == pytest.approx(expected, abs=1e-6)


def test_ce_clip_has_a_negative_of_each_kind(rows: list[Caption], context: ViewContext) -> None:
    full, bare = drawn(built(CeClip), rows, context)
    assert bare.negatives == (None,) * 4
    origins = json.loads(full.provenance)["negatives"]
    assert [one["category"] for one in origins[1:]] == ["attribute", "entity", "relation"]


def pairs_batch(method: Method) -> tuple[Any, Tensor, Tensor, Tensor]:
    """Two further texts a row, one of the last row missing; images, texts, negatives."""
    from compo_pipeline.methods.negclip import TextPairsBatch

    valid = torch.ones(2, 3, 3, dtype=torch.bool)
    valid[1, 0, 1] = valid[1, 1, 0] = False
    if isinstance(method, CsClip):
        valid[:, 2, 2] = False
    batch = TextPairsBatch(torch.arange(3), torch.arange(18).view(2, 3, 3, 1), valid)
    t, n = TEXTS[:18].view(2, 3, 3, 4)
    return batch, t, n, valid


def test_dac_on_captions_and_their_sentences() -> None:
    method = built(DacMil)
    batch, t, n, valid = pairs_batch(method)
    u, own = IMAGES, valid[1, :, 0]
    logits = SCALE * torch.stack([(u * t[:, 0]).sum(-1), (u * n[:, 0]).sum(-1)], dim=1)
    same(
        values(method, batch),
        contrastive=negclip(u, t[:, 0], n[:, 0], own, SCALE),
        s_neg=calibrated_loss(logits, own[:, None]),
        instances=multiple_instance(u, t[:, 1:], SCALE),
        instance_negatives=multiple_negatives(u, t[:, 1:], n[:, 1:], valid[1, :, 1:], SCALE),
    )


def test_dac_draws_sentences_with_negatives(
    rows: list[Caption], context: ViewContext, reader: Any
) -> None:
    method = built(DacMil, {"generators": ["negclip"], "sentences": 6})
    full, bare = drawn(method, rows, context)
    assert full.positives[0] == TEXT and set(full.positives[1:]) == {TEXT, SECOND}
    swapped = "A brown horse chases a dog."
    expected = tuple(swapped if text == TEXT else None for text in full.positives)
    assert full.negatives == expected and bare.positives == ("Nothing.",) * 7
    (_, texts, valid), counts = collated(method, rows, context, reader)
    assert texts.shape[:3] == (2, 2, 7) and valid[0].all()
    assert valid[1].tolist() == [[text is not None for text in full.negatives], [False] * 7]
    assert counts["further texts"] == 12
    assert drawn(method, rows, context._replace(sentences={}))[0].positives == full.positives
    with pytest.raises(ValueError, match="generators"):
        built(DacMil, {"generators": ["negclip", "replace"]})


def test_cs_clip_on_captions_and_units() -> None:
    method = built(CsClip)
    batch, t, n, (there, foiled) = pairs_batch(method)
    u = IMAGES
    units = [own_negative(u, t[:, k], n[:, k], there[:, k], foiled[:, k], SCALE) for k in (1, 2)]
    same(
        values(method, batch),
        captions=negclip(u, t[:, 0], n[:, 0], foiled[:, 0], SCALE),
        units=torch.stack(units).mean(),
    )


def test_cs_clip_draws_units_with_foils(
    rows: list[Caption], context: ViewContext, reader: Any
) -> None:
    method = built(CsClip, {"relations": 0.0, "units": 3})
    full, bare = drawn(method, rows, context)
    assert full.positives[0] == TEXT and len(full.positives) == len(full.negatives) == 4
    assert set(full.positives[1:]) <= {"A brown dog", "a horse"}
    relations = drawn(built(CsClip), rows, context)[0]
    assert relations.positives == (TEXT, "A brown dog chases a horse", "A brown dog chases a horse")
    assert len({*relations.positives, *relations.negatives}) >= 3
    assert (bare.positives, bare.negatives) == (("Nothing.",), (None,))
    (_, texts, valid), _ = collated(method, rows, context, reader)
    assert texts.shape[:3] == (2, 2, 4)
    assert valid[:, 1].tolist() == [[True, False, False, False], [False] * 4]
