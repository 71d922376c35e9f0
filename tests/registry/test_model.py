"""What a served model reads as a picture, and what it refuses."""

import base64
import io
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest
import torch
from PIL import Image

from compo_pipeline.models.loading import load
from compo_pipeline.registry import model


@pytest.fixture
def served(tiny_clip: Path) -> model.ImageTextModel:
    served = model.ImageTextModel()
    context: Any = SimpleNamespace(artifacts={"model": str(tiny_clip)})
    served.load_context(context)
    return served


def encoded(picture: Image.Image, kind: str = "PNG") -> str:
    buffer = io.BytesIO()
    picture.save(buffer, kind)
    return base64.b64encode(buffer.getvalue()).decode()


RED = Image.new("RGB", (5, 3), "red")


def test_the_same_picture_in_every_form(tmp_path: Path) -> None:
    text = encoded(RED)
    (tmp_path / "red.png").write_bytes(base64.b64decode(text))
    for form in (text, f"data:image/png;base64,{text}", str(tmp_path / "red.png")):
        picture = model.read_image(form)
        assert (picture.mode, picture.size, picture.getpixel((0, 0))) == (
            "RGB",
            (5, 3),
            (255, 0, 0),
        )


def test_other_modes_become_rgb() -> None:
    assert model.read_image(encoded(RED.convert("P"))).mode == "RGB"


@pytest.mark.parametrize("value", ["nowhere/red.png", "not base64!", "data:image/png;base64,@@"])
def test_what_is_no_picture_is_refused(value: str) -> None:
    with pytest.raises(ValueError, match="neither base64, nor a data URI, nor the path of a file"):
        model.read_image(value)


def test_text_in_base64_is_no_picture() -> None:
    with pytest.raises(ValueError, match="cannot be decoded"):
        model.read_image(base64.b64encode(b"hello").decode())


def test_truncated_picture_is_refused() -> None:
    noise = Image.effect_noise((200, 200), 50)
    half = base64.b64decode(encoded(noise, "JPEG"))[:2000]
    with pytest.raises(ValueError, match="cannot be decoded"):
        model.read_image(base64.b64encode(half).decode())


def test_bomb_is_refused_before_it_is_decoded() -> None:
    bomb = encoded(Image.new("1", (9000, 9000)))
    with pytest.raises(ValueError, match="9000 x 9000 pixels; at most 50000000"):
        model.read_image(bomb)


@pytest.mark.parametrize("as_file", [True, False])
def test_oversize_is_refused_unread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, as_file: bool
) -> None:
    monkeypatch.setattr(model, "MAX_BYTES", 50)
    (tmp_path / "red.png").write_bytes(base64.b64decode(encoded(RED)))
    value = str(tmp_path / "red.png") if as_file else encoded(RED)
    with pytest.raises(ValueError, match="bytes; at most 50 are read"):
        model.read_image(value)


def test_long_values_are_shortened_in_errors() -> None:
    with pytest.raises(ValueError, match="cannot be decoded") as refusal:
        model.read_image("A" * 4000)
    assert len(str(refusal.value)) < 300


def test_rows_keep_their_order_and_equal_pictures_are_decoded_once(
    served: model.ImageTextModel, tiny_clip: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    decoded: list[str] = []
    read = model.read_image

    def counting(value: str) -> Image.Image:
        decoded.append(value)
        return read(value)

    monkeypatch.setattr(model, "read_image", counting)
    monkeypatch.setattr(model, "CHUNK", 2)
    pictures = [Image.new("RGB", (9, 9), colour) for colour in ("red", "lime", "blue")]
    texts = ["a red square", "a cat"]
    pairs = [(0, 0), (1, 1), (2, 0), (0, 1), (1, 0)]
    table = pd.DataFrame(
        {
            "image": [encoded(pictures[i]) for i, _ in pairs],
            "text": [texts[k] for _, k in pairs],
        },
        index=[7, 3, 5, 1, 9],
    )

    scores = served.predict(SimpleNamespace(), table)  # type: ignore[arg-type]

    loaded = load(tiny_clip)
    with torch.no_grad():
        pixels = torch.stack([loaded.preprocess(picture) for picture in pictures])
        u = loaded.model.encode_image(pixels, normalize=True)
        t = loaded.model.encode_text(loaded.tokenize(texts), normalize=True)
    expected = [(u @ t.T)[i, k].item() for i, k in pairs]
    assert scores["similarity"].tolist() == pytest.approx(expected, abs=1e-6)
    assert scores.index.tolist() == [7, 3, 5, 1, 9]
    assert len(decoded) == 3
