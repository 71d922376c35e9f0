"""Images and texts as the model wants them."""

import random
import shutil
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from open_clip.tokenizer import HFTokenizer
from PIL import Image
from torchvision.transforms import RandomResizedCrop

from compo_pipeline.data.images.decoding import ImageError, Limits
from compo_pipeline.methods.contract import ImageInput
from compo_pipeline.models.loading import LoadedModel, load
from compo_pipeline.training.preprocessing import (
    ModelPreprocessor,
    crop_box,
    name_of,
    random_resized_crop,
)


@pytest.mark.parametrize(("axis", "half"), [("vertical", (32, 16)), ("horizontal", (16, 32))])
def test_halves_are_squashed(
    tiny: LoadedModel, world: Any, axis: Any, half: tuple[int, int]
) -> None:
    """Two wide images of any size become halves of one square, nothing cut off. Mean and deviation
    are the model's own, here far from ImageNet's.
    """
    names = ("s00.png", "s01.png")
    found = ModelPreprocessor(tiny, world.root).pixels(ImageInput(names, axis))
    images = [
        np.asarray(Image.open(world.root / name).resize(half, Image.Resampling.BICUBIC))
        for name in names
    ]
    pixels = np.concatenate(images, axis=("vertical", "horizontal").index(axis)) / 255
    np.testing.assert_allclose(
        found.permute(1, 2, 0).numpy(), (pixels - tiny.mean) / tiny.std, atol=1e-5
    )


def test_a_single_image_takes_the_evaluation_transform(tiny: LoadedModel, world: Any) -> None:
    reader = ModelPreprocessor(tiny, world.root)
    expected = tiny.preprocess(Image.open(world.root / "s00.png"))
    assert torch.equal(reader.pixels(ImageInput(("s00.png",))), expected)
    stacked = reader.images([ImageInput(("s00.png",)), ImageInput(("s08.png",))])
    assert stacked.shape == (2, 3, 32, 32) and torch.equal(stacked[0], expected)


def test_rows_of_features_stand_for_images(tiny: LoadedModel, world: Any) -> None:
    known = ImageInput(("s00.png",)), ImageInput(("s01.png", "s02.png"), "vertical")
    rows = {name_of(image): row for row, image in enumerate(known)}
    reader = ModelPreprocessor(tiny, world.root / "nowhere", rows)
    assert reader.images([known[1], known[0], known[1]]).tolist() == [1, 0, 1]
    with pytest.raises(KeyError):
        reader.images([ImageInput(("s02.png",))])


def test_texts_beyond_the_context_are_counted(tiny: LoadedModel, world: Any) -> None:
    reader = ModelPreprocessor(tiny, world.root)
    texts = ["a cat", *(" ".join(["cat"] * words) for words in (75, 76, 500))]
    tokens = reader.tokens(texts)
    assert tokens.shape == (4, 77) and torch.equal(tokens, tiny.tokenize(texts))
    # 75 words fit beside start and end.
    assert reader.take_cut() == {"truncated texts": 2, "tokens cut off": 1 + 425}
    assert reader.take_cut() == {"truncated texts": 0, "tokens cut off": 0}


def test_tokens_of_a_tokenizer_whose_end_is_its_padding(
    tiny: LoadedModel, world: Any, siglip_tokenizer: Path
) -> None:
    """As SigLIP's: a cut text ends with padding, too."""
    tokenize = HFTokenizer(str(siglip_tokenizer), context_length=8, clean="whitespace")
    reader = ModelPreprocessor(replace(tiny, tokenize=tokenize, context_length=8), world.root)
    words = tokenize.tokenizer("red red red red", add_special_tokens=False).input_ids
    assert len(words) == 4
    reader.tokens([" ".join(["red"] * words) for words in (1, 7, 8, 20)])
    # Seven pieces fit beside the end.
    assert reader.take_cut() == {"truncated texts": 2, "tokens cut off": 1 + 13}


def test_counterfactuals_are_read_below_a_folder_of_their_own(
    tiny: LoadedModel, world: Any, tmp_path: Path
) -> None:
    shutil.copy(world.root / "s01.png", tmp_path / "s00.png")
    reader = ModelPreprocessor(tiny, world.root, counterfactual_images=tmp_path)
    real, made = (
        reader.pixels(ImageInput(("s00.png",), counterfactual=made)) for made in (False, True)
    )
    assert torch.equal(made, reader.pixels(ImageInput(("s01.png",))))
    assert not torch.equal(made, real)
    with pytest.raises(ImageError, match="out_of_root"):
        reader.pixels(ImageInput(("../s00.png",), counterfactual=True))
    with pytest.raises(ImageError, match=r"missing.*kedro run --pipelines=counterfactuals,views"):
        reader.pixels(ImageInput(("s02.png",), counterfactual=True))
    with pytest.raises(ValueError, match="no folder of them was given"):
        ModelPreprocessor(tiny, world.root).pixels(ImageInput(("s00.png",), counterfactual=True))


def test_what_may_be_read_is_limited(
    tiny: LoadedModel, world: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ImageError, match="out_of_root"):
        ModelPreprocessor(tiny, world.root).pixels(ImageInput(("../s00.png",)))
    monkeypatch.setattr("compo_pipeline.training.preprocessing.ACCEPTED", Limits(max_pixels=100))
    small = ModelPreprocessor(tiny, world.root)
    for image in (ImageInput(("s00.png",)), ImageInput(("s00.png", "s01.png"), "vertical")):
        with pytest.raises(ImageError, match="oversized"):
            small.pixels(image)


def test_random_crops_are_those_of_the_step(tiny: LoadedModel, world: Any) -> None:
    """The same in any process, whatever was read before; another in another step or run."""
    image = ImageInput((world.captions[0].image,))
    readers = [ModelPreprocessor(tiny, world.root, crop_scale=(0.3, 0.9)) for _ in range(2)]

    def read(reader: ModelPreprocessor, seed: int, step: int) -> torch.Tensor:
        reader.set_step(seed, step)
        return reader.pixels(image)

    first = read(readers[0], 0, 3)
    readers[1].pixels(ImageInput((world.captions[1].image,)))
    assert torch.equal(first, read(readers[1], 0, 3)) and torch.equal(first, read(readers[0], 0, 3))
    assert first.shape == (3, 32, 32)
    whole = ModelPreprocessor(tiny, world.root).pixels(image)
    for other in (read(readers[0], 0, 4), read(readers[0], 1, 3), whole):
        assert not torch.equal(first, other)


def test_composites_are_never_cropped(tiny: LoadedModel, world: Any) -> None:
    names = tuple(row.image for row in world.captions[:2])
    image = ImageInput(names, "vertical")
    cropping = ModelPreprocessor(tiny, world.root, crop_scale=(0.3, 0.9))
    assert torch.equal(cropping.pixels(image), ModelPreprocessor(tiny, world.root).pixels(image))


WORDS = ("a", "red", "cat", "cat's", "t-shirt", "2011", "naïve", "x", "dog", "straße", "at", "5pm")
BETWEEN = (" ", " ", ", ", "  ", ". ", " - ", '" ', "! ")


@st.composite
def captions_with_spans(draw: st.DrawFn) -> tuple[list[str], list[int], list[tuple[int, int]]]:
    """Captions, and runs of their words."""
    texts, owners, spans = [], [], []
    for owner in range(draw(st.integers(1, 3))):
        text, places = draw(st.sampled_from(["", '"', " "])), []
        size = draw(st.sampled_from([1, 4, 12, 50]))  # those of 50 words do not fit
        for word in draw(st.lists(st.sampled_from(WORDS), min_size=size, max_size=size)):
            places.append((len(text), len(text) + len(word)))
            text += word + draw(st.sampled_from(BETWEEN))
        texts.append(text)
        for _ in range(draw(st.integers(0, 3))):
            first = draw(st.integers(0, len(places) - 1))
            last = draw(st.integers(first, min(first + 4, len(places) - 1)))
            owners.append(owner)
            spans.append((places[first][0], places[last][1]))
    return texts, owners, spans


@pytest.fixture(scope="module")
def clip_reader(tiny_clip: Path) -> ModelPreprocessor:
    return ModelPreprocessor(load(tiny_clip), tiny_clip)


@pytest.fixture(scope="module")
def unigram_reader(tiny_clip: Path, unigram: Path) -> Callable[[str], ModelPreprocessor]:
    """Reader of texts that are cleaned in a way and cut to 40 pieces."""
    model = load(tiny_clip)

    @cache
    def make(clean: str) -> ModelPreprocessor:
        tokenize = HFTokenizer(str(unigram), context_length=40, clean=clean)
        return ModelPreprocessor(replace(model, tokenize=tokenize, context_length=40), unigram)

    return make


def letters(text: str) -> str:
    return "".join(text.split())


@given(drawn=captions_with_spans())
def test_clips_tokens_of_a_span_spell_it(clip_reader: ModelPreprocessor, drawn: Any) -> None:
    texts, owners, spans = drawn
    found, tokens = clip_reader.spans(texts, owners, spans), clip_reader.tokens(texts)
    clip_reader.take_cut()
    assert found.shape == (len(spans), 77) and found.dtype == torch.bool
    tokenizer: Any = clip_reader.tokenize
    for row, owner, (start, end) in zip(found, owners, spans, strict=True):
        spelled = letters(tokenizer.decode(tokens[owner][row].tolist()))
        # <sot>, the beginning up to the span's end, <eot>: all of it fits, or none of the span.
        fits = len(tokenizer.encode(texts[owner][:end])) <= 75
        assert spelled == (letters(texts[owner][start:end]) if fits else "")


@given(drawn=captions_with_spans())
@example(drawn=(["a a, a, a, cat, naïve, naïve, dog, dog  dog - dog a "], [0], [(23, 49)]))
def test_a_unigram_tokenizers_tokens_of_a_span_spell_it(
    unigram_reader: Callable[[str], ModelPreprocessor], drawn: Any
) -> None:
    reader: Any = unigram_reader("whitespace")
    texts, owners, spans = drawn
    found, tokens = reader.spans(texts, owners, spans), reader.tokens(texts)
    inner = reader.tokenize.tokenizer
    for row, owner, (start, end) in zip(found, owners, spans, strict=True):
        spelled = letters(inner.decode(tokens[owner][row]))
        fits = len(inner(" ".join(texts[owner][:end].split())).input_ids) <= 40
        written = letters(texts[owner][start:end])
        for letter in "ïß":  # not among its pieces
            written = written.replace(letter, "<unk>")
        assert spelled == (written if fits else "")


def test_a_span_under_a_tokenizer_that_drops_marks(
    unigram_reader: Callable[[str], ModelPreprocessor],
) -> None:
    reader: Any = unigram_reader("canonicalize")
    text = 'a "red" cat, and a dog\'s t-shirt.'
    runs = ['"red" cat', "red", "a dog's t-shirt"]
    spans = [(text.index(run), text.index(run) + len(run)) for run in runs]
    found, tokens = reader.spans([text], [0] * len(runs), spans), reader.tokens([text])
    inner = reader.tokenize.tokenizer
    assert [inner.decode(tokens[0][row]) for row in found] == ["red cat", "red", "a dogs tshirt"]


def test_spans_of_whole_texts_and_of_nothing(clip_reader: ModelPreprocessor) -> None:
    found = clip_reader.spans(["a cat", "a dog"], [1, 0, 0], [(0, 5), (0, 5), (2, 2)])
    assert [row.nonzero()[:, 0].tolist() for row in found] == [[1, 2], [1, 2], []]
    assert clip_reader.spans(["a cat"], [], []).shape == (0, 77)
    assert not any(clip_reader.take_cut().values())


SCALE = (0.9, 1.0)
SIDES = st.integers(1, 3000)


def noise(width: int = 61, height: int = 47) -> Image.Image:
    pixels = np.random.default_rng(0).integers(0, 256, (height, width, 3), dtype=np.uint8)
    return Image.fromarray(pixels)


def test_the_part_is_cut_out_before_it_is_resized_bicubic() -> None:
    box = crop_box(61, 47, SCALE, random.Random(3))
    expected = noise().crop(box).resize((32, 32), Image.Resampling.BICUBIC)
    cropped = random_resized_crop(noise(), 32, SCALE, random.Random(3))
    assert (cropped.size, cropped.mode) == ((32, 32), "RGB")
    assert cropped == expected
    # Resizing with a box would let in pixels from beyond the crop.
    assert cropped != noise().resize((32, 32), Image.Resampling.BICUBIC, box=box)


@given(width=SIDES, height=SIDES, seed=st.integers(0, 99), least=st.floats(0.01, 1))
def test_a_crop_lies_inside_the_image(width: int, height: int, seed: int, least: float) -> None:
    left, upper, right, lower = crop_box(width, height, (least, 1.0), random.Random(seed))
    assert 0 <= left < right <= width
    assert 0 <= upper < lower <= height


@pytest.mark.parametrize(
    ("width", "height", "box"),
    [(400, 100, (133, 0, 266, 100)), (100, 400, (0, 133, 100, 266)), (1, 1, (0, 0, 1, 1))],
)
def test_a_panorama_gives_its_centre(
    width: int, height: int, box: tuple[int, int, int, int]
) -> None:
    assert crop_box(width, height, SCALE, random.Random(0)) == box


@pytest.mark.parametrize("shape", [(640, 480), (480, 640), (300, 300)])
def test_distribution_is_that_of_torchvision(shape: tuple[int, int]) -> None:
    """Mean and deviation of every edge, over draws of both."""
    width, height = shape
    rng, draws = random.Random(0), 4000
    own = np.array([crop_box(width, height, SCALE, rng) for _ in range(draws)])
    blank = torch.empty(3, height, width)
    theirs = []
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        for _ in range(draws):
            upper, left, down, across = RandomResizedCrop.get_params(
                blank, list(SCALE), [3 / 4, 4 / 3]
            )
            theirs.append((left, upper, left + across, upper + down))
    spread = np.array(theirs).std(axis=0)
    assert np.abs(own.mean(axis=0) - np.mean(theirs, axis=0)).max() < 5 * spread.max() / draws**0.5
    assert own.std(axis=0) == pytest.approx(spread, rel=0.12)
