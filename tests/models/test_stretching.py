"""`model.context_length: 248`: positions as Long-CLIP's, and short texts as they were."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import open_clip
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file
from tests.models.conftest import TEXT, VIT

from compo_pipeline.core.settings import SettingsError
from compo_pipeline.models.encoding import encode_texts
from compo_pipeline.models.loading import LoadedModel, export, load
from compo_pipeline.models.settings import LOCAL_PREFIX, ModelSettings
from compo_pipeline.models.sources import find_source
from compo_pipeline.models.weights import stretch

LONG = ModelSettings(context_length=248)
WORDS = st.text("abcdefgh !?.'", max_size=12)
TALE = "a red ball left of a blue box " * 20


@pytest.fixture(scope="module")
def base() -> LoadedModel:
    return load(ModelSettings())


@pytest.fixture(scope="module")
def stretched() -> LoadedModel:
    return load(LONG)


def test_positions_are_long_clips() -> None:
    """The first 20 as they are, every fourth of the others an old one, lines in between."""
    drawn = torch.randn(77, 8, generator=torch.Generator().manual_seed(0))
    old, found = drawn.numpy(), stretch(drawn).numpy()
    assert found.shape == (248, 8)
    np.testing.assert_array_equal(found[:20], old[:20])
    np.testing.assert_array_equal(found[20:245:4], old[20:])
    places = np.arange(225) / 4 + 20
    for column in range(8):
        line = np.interp(places, np.arange(77), old[:, column])
        np.testing.assert_allclose(found[20:245, column], line, atol=1e-6)
    # Of the authors' `kps`: positional_embedding_pre[-1] plus quarters of the last step.
    last = [old[-1] + share * (old[-1] - old[-2]) / 4 for share in (1, 2, 3)]
    np.testing.assert_allclose(found[245:], last, atol=1e-6)


def test_model_mask_and_tokenizer_have_the_length(
    base: LoadedModel, stretched: LoadedModel
) -> None:
    model = stretched.model
    assert (base.context_length, stretched.context_length, model.context_length) == (77, 248, 248)
    assert stretched.tokenize([TALE]).shape == (1, 248)
    causal = torch.full((248, 248), float("-inf")).triu(1)
    assert torch.equal(model.attn_mask, causal)  # type: ignore[arg-type]
    assert stretched.config["model_cfg"]["text_cfg"]["context_length"] == 248
    assert stretched.fingerprint != base.fingerprint
    assert stretched.image_fingerprint == base.image_fingerprint


@settings(max_examples=30, deadline=None)
@given(st.lists(WORDS, min_size=1, max_size=4))
def test_short_texts_keep_their_embeddings(
    base: LoadedModel, stretched: LoadedModel, texts: list[str]
) -> None:
    """Of at most 20 tokens, start and end included."""
    ids = base.tokenize(texts)
    assert (ids.argmax(dim=1) < 20).all()
    with torch.no_grad():
        found = encode_texts(stretched.model, stretched.tokenize(texts))
        torch.testing.assert_close(found, encode_texts(base.model, ids), atol=1e-6, rtol=0)
        whole = stretched.model.encode_text(stretched.tokenize(texts), normalize=True)  # type: ignore[operator]
    torch.testing.assert_close(whole, found, atol=1e-6, rtol=0)


def test_what_was_cut_off_is_read(base: LoadedModel, stretched: LoadedModel) -> None:
    texts = [TALE, f"{TALE} and a star"]
    with torch.no_grad():
        cut = encode_texts(base.model, base.tokenize(texts))
        read = encode_texts(stretched.model, stretched.tokenize(texts))
    assert torch.equal(cut[0], cut[1]) and (read[0] - read[1]).abs().max() > 1e-4


@pytest.mark.parametrize("text", ["clip", "custom"])
def test_nothing_but_the_text_positions_changes(
    tmp_path: Path, build: Callable[..., torch.nn.Module], text: str
) -> None:
    """Of `CLIP` and of `CustomTextCLIP`, which keeps them in its `text`."""
    state = build("tok", text).state_dict()
    model_cfg = {
        "embed_dim": 24,
        "vision_cfg": VIT,
        "text_cfg": TEXT,
        "custom_text": text != "clip",
    }
    config = {"model_cfg": model_cfg, "preprocess_cfg": {}}
    (tmp_path / "open_clip_config.json").write_text(json.dumps(config))
    save_file(state, tmp_path / "open_clip_model.safetensors")
    name = "positional_embedding" if text == "clip" else "text.positional_embedding"
    expected = {**state, name: stretch(state[name])}
    long = load(ModelSettings(f"{LOCAL_PREFIX}{tmp_path}", context_length=248)).model.state_dict()
    assert long.keys() == expected.keys()
    assert all(torch.equal(long[key], tensor) for key, tensor in expected.items())


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("ViT-B-16-SigLIP", "no_causal_mask=True"),
        ("ViT-L-14-CLIPA", "no_causal_mask=True"),
        ("roberta-ViT-B-32", "hf_model_name="),
        ("coca_ViT-B-32", "embed_cls=True"),
    ],
)
def test_other_text_towers_are_refused(name: str, reason: str) -> None:
    with pytest.raises(SettingsError, match=rf"^model\.context_length: 248 .*'{name}' .*{reason}"):
        find_source(ModelSettings(name, context_length=248))


def test_towers_of_another_length_are_refused(
    tiny_model: Callable[..., Path], stretched: LoadedModel, tmp_path: Path
) -> None:
    for folder, length in ((tiny_model(0), 16), (export(stretched, tmp_path / "long"), 248)):
        settings = ModelSettings(f"{LOCAL_PREFIX}{folder}", context_length=248)
        with pytest.raises(
            SettingsError, match=rf"^model\.context_length: .* context_length={length};"
        ):
            load(settings)


def test_open_clip_reads_the_exported_folder(
    stretched: LoadedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its own interpolation of positions would find the length as it is."""
    folder = export(stretched, tmp_path / "long")
    name = f"local-dir:{folder}"
    module, _, _ = open_clip.create_model_and_transforms(name)
    ids = open_clip.get_tokenizer(name)([TALE, "a cat"])
    assert torch.equal(ids, stretched.tokenize([TALE, "a cat"]))
    assert torch.equal(module.positional_embedding, stretched.model.positional_embedding)
    with torch.no_grad():
        expected = stretched.model.encode_text(ids)  # type: ignore[operator]
        torch.testing.assert_close(module.eval().encode_text(ids), expected)
    assert load(folder).fingerprint == stretched.fingerprint
