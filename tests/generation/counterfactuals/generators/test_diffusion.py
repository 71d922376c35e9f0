"""The diffusers generator on a tiny random pipeline that is built here."""

import logging
import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from compo_pipeline.core.settings import SettingsError, parse
from compo_pipeline.data.images import style as vgg
from compo_pipeline.generation.counterfactuals.contract import ImageRequest
from compo_pipeline.generation.counterfactuals.generators.diffusion import DiffusionGenerator
from compo_pipeline.generation.counterfactuals.settings import (
    DiffusionAdainSettings,
    DiffusionSettings,
)

diffusers = pytest.importorskip("diffusers")
transformers = pytest.importorskip("transformers")

WIDTH, LENGTH = 16, 12  # of the tiny pipeline's prompts


def processor() -> Any:
    return transformers.CLIPImageProcessor(
        size={"shortest_edge": 32}, crop_size={"height": 32, "width": 32}
    )


def clip(folder: Path) -> Path:
    """The pipeline's image tower in a folder of its own, with its preprocessing."""
    place = folder / "clip"
    if not place.exists():
        shutil.copytree(folder / "image_encoder", place)
        shutil.copy(folder / "feature_extractor" / "preprocessor_config.json", place)
    return place


@pytest.fixture(scope="module")
def build(tiny_diffusion: Callable[..., Path]) -> Callable[..., Path]:
    return tiny_diffusion


@pytest.fixture(scope="module")
def folder(build: Callable[..., Path]) -> Path:
    return build()


@pytest.fixture(scope="module")
def requests(tmp_path_factory: pytest.TempPathFactory) -> list[ImageRequest]:
    """Three texts about three real images."""
    place = tmp_path_factory.mktemp("real")
    made = []
    for number, text in enumerate(("a cat", "red dog", "x")):
        noise = np.random.default_rng(number).integers(60 * number, 135 + 60 * number, (40, 56, 3))
        path = place / f"{number}.png"
        Image.fromarray(noise.astype(np.uint8)).save(path)
        made.append(ImageRequest(f"row-{number}", 0, "negative", text, path, seed=number))
    return made


OFF = DiffusionAdainSettings(space="none")


def settings(folder: Path, **changes: Any) -> DiffusionSettings:
    small = DiffusionSettings(str(folder), steps=2, height=16, width=24, batch=3, adain=OFF)
    return replace(small, **changes)


def pixels(generator: DiffusionGenerator, requests: Sequence[ImageRequest]) -> list[np.ndarray]:
    answers = list(generator.generate(requests))
    assert len(answers) == len(requests)
    assert all(isinstance(answer, Image.Image) for answer in answers), answers
    return [np.asarray(answer, np.int16) for answer in answers]


def apart(a: Sequence[np.ndarray], b: Sequence[np.ndarray]) -> list[int]:
    """The largest difference of a pixel, for each pair of images."""
    return [int(np.abs(x - y).max()) for x, y in zip(a, b, strict=True)]


@pytest.mark.parametrize(
    ("scheduler", "space"),
    [("LCMScheduler", "pixels"), ("EulerAncestralDiscreteScheduler", "latents")],
)
def test_an_image_does_not_depend_on_its_neighbours_or_their_order(
    build: Callable[..., Path], requests: list[ImageRequest], scheduler: str, space: Any
) -> None:
    """Both schedulers draw noise at every step."""
    chosen = settings(build(scheduler=scheduler), adain=DiffusionAdainSettings(space=space))
    together = pixels(DiffusionGenerator(chosen), requests)
    alone = pixels(DiffusionGenerator(replace(chosen, batch=1)), requests)
    backwards = pixels(DiffusionGenerator(replace(chosen, batch=2)), requests[::-1])[::-1]
    assert max(apart(together, alone)) <= 1
    assert max(apart(together, backwards)) <= 1


def test_both_images_are_squashed_to_a_size_before_their_statistics_are_matched(
    folder: Path, requests: list[ImageRequest]
) -> None:
    style = DiffusionAdainSettings(weight=1.0, space="pixels", size=32)
    images = pixels(DiffusionGenerator(settings(folder, adain=style)), requests)
    plain = pixels(DiffusionGenerator(settings(folder)), requests)
    for image, without, request in zip(images, plain, requests, strict=True):
        assert image.shape == (32, 32, 3)
        with Image.open(request.image) as file:
            real = np.asarray(file.convert("RGB").resize((32, 32), Image.Resampling.LANCZOS))
        # Within what clipping at black and white takes.
        distance = np.abs(image.mean((0, 1)) - real.mean((0, 1))).max()
        assert distance < np.abs(without.mean((0, 1)) - real.mean((0, 1))).max()
        assert distance < 4


def test_a_size_is_for_spaces_of_pixels() -> None:
    with pytest.raises(SettingsError, match=r"adain.size: .*space is latents.*got 224"):
        parse(DiffusionAdainSettings, {"size": 224}, "adain")


def test_without_injection_and_style_it_is_the_plain_pipeline(
    folder: Path, requests: list[ImageRequest]
) -> None:
    generator = DiffusionGenerator(settings(folder, injection=False))
    got = pixels(generator, requests)
    pipe = diffusers.StableDiffusionPipeline.from_pretrained(folder, use_safetensors=True)
    plain = pipe(
        [request.text for request in requests],
        height=16,
        width=24,
        num_inference_steps=2,
        guidance_scale=7.5,
        generator=[generator._noise_generator(request) for request in requests],
    ).images
    assert apart(got, [np.asarray(image, np.int16) for image in plain]) == [0, 0, 0]


def test_what_is_injected_is_the_image_behind_the_first_end(
    folder: Path, requests: list[ImageRequest]
) -> None:
    generator = DiffusionGenerator(settings(folder))
    real = [Image.open(request.image) for request in requests]
    texts = [request.text for request in requests]
    with torch.inference_mode():
        asked = generator._prompt_inputs(texts, real)
        pipe = diffusers.StableDiffusionPipeline.from_pretrained(folder, use_safetensors=True)
        plain = pipe.encode_prompt(texts, "cpu", 1, False)[0]
        inputs = processor()(images=real, return_tensors="pt")
        expected = pipe.image_encoder(**inputs).image_embeds
    for row, ending, text in zip(asked["prompt_embeds"], plain, texts, strict=True):
        end = 1 + len(text.replace(" ", ""))  # a token a letter, behind the start
        torch.testing.assert_close(row[: end + 1], ending[: end + 1])
        number = texts.index(text)
        torch.testing.assert_close(row[end + 1 :], expected[number].expand(LENGTH - end - 1, WIDTH))


def test_a_prompt_that_fills_all_positions_goes_without_and_is_told(
    folder: Path, requests: list[ImageRequest], caplog: pytest.LogCaptureFixture
) -> None:
    long = [replace(requests[0], text="abcdefghijklmnop"), requests[1]]
    with caplog.at_level(logging.WARNING):
        injected = pixels(DiffusionGenerator(settings(folder)), long)
    assert "1 of 2 prompts fill the text encoder" in caplog.text
    plain = pixels(DiffusionGenerator(settings(folder, injection=False)), long)
    changed = apart(injected, plain)
    assert changed[0] == 0 and changed[1] > 1


@pytest.mark.parametrize("space", ["latents", "pixels"])
def test_style_moves_the_image_towards_the_real_one(
    folder: Path, requests: list[ImageRequest], space: Any
) -> None:
    plain = pixels(DiffusionGenerator(settings(folder)), requests)
    for weight, moved in ((0.0, False), (1.0, True)):
        chosen = settings(folder, adain=DiffusionAdainSettings(weight=weight, space=space))
        styled = pixels(DiffusionGenerator(chosen), requests)
        assert (min(apart(plain, styled)) > 1) == moved


def test_a_real_image_that_cannot_be_read_gives_none(
    folder: Path, requests: list[ImageRequest], tmp_path: Path
) -> None:
    lost = replace(requests[1], image=tmp_path / "lost.jpg")
    answers = list(DiffusionGenerator(settings(folder)).generate([requests[0], lost, requests[2]]))
    assert [isinstance(answer, str) for answer in answers] == [False, True, False]
    assert answers[1] == "the real image: missing: no file at 'lost.jpg'"


def test_a_vision_model_of_ones_own(
    build: Callable[..., Path], folder: Path, requests: list[ImageRequest]
) -> None:
    bare = build(image_encoder=None, feature_extractor=None)
    got = pixels(DiffusionGenerator(settings(bare, vision=str(clip(folder)))), requests)
    assert max(apart(got, pixels(DiffusionGenerator(settings(folder)), requests))) <= 1


def test_a_latent_consistency_model(
    build: Callable[..., Path], requests: list[ImageRequest]
) -> None:
    own = settings(build(kind="LatentConsistencyModelPipeline"))
    injected = pixels(DiffusionGenerator(own), requests)
    plain = pixels(DiffusionGenerator(replace(own, injection=False)), requests)
    assert min(apart(injected, plain)) > 1


def test_a_model_of_two_encoders_without_injection(
    build: Callable[..., Path], requests: list[ImageRequest]
) -> None:
    folder = build(kind="StableDiffusionXLPipeline", scheduler="EulerDiscreteScheduler")
    style = DiffusionAdainSettings(space="latents")
    own = settings(folder, injection=False, guidance=0.0, adain=style)
    assert all(image.std() > 1 for image in pixels(DiffusionGenerator(own), requests))


def test_a_gpu_that_is_too_small(
    folder: Path, requests: list[ImageRequest], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    generator = DiffusionGenerator(settings(folder, batch=3))
    monkeypatch.setattr(generator, "_decode", full)
    with pytest.raises(SettingsError, match=r"counterfactuals\.diffusion\.batch: 3 images of "):
        list(generator.generate(requests))


def test_numbers_that_make_no_image(
    folder: Path, requests: list[ImageRequest], monkeypatch: pytest.MonkeyPatch
) -> None:
    generator = DiffusionGenerator(settings(folder))
    decoded = generator._decode

    def spoiled(latents: torch.Tensor, real: list[Image.Image]) -> torch.Tensor:
        made = decoded(latents, real)
        made[1, 0, 0, 0] = float("nan")
        return made

    monkeypatch.setattr(generator, "_decode", spoiled)
    answers = list(generator.generate(requests))
    assert [isinstance(answer, str) for answer in answers] == [False, True, False]
    assert "counterfactuals.diffusion.precision" in str(answers[1])


def test_style_in_features_of_vgg(
    folder: Path, requests: list[ImageRequest], tmp_path: Path
) -> None:
    files, draw = {}, torch.Generator().manual_seed(0)
    for name, layers in (("vgg", vgg.encoder()), ("decoder", vgg.decoder())):
        files[name] = str(tmp_path / f"{name}.pth")
        for weight in layers.parameters():
            if weight.ndim > 1:  # so that what goes in comes out at some strength
                torch.nn.init.kaiming_normal_(weight, generator=draw)
        if name == "decoder":  # weak on grey: what random weights give would be black or white
            *_, weight, bias = layers.parameters()
            weight.data.mul_(0.1)
            bias.data.fill_(0.5)
        torch.save(layers.state_dict(), files[name])
    full, none = (
        DiffusionGenerator(
            settings(folder, adain=DiffusionAdainSettings(weight=weight, space="vgg", **files))
        )
        for weight in (1.0, 0.0)
    )
    assert min(apart(pixels(full, requests), pixels(none, requests))) >= 2
    assert full.settings_fingerprint != none.settings_fingerprint


def test_the_fingerprint_covers_settings_and_models_but_not_batch_and_folder(
    build: Callable[..., Path], folder: Path, tmp_path: Path
) -> None:
    base = settings(folder)
    hashes = {
        DiffusionGenerator(chosen).settings_fingerprint
        for chosen in (
            base,
            replace(base, steps=8),
            replace(base, injection=False),
            replace(base, adain=DiffusionAdainSettings(weight=0.4)),
            settings(build(scheduler="EulerDiscreteScheduler")),
        )
    }
    assert len(hashes) == 5
    elsewhere = shutil.copytree(folder, tmp_path / "elsewhere")
    own = DiffusionGenerator(settings(elsewhere, batch=2))
    assert own.settings_fingerprint in hashes
    weights = elsewhere / "unet" / "diffusion_pytorch_model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"\x55")
    assert DiffusionGenerator(settings(elsewhere)).settings_fingerprint not in hashes
