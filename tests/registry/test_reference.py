"""The reference of a version is what its model gives, caption by caption."""

import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image

from compo_pipeline.core.records import Caption
from compo_pipeline.evaluation.settings import EvaluationSettings
from compo_pipeline.models.loading import LoadedModel, load
from compo_pipeline.registry.reference import read_reference, write_reference

IMAGES = 9
SETTINGS = EvaluationSettings(device="cpu", workers=1, image_batch=4)
SENTENCES = ("a red cube", "Two cats!", "a dog is near the small blue house", "a red cube")


def caption(number: int, sentences: tuple[str, ...], split: str, name: str = "") -> Caption:
    names = f"sample-{name or number}", f"id-{number}", f"picture-{number}.png"
    return Caption(*names, 32, 32, sentences, "val", split)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("images")
    for number in range(IMAGES):
        pixels = np.random.default_rng(number).integers(0, 255, (32, 32, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / f"picture-{number}.png")
    return folder


@pytest.fixture(scope="module")
def model(tiny_model: Callable[..., Path]) -> LoadedModel:
    return load(tiny_model(seed=4))


@pytest.fixture
def captions() -> list[Caption]:
    """Two of training, the others held out; an image has a second row, two share a sentence."""
    held_out = [
        caption(number, (SENTENCES[number % len(SENTENCES)], "unused"), ("val", "test")[number % 2])
        for number in range(2, IMAGES)
    ]
    training = [caption(0, ("A red cat", "a cat, a cat"), "train"), caption(1, ("dogs",), "train")]
    return [*training, *held_out, caption(2, ("another row of it",), "val", "again")]


@torch.inference_mode()
def embedded(model: LoadedModel, root: Path, row: Caption) -> tuple[torch.Tensor, torch.Tensor]:
    with Image.open(root / row.image) as image:
        pixels = model.preprocess(image.convert("RGB"))[None]
    u = model.model.encode_image(pixels, normalize=True)[0]
    return u, model.model.encode_text(model.tokenize([row.sentences[0]]), normalize=True)[0]


def test_a_row_is_what_the_model_gives_of_an_image_and_its_caption(
    model: LoadedModel, root: Path, captions: list[Caption], tmp_path: Path
) -> None:
    write_reference(tmp_path, model, captions, root, 100, SETTINGS)
    assert read_reference(tmp_path).counts
    rows = pq.read_table(tmp_path / "evidence" / "reference.parquet").to_pylist()
    expected = captions[2:-1]
    assert len(rows) == len(expected) == IMAGES - 2
    pairs = [embedded(model, root, row) for row in expected]
    images = np.array([row["image"] for row in rows], dtype=np.float32)
    for number, row in enumerate(expected):
        u, t = pairs[number]
        (place,) = np.flatnonzero(np.abs(images - u.numpy()).max(axis=1) < 1e-3)
        found, text = rows[place], row.sentences[0]
        assert np.abs(np.array(found["text"], dtype=np.float32) - t.numpy()).max() < 1e-3
        assert found["words"] == text.count(" ") + 1
        trained = {"a", "red", "cat", "dogs"}
        assert found["unknown_words"] == len(
            [word for word in re.findall("[a-z]+", text.lower()) if word not in trained]
        )
        # Every text fits; the end of a text has the largest id.
        assert found["tokens"] == int(model.tokenize([text])[0].argmax()) + 1


def test_words_are_those_of_the_training_captions(
    model: LoadedModel, root: Path, captions: list[Caption], tmp_path: Path
) -> None:
    write_reference(tmp_path, model, captions, root, 100, SETTINGS)
    file = tmp_path / "evidence" / "words.parquet"
    found = {row["word"]: row["count"] for row in pq.read_table(file).to_pylist()}
    text = " ".join(sentence for row in captions[:2] for sentence in row.sentences).lower()
    assert found == dict(Counter(re.findall("[a-z]+", text)))


def test_the_same_images_are_drawn_and_none_is_named(
    model: LoadedModel, root: Path, captions: list[Caption], tmp_path: Path
) -> None:
    drawn = []
    for name, rows in (("all", 100), ("few", 3), ("again", 3)):
        write_reference(tmp_path / name, model, captions[:: 1 if name == "all" else -1], root,
                        rows, SETTINGS)  # fmt: skip
        content = (tmp_path / name / "evidence" / "reference.parquet").read_bytes()
        assert not re.search(rb"picture-|sample-|id-\d|cube|cats", content)
        table = pq.read_table(tmp_path / name / "evidence" / "reference.parquet")
        drawn.append({tuple(row) for row in table["image"].to_pylist()})
    whole, few, again = drawn
    assert len(few) == 3 and few == again and few < whole


def test_images_that_cannot_be_read_are_left_out(
    model: LoadedModel,
    root: Path,
    captions: list[Caption],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    lost = caption(99, ("a lost image",), "val")
    write_reference(tmp_path, model, [*captions, lost], root, 100, SETTINGS)
    table = pq.read_table(tmp_path / "evidence" / "reference.parquet")
    assert table.num_rows == IMAGES - 2
    assert "1 of 8 images of the reference sample cannot be read." in caplog.messages
