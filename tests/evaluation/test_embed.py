from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from tests.evaluation.conftest import write_noise

from compo_pipeline.benchmarks.items import Item, Subtask
from compo_pipeline.core.settings import SettingsError
from compo_pipeline.evaluation import embed
from compo_pipeline.evaluation.embed import Embedder, tokenize_texts
from compo_pipeline.evaluation.settings import EvaluationSettings
from compo_pipeline.models.loading import LoadedModel, load
from compo_pipeline.models.weights import image_fingerprint

EXACT = EvaluationSettings(image_batch=2, workers=1)
LONG = " ".join(["a dog and a cat"] * 6)


@pytest.fixture
def subtasks(tmp_path: Path) -> list[Subtask]:
    write_noise(tmp_path, 3)
    (tmp_path / "broken.png").write_bytes(b"")
    names = ("0.png", "1.png", "2.png", "broken.png", "absent.png", "../0.png")
    items = tuple(
        Item(str(k), name, ("a red cube", f"text {k}"), (LONG,)) for k, name in enumerate(names)
    )
    again = (Item("x", "0.png", ("a red cube",), ("a blue cube",)),)
    return [
        Subtask("one", "s", ("image_to_text",), tmp_path, items),
        Subtask("two", "s", ("image_to_text",), tmp_path, again),
    ]


def test_vectors_are_the_models_own_in_any_order_of_batches(
    tiny_model: Callable[..., Path], subtasks: list[Subtask], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(embed, "TEXT_BATCH", 3)
    loaded = load(tiny_model(0))
    embedded = Embedder(subtasks, EXACT)(loaded, "base")
    with torch.inference_mode():
        texts = ["a red cube", "text 1", "a blue cube", LONG]
        whole = loaded.model.encode_text(loaded.tokenize(texts), normalize=True)
        pixels = [loaded.preprocess(Image.open(subtasks[0].images / f"{k}.png")) for k in (2, 0)]
        images = loaded.model.encode_image(torch.stack(pixels), normalize=True)
    assert embedded.texts.rows_of(texts) == pytest.approx(whole.numpy(), abs=1e-5)
    paths = [str(subtasks[0].images / f"{k}.png") for k in (2, 0)]
    assert embedded.images.rows_of(paths) == pytest.approx(images.numpy(), abs=1e-5)


def count_images(loaded: LoadedModel, seen: list[int]) -> None:
    """Count the images of each batch that goes through the image tower."""
    visual: Any = loaded.model.visual
    visual.conv1.register_forward_pre_hook(lambda _, given: seen.append(len(given[0])))


def test_towers_that_differ_in_their_projection_share_one_pass_over_the_images(
    tiny_model: Callable[..., Path], subtasks: list[Subtask]
) -> None:
    first, other, elsewhere = (load(tiny_model(0)) for _ in range(3))
    with torch.no_grad():
        visual: Any = other.model.visual
        visual.proj.add_(torch.randn(visual.proj.shape, generator=torch.Generator()))
        visual = elsewhere.model.visual
        visual.class_embedding.add_(1.0)
    other, elsewhere = (
        replace(one, image_fingerprint=image_fingerprint(one.model.state_dict(), one.config))
        for one in (other, elsewhere)
    )
    embedder, seen = Embedder(subtasks, EXACT), list[int]()
    embedder(first, "first")
    for one in (other, elsewhere):
        count_images(one, seen)
    found = embedder(other, "other")
    assert seen == []
    alone = Embedder(subtasks, EXACT)(other, "other")
    assert found.images.index.keys() == alone.images.index.keys()
    names = list(alone.images.index)
    assert found.images.rows_of(names) == pytest.approx(alone.images.rows_of(names), abs=1e-6)
    assert found.unreadable == alone.unreadable
    seen.clear()
    embedder(elsewhere, "of another trunk")
    assert seen == [2, 1]


def test_images_that_cannot_be_used_are_named_with_their_reason(
    tiny_model: Callable[..., Path], subtasks: list[Subtask]
) -> None:
    root = subtasks[0].images
    embedded = Embedder(subtasks, EXACT)(load(tiny_model(0)), "base")
    reasons = {path: reason.split(":")[0] for path, reason in embedded.unreadable.items()}
    assert reasons == {
        str(root / "broken.png"): "empty",
        str(root / "absent.png"): "missing",
        str(root / "../0.png"): "out_of_root",
    }


def test_a_folder_without_a_readable_image_is_an_error(
    tiny_model: Callable[..., Path], subtasks: list[Subtask], tmp_path: Path
) -> None:
    elsewhere = replace(subtasks[1], images=tmp_path / "elsewhere")
    with pytest.raises(SettingsError, match=r"benchmarks\.images: none of .*elsewhere.*missing"):
        Embedder([subtasks[0], elsewhere], EXACT)(load(tiny_model(0)), "base")


def test_a_folder_counts_images_that_another_subtask_names_too(
    tiny_model: Callable[..., Path], subtasks: list[Subtask]
) -> None:
    folder = subtasks[0].images
    inner = (Item("a", "0.png", ("a",), ("b",)), Item("b", "absent.png", ("a",), ("b",)))
    outer = (Item("c", f"{folder.name}/0.png", ("a",), ("b",)),)
    named = [
        replace(subtasks[0], items=inner),
        replace(subtasks[1], images=folder.parent, items=outer),
    ]
    embedded = Embedder(named, EXACT)(load(tiny_model(0)), "base")
    assert list(embedded.unreadable) == [str(folder / "absent.png")]


@pytest.mark.parametrize(
    ("tower", "named"), [("visual.conv1.weight", r"0\.png"), ("text_projection", "a .* cube")]
)
def test_an_embedding_that_is_not_finite_is_an_error_that_names_the_input(
    tiny_model: Callable[..., Path], subtasks: list[Subtask], tower: str, named: str
) -> None:
    loaded = load(tiny_model(0))
    with torch.no_grad():
        loaded.model.get_parameter(tower).fill_(float("nan"))
    with pytest.raises(SettingsError, match=f"{named}.* under 'base' is not finite"):
        Embedder(subtasks[1:], EXACT)(loaded, "base")


def test_stored_embeddings_are_not_computed_again(
    tiny_model: Callable[..., Path],
    subtasks: list[Subtask],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    loaded = load(tiny_model(0))
    encoded: list[int] = []
    for name in ("pool_images", "encode_texts"):
        original = getattr(embed, name)

        def counted(model: Any, batch: torch.Tensor, _inner: Any = original) -> torch.Tensor:
            encoded.append(len(batch))
            found: torch.Tensor = _inner(model, batch)
            return found

        monkeypatch.setattr(embed, name, counted)
    store = tmp_path / "embeddings"
    Embedder(subtasks[1:], EXACT, store)(loaded, "base")
    assert sum(encoded) == 1 + 2
    encoded.clear()
    found = Embedder(subtasks, EXACT, store)(loaded, "base")
    assert sum(encoded) == 2 + 4  # two more images, four more texts
    encoded.clear()
    again = Embedder(subtasks, EXACT, store)(loaded, "base")
    assert not encoded and np.array_equal(again.images.rows, found.images.rows)
    assert again.texts.index.keys() == found.texts.index.keys()
    # Other weights have embeddings of their own.
    other = load(tiny_model(1))
    assert not np.allclose(
        Embedder(subtasks, EXACT, store)(other, "o").texts.rows, again.texts.rows
    )


def test_texts_of_equal_tokens_have_one_embedding(
    tiny_model: Callable[..., Path], subtasks: list[Subtask]
) -> None:
    item = Item("x", "0.png", ("A red CUBE",), ("a red cube",))
    embedded = Embedder([replace(subtasks[1], items=(item,))], EXACT)(load(tiny_model(0)), "base")
    assert np.array_equal(
        embedded.texts.rows_of(["A red CUBE"]), embedded.texts.rows_of(["a red cube"])
    )
    assert len(embedded.texts.rows) == 1


def test_truncated_texts_are_those_that_lost_a_token(tiny_model: Callable[..., Path]) -> None:
    loaded = load(tiny_model(0))
    # The context holds 16 ids: start, 14 words, end.
    exact, over, short = " ".join(["dog"] * 14), " ".join(["dog"] * 15), "dog"
    tokens = tokenize_texts([exact, over, short], loaded.tokenize)
    assert tokens.truncated.tolist() == [False, True, False]
