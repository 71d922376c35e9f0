"""Images that the served model decodes and refuses, and its limits."""

import base64
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock
from urllib.parse import quote

import pandas as pd
import pytest
import torch
from PIL import Image
from tests.registry.asked import embedded, encoded

from compo_pipeline.data.images import decoding
from compo_pipeline.models.loading import load
from compo_pipeline.registry import model
from compo_pipeline.registry.model import InvalidRequest, RequestLimits, read_image

LIMITS = RequestLimits()


@pytest.fixture
def served(tiny_clip: Path) -> model.ImageTextModel:
    served = model.ImageTextModel()
    context: Any = SimpleNamespace(artifacts={"model": str(tiny_clip)})
    served.load_context(context)
    return served


RED = Image.new("RGB", (5, 3), "red")
GRADIENT = Image.merge(
    "RGB", [Image.linear_gradient("L").rotate(turn).resize((40, 30)) for turn in (0, 90, 180)]
)


def turned(orientation: int, image: Image.Image = GRADIENT, kind: str = "JPEG") -> str:
    exif = Image.Exif()
    exif[0x0112] = orientation
    return encoded(image, kind, exif=exif)


def test_a_turned_image_stands_upright() -> None:
    assert read_image(turned(6), LIMITS).size == (30, 40)


def test_the_same_image_in_every_form(tmp_path: Path) -> None:
    content = b"P6 5 3 255\n" + b"\xff\xfb\xbf" * 15
    text, safe = base64.b64encode(content).decode(), base64.urlsafe_b64encode(content).decode()
    assert "/" in text and "_" in safe and text.endswith("=")
    (tmp_path / "red.png").write_bytes(content)
    wrapped = "\n".join(text[at : at + 76] for at in range(0, len(text), 76))
    rooted = replace(LIMITS, root=tmp_path)
    unpadded = safe.rstrip("=")
    uris = [f"data:image/png;base64,{text}", f" DATA:image/png;BASE64,\n{unpadded}"]
    uris.append(f"data:;base64,{quote(text, safe='')}")
    files = "red.png", str(tmp_path / "red.png")
    for form in (text, wrapped, safe, unpadded, *uris, *files):
        image = read_image(form, rooted)
        assert (image.size, image.getpixel((0, 0))) == ((5, 3), (255, 251, 191))


@pytest.mark.parametrize("value", ["../red.png", "link.png", "{root}/../red.png", "folder", "a\0b"])
def test_paths_that_leave_the_root_are_refused(value: str, tmp_path: Path) -> None:
    root = tmp_path / "root"
    (root / "folder").mkdir(parents=True)
    (tmp_path / "red.png").write_bytes(base64.b64decode(encoded(RED)))
    (root / "link.png").symlink_to(tmp_path / "red.png")
    with pytest.raises(InvalidRequest):
        read_image(value.format(root=root), replace(LIMITS, root=root))


def test_without_a_root_no_path_is_read(tmp_path: Path) -> None:
    (tmp_path / "red.png").write_bytes(base64.b64decode(encoded(RED)))
    with pytest.raises(InvalidRequest, match="below COMPO_CLIP_IMAGE_ROOT .which is not set"):
        read_image(str(tmp_path / "red.png"), LIMITS)


def test_bomb_is_refused_before_it_is_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    bomb = encoded(Image.new("1", (9000, 9000)))
    monkeypatch.setattr("PIL.ImageFile.ImageFile.load", pytest.fail)
    with pytest.raises(InvalidRequest, match="9000 x 9000 pixels, at most 50000000"):
        read_image(bomb, LIMITS)


def test_no_tiff_is_read_here_or_in_training(tmp_path: Path) -> None:
    """Whole tiles of it are unpacked, whatever the image's size."""
    tiff = encoded(RED, "TIFF")
    with pytest.raises(InvalidRequest, match="not an image, expected one of"):
        read_image(tiff, LIMITS)
    (tmp_path / "a.tiff").write_bytes(base64.b64decode(tiff))
    with pytest.raises(decoding.ImageError, match="not one of JPEG"):
        decoding.load(tmp_path, "a.tiff", decoding.Limits())


@pytest.mark.parametrize("as_file", [True, False])
def test_oversize_is_refused_unread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, as_file: bool
) -> None:
    (tmp_path / "red.png").write_bytes(base64.b64decode(encoded(RED)))
    monkeypatch.setattr(Path, "read_bytes", pytest.fail)
    value = "red.png" if as_file else encoded(RED)
    with pytest.raises(InvalidRequest, match="bytes, at most 50 are read"):
        read_image(value, RequestLimits(bytes=50, root=tmp_path))


def test_rows_keep_their_order_and_equal_images_are_decoded_once(
    served: model.ImageTextModel, tiny_clip: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    decoding = Mock(wraps=read_image)
    monkeypatch.setattr(model, "read_image", decoding)
    monkeypatch.setattr(model, "CHUNK", 2)
    images = [Image.new("RGB", (9, 9), colour) for colour in ("red", "lime", "blue")]
    texts = ["a red square", "a cat"]
    pairs = [(0, 0), (1, 1), (2, 0), (0, 1), (1, 0)]
    rows = {"image": [encoded(images[i]) for i, _ in pairs], "text": [texts[k] for _, k in pairs]}
    table = pd.DataFrame(rows, index=[7, 3, 5, 1, 9])
    scores = served.predict(SimpleNamespace(), table)  # type: ignore[arg-type]
    u, t = embedded(load(tiny_clip), images, texts)
    expected = [(u @ t.T)[i, k].item() for i, k in pairs]
    assert scores["similarity"].tolist() == pytest.approx(expected, abs=1e-6)
    assert scores.index.tolist() == [7, 3, 5, 1, 9]
    assert decoding.call_count == 3


def ask(served: model.ImageTextModel) -> Callable[..., pd.DataFrame]:
    return lambda table, **params: served.predict(SimpleNamespace(), pd.DataFrame(table), params)  # type: ignore[arg-type]


def test_tokenizer_forgets_words_beyond_its_room_and_keeps_its_own(
    served: model.ImageTextModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(model, "MAX_CACHED_WORDS", 10)
    texts = [f"word{'abcdefghijklmnop'[k]}x and <end_of_text>" for k in range(16)]
    before = ask(served)({"text": texts}, task="embed")
    assert len(served.tokenize.cache) == 10
    assert list(served.tokenize.cache)[:2] == ["<start_of_text>", "<end_of_text>"]
    assert ask(served)({"text": texts}, task="embed").equals(before)


def test_what_makes_gigabytes_of_text_is_refused_before_it_is_made(
    served: model.ImageTextModel,
) -> None:
    image = {"image": [encoded(RED)]}
    long = {"labels": ["x" * 100_000], "templates": ["a {}"] * 1000}
    with pytest.raises(InvalidRequest, match="the texts have 100004000 characters, at most 200000"):
        ask(served)(image, task="classify", **long)
    with pytest.raises(InvalidRequest, match="needs one {}"):
        ask(served)(image, task="classify", labels=["x"], templates=["{}" * 100])


@pytest.mark.parametrize(
    ("params", "row"),
    [
        ({"task": "rank", "texts": ["猫 " * 50]}, 24 + 50 * 7 + 4),
        ({"task": "classify", "labels": ["cat", "dachshund"]}, 2 * 24 + 11),
    ],
    ids=lambda part: str(part)[:17],
)
def test_answers_are_bounded(
    served: model.ImageTextModel, params: dict[str, Any], row: int
) -> None:
    images = {"image": [encoded(RED)] * 3}
    served.limits = replace(LIMITS, answer=3 * row)
    found = ask(served)(images, **params)
    assert len(json.dumps(found.to_dict("records"))) < 3 * (row + len(" label probability ") + 80)
    served.limits = replace(LIMITS, answer=3 * row - 1)
    message = f"the answer would have about {3 * row} bytes, at most {3 * row - 1} are sent"
    with pytest.raises(InvalidRequest, match=message):
        ask(served)(images, **params)


def test_templates_are_filled_in_as_they_stand(served: model.ImageTextModel) -> None:
    image = {"image": [encoded(RED)]}
    odd = ask(served)(image, task="classify", labels=["{0.__class__}", "b"], templates=["{} {a}"])
    plain = ask(served)(image, task="score", texts=["{0.__class__} {a}", "b {a}"])
    scale = served.model.logit_scale.exp().item()
    expected = torch.tensor(plain["similarities"][0]).mul(scale).softmax(0).tolist()
    assert odd["probabilities"][0] == pytest.approx(expected, abs=1e-5)
