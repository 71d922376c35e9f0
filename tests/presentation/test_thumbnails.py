"""Images inside a page."""

import base64
import io

import pytest
from PIL import Image

from compo_pipeline.presentation.thumbnails import thumbnail


@pytest.mark.parametrize(
    ("size", "small"), [((800, 400), (100, 50)), ((40, 400), (10, 100)), ((30, 20), (30, 20))]
)
def test_a_thumbnail(size: tuple[int, int], small: tuple[int, int]) -> None:
    source = Image.new("RGB", size, "red")
    uri, width, height = thumbnail(source, 100)
    head, data = uri.split(",")
    image = Image.open(io.BytesIO(base64.b64decode(data)))
    assert head == "data:image/jpeg;base64"
    assert (width, height) == image.size == small
    assert image.getpixel((0, 0))[0] > 240
    assert source.size == size
