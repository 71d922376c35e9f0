"""Embeddings equal open_clip's own, though texts are cut to the longest of their batch."""

import pytest
import torch
import torch.nn.functional as F
from open_clip.model import CLIP

from compo_pipeline.models.encoding import (
    FEWEST,
    clamp_scale,
    encode_images,
    encode_texts,
    scale_of,
)
from compo_pipeline.models.loading import LoadedModel, load

SHORT = ["a red cat", "two dogs left of a very small blue cup on a table", ""]
FULL = ["word " * 90, "a cat"]
# "!" within a word is token 0, which is padding's number too.
MARKS = ["!?!?!?!? !a !b !c !d", "a"]
# Enough for groups of several lengths, and in no order.
MANY = ["a cat " * (number * 7 % 23) for number in range(2 * FEWEST)]


@pytest.fixture(scope="module")
def tiny(tiny_clip: object) -> LoadedModel:
    return load(tiny_clip)  # type: ignore[arg-type]


@pytest.mark.parametrize("texts", [SHORT, FULL, MARKS, SHORT[2:], MANY], ids=len)
def test_texts_and_their_gradients_are_open_clips(tiny: LoadedModel, texts: list[str]) -> None:
    tokens = tiny.tokenize(texts)
    found, expected = {}, {}
    for encode, gradients in (
        (encode_texts, found),
        (lambda model, ids: F.normalize(model.encode_text(ids), dim=-1), expected),
    ):
        tiny.model.zero_grad()
        embedded = encode(tiny.model, tokens)
        weights = torch.linspace(-1, 1, embedded.numel()).view_as(embedded)
        (embedded * weights).sum().backward()
        gradients["embedded"] = embedded.detach()
        for name, parameter in tiny.model.named_parameters():
            if parameter.grad is not None:
                gradients[name] = parameter.grad.clone()
    assert found.keys() == expected.keys() and len(found) > 10
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, atol=2e-6, rtol=1e-4, msg=name)
    torch.testing.assert_close(found["embedded"], expected["embedded"], atol=1e-6, rtol=0)


def test_texts_are_cut_to_the_longest(tiny: LoadedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    lengths = []
    forward = tiny.model.transformer.forward

    def watch(x: torch.Tensor, **options: torch.Tensor) -> torch.Tensor:
        lengths.append(x.shape[1])
        return forward(x, **options)

    monkeypatch.setattr(tiny.model.transformer, "forward", watch)
    encode_texts(tiny.model, tiny.tokenize(["a red cat", "a cat"]))
    encode_texts(tiny.model, tiny.tokenize(FULL))
    assert lengths == [5, 77]
    lengths.clear()
    encode_texts(tiny.model, tiny.tokenize(MANY))
    assert lengths == [24, 46]


def test_text_towers_that_see_padding_are_left_whole(tiny_clip: object) -> None:
    """Without a causal mask, or pooled at the last place, padding counts."""
    for text in ({"no_causal_mask": True}, {"pool_type": "last"}):
        config = load(tiny_clip).config["model_cfg"]  # type: ignore[arg-type]
        torch.manual_seed(0)
        model = CLIP(**{**config, "text_cfg": {**config["text_cfg"], **text}}).eval()
        tokens = load(tiny_clip).tokenize(SHORT)  # type: ignore[arg-type]
        with torch.no_grad():
            expected = F.normalize(model.encode_text(tokens), dim=-1)
            torch.testing.assert_close(encode_texts(model, tokens), expected)


def test_images_are_open_clips_in_float32(tiny: LoadedModel) -> None:
    pixels = torch.randn(3, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        expected = F.normalize(tiny.model.encode_image(pixels), dim=-1)
        assert torch.equal(encode_images(tiny.model, pixels), expected)
        with torch.autocast("cpu", torch.bfloat16):
            rounded = encode_images(tiny.model, pixels)
    assert rounded.dtype == torch.float32
    torch.testing.assert_close(rounded.norm(dim=-1), torch.ones(3))


@pytest.mark.parametrize(("value", "kept"), [(-1.0, 1.0), (3.0, 20.0855), (9.0, 100.0)])
def test_the_scale_stays_within_one_and_a_hundred(
    tiny_clip: object, value: float, kept: float
) -> None:
    model = load(tiny_clip).model  # type: ignore[arg-type]
    torch.nn.init.constant_(model.logit_scale, value)
    clamp_scale(model)
    assert scale_of(model).item() == pytest.approx(kept, rel=1e-5)
    assert scale_of(model).requires_grad
