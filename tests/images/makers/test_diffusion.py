"""The diffusers maker on a tiny random pipeline that is built here."""

import json
import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from compo_pipeline.configuration import SettingsError
from compo_pipeline.images.makers.contract import Made, PictureRequest, Unmade
from compo_pipeline.images.makers.diffusion import (
    AdainSettings,
    DiffusionMaker,
    DiffusionSettings,
)

diffusers = pytest.importorskip("diffusers")
transformers = pytest.importorskip("transformers")

WIDTH, LENGTH = 16, 12
Pipeline = Any


def tokenizer(folder: Path) -> Any:
    """CLIP's own tokenizer with letters for a vocabulary; it fills up with its end token."""
    letters = [chr(code) for code in range(ord("a"), ord("z") + 1)]
    pieces = [*letters, *(f"{letter}</w>" for letter in letters)]
    vocabulary = {piece: number for number, piece in enumerate(pieces)}
    for special in ("<|startoftext|>", "<|endoftext|>"):
        vocabulary[special] = len(vocabulary)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "vocab.json").write_text(json.dumps(vocabulary))
    (folder / "merges.txt").write_text("#version: 0.2\n")
    return transformers.CLIPTokenizer(
        str(folder / "vocab.json"), str(folder / "merges.txt"), model_max_length=LENGTH
    )


def vision(width: int) -> Any:
    config = transformers.CLIPVisionConfig(
        hidden_size=16,
        intermediate_size=16,
        projection_dim=width,
        num_hidden_layers=1,
        num_attention_heads=2,
        image_size=32,
        patch_size=16,
    )
    return transformers.CLIPVisionModelWithProjection(config).eval()


def processor() -> Any:
    return transformers.CLIPImageProcessor(
        size={"shortest_edge": 32}, crop_size={"height": 32, "width": 32}
    )


@pytest.fixture(scope="module")
def build(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Writes a random Stable Diffusion of a few thousand weights."""

    def write(scheduler: str = "LCMScheduler", width: int = WIDTH, **parts: Any) -> Path:
        folder = tmp_path_factory.mktemp("pipeline")
        words = tokenizer(folder / "words")
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            text = transformers.CLIPTextModel(
                transformers.CLIPTextConfig(
                    vocab_size=len(words),
                    hidden_size=WIDTH,
                    intermediate_size=16,
                    num_hidden_layers=1,
                    num_attention_heads=2,
                    max_position_embeddings=LENGTH,
                    bos_token_id=words.bos_token_id,
                    eos_token_id=words.eos_token_id,
                )
            )
            unet = diffusers.UNet2DConditionModel(
                sample_size=8,
                block_out_channels=(8, 8),
                layers_per_block=1,
                norm_num_groups=4,
                down_block_types=("CrossAttnDownBlock2D", "DownBlock2D"),
                up_block_types=("UpBlock2D", "CrossAttnUpBlock2D"),
                cross_attention_dim=WIDTH,
                attention_head_dim=4,
            )
            vae = diffusers.AutoencoderKL(
                block_out_channels=(8, 8),
                down_block_types=("DownEncoderBlock2D",) * 2,
                up_block_types=("UpDecoderBlock2D",) * 2,
                latent_channels=4,
                norm_num_groups=4,
            )
            pipe = diffusers.StableDiffusionPipeline(
                vae=vae,
                text_encoder=text,
                tokenizer=words,
                unet=unet,
                scheduler=getattr(diffusers, scheduler)(steps_offset=1),
                safety_checker=None,
                requires_safety_checker=False,
                **{"feature_extractor": processor(), "image_encoder": vision(width), **parts},
            )
        pipe.save_pretrained(folder, safe_serialization=True)
        return folder

    return write


@pytest.fixture(scope="module")
def folder(build: Callable[..., Path]) -> Path:
    return build()


@pytest.fixture(scope="module")
def requests(tmp_path_factory: pytest.TempPathFactory) -> list[PictureRequest]:
    """Three texts about three real pictures."""
    place = tmp_path_factory.mktemp("real")
    made = []
    for number, text in enumerate(("a cat", "red dog", "x")):
        noise = np.random.default_rng(number).integers(60 * number, 135 + 60 * number, (40, 56, 3))
        path = place / f"{number}.png"
        Image.fromarray(noise.astype(np.uint8)).save(path)
        made.append(PictureRequest(f"row-{number}", 0, "negative", text, path, seed=number))
    return made


OFF = AdainSettings(space="off")


def settings(folder: Path, **changes: Any) -> DiffusionSettings:
    small = DiffusionSettings(str(folder), steps=2, height=16, width=24, batch=3, adain=OFF)
    return replace(small, **changes)


def pixels(maker: DiffusionMaker, requests: Sequence[PictureRequest]) -> list[np.ndarray]:
    answers = list(maker.make(requests))
    assert [answer.request for answer in answers] == list(requests)
    assert all(isinstance(answer, Made) for answer in answers), answers
    return [np.asarray(answer.picture, np.int16) for answer in answers]  # type: ignore[union-attr]


def apart(a: Sequence[np.ndarray], b: Sequence[np.ndarray]) -> list[int]:
    """The largest difference of a pixel, for each pair of pictures."""
    return [int(np.abs(x - y).max()) for x, y in zip(a, b, strict=True)]


def test_pictures_are_of_the_size_asked_for(folder: Path, requests: list[PictureRequest]) -> None:
    for picture in pixels(DiffusionMaker(settings(folder)), requests):
        assert picture.shape == (16, 24, 3)
        assert picture.std() > 1


@pytest.mark.parametrize(
    ("scheduler", "space"),
    [("LCMScheduler", "pixels"), ("EulerAncestralDiscreteScheduler", "latents")],
)
def test_a_picture_does_not_depend_on_its_neighbours_or_their_order(
    build: Callable[..., Path], requests: list[PictureRequest], scheduler: str, space: Any
) -> None:
    """Both schedulers draw noise at every step."""
    chosen = settings(build(scheduler), adain=AdainSettings(space=space))
    together = pixels(DiffusionMaker(chosen), requests)
    alone = pixels(DiffusionMaker(replace(chosen, batch=1)), requests)
    backwards = pixels(DiffusionMaker(replace(chosen, batch=2)), requests[::-1])[::-1]
    assert max(apart(together, alone)) <= 1
    assert max(apart(together, backwards)) <= 1


def test_seeds_decide_the_picture(folder: Path, requests: list[PictureRequest]) -> None:
    maker = DiffusionMaker(settings(folder))
    first = pixels(maker, requests)
    assert apart(first, pixels(maker, requests)) == [0, 0, 0]
    others = [replace(request, seed=request.seed + 10) for request in requests]
    assert min(apart(first, pixels(maker, others))) > 1
    assert min(apart(first, pixels(DiffusionMaker(settings(folder, seed=1)), requests))) > 1


def test_without_injection_and_style_it_is_the_plain_pipeline(
    folder: Path, requests: list[PictureRequest]
) -> None:
    maker = DiffusionMaker(settings(folder, injection=False))
    got = pixels(maker, requests)
    pipe = diffusers.StableDiffusionPipeline.from_pretrained(folder, use_safetensors=True)
    plain = pipe(
        [request.text for request in requests],
        height=16,
        width=24,
        num_inference_steps=2,
        guidance_scale=7.5,
        generator=[maker._generator(request) for request in requests],
    ).images
    assert apart(got, [np.asarray(picture, np.int16) for picture in plain]) == [0, 0, 0]


def test_with_injection_the_real_picture_counts(
    folder: Path, requests: list[PictureRequest]
) -> None:
    injected = pixels(DiffusionMaker(settings(folder)), requests)
    plain = pixels(DiffusionMaker(settings(folder, injection=False)), requests)
    assert min(apart(injected, plain)) > 1
    turned = [replace(r, image=o.image) for r, o in zip(requests, requests[::-1], strict=True)]
    moved = apart(injected, pixels(DiffusionMaker(settings(folder)), turned))
    assert moved[0] > 1 and moved[1] == 0 and moved[2] > 1


def test_what_is_injected_is_the_picture_behind_the_first_end(
    folder: Path, requests: list[PictureRequest]
) -> None:
    maker = DiffusionMaker(settings(folder))
    real = [Image.open(request.image) for request in requests]
    texts = [request.text for request in requests]
    with torch.inference_mode():
        asked, filled = maker._prompt(texts, real)
        pipe = diffusers.StableDiffusionPipeline.from_pretrained(folder, use_safetensors=True)
        plain = pipe.encode_prompt(texts, "cpu", 1, False)[0]
        inputs = processor()(images=real, return_tensors="pt")
        expected = pipe.image_encoder(**inputs).image_embeds
    assert filled == 0
    for row, ending, text in zip(asked["prompt_embeds"], plain, texts, strict=True):
        end = 1 + len(text.replace(" ", ""))  # a token a letter, behind the start
        torch.testing.assert_close(row[: end + 1], ending[: end + 1])
        number = texts.index(text)
        torch.testing.assert_close(row[end + 1 :], expected[number].expand(LENGTH - end - 1, WIDTH))


def test_a_prompt_that_fills_all_positions_goes_without_and_is_told(
    folder: Path, requests: list[PictureRequest], caplog: pytest.LogCaptureFixture
) -> None:
    long = [replace(requests[0], text="abcdefghijklmnop"), requests[1]]
    with caplog.at_level(logging.WARNING):
        injected = pixels(DiffusionMaker(settings(folder)), long)
    assert "1 of 2 prompts fill the text encoder" in caplog.text
    plain = pixels(DiffusionMaker(settings(folder, injection=False)), long)
    changed = apart(injected, plain)
    assert changed[0] == 0 and changed[1] > 1


@pytest.mark.parametrize("space", ["latents", "pixels"])
def test_style_moves_the_picture_towards_the_real_one(
    folder: Path, requests: list[PictureRequest], space: Any
) -> None:
    plain = pixels(DiffusionMaker(settings(folder)), requests)
    for weight, moved in ((0.0, False), (1.0, True)):
        chosen = settings(folder, adain=AdainSettings(weight, space))
        styled = pixels(DiffusionMaker(chosen), requests)
        assert (min(apart(plain, styled)) > 1) == moved
    if space == "pixels":
        for picture, request in zip(styled, requests, strict=True):
            real = np.asarray(Image.open(request.image))
            assert np.abs(picture.mean((0, 1)) - real.mean((0, 1))).max() < 3


def test_a_real_picture_that_cannot_be_read_gives_none(
    folder: Path, requests: list[PictureRequest], tmp_path: Path
) -> None:
    lost = replace(requests[1], image=tmp_path / "lost.jpg")
    answers = list(DiffusionMaker(settings(folder)).make([requests[0], lost, requests[2]]))
    assert [type(answer) for answer in answers] == [Made, Unmade, Made]
    assert answers[1] == Unmade(lost, "the real picture: missing: no file at 'lost.jpg'")
    assert [answer.request for answer in answers] == [requests[0], lost, requests[2]]


def test_half_precision_makes_a_picture(folder: Path, requests: list[PictureRequest]) -> None:
    chosen = settings(folder, precision="bf16", adain=AdainSettings(space="latents"))
    assert pixels(DiffusionMaker(chosen), requests[:1])[0].std() > 1


def test_a_vision_model_of_ones_own(
    build: Callable[..., Path],
    folder: Path,
    requests: list[PictureRequest],
    tmp_path: Path,
) -> None:
    bare = build(image_encoder=None, feature_extractor=None)
    with pytest.raises(
        SettingsError, match=r"counterfactuals\.diffusion\.vision.*no image_encoder"
    ):
        list(DiffusionMaker(settings(bare)).make(requests))
    pipe = diffusers.StableDiffusionPipeline.from_pretrained(folder, use_safetensors=True)
    pipe.image_encoder.save_pretrained(tmp_path)
    processor().save_pretrained(tmp_path)
    got = pixels(DiffusionMaker(settings(bare, vision=str(tmp_path))), requests)
    assert max(apart(got, pixels(DiffusionMaker(settings(folder)), requests))) <= 1


def test_widths_that_do_not_fit(build: Callable[..., Path], requests: list[PictureRequest]) -> None:
    with pytest.raises(SettingsError, match="embeddings are 24 wide, the prompt's 16"):
        list(DiffusionMaker(settings(build(width=24))).make(requests))


def test_what_is_no_folder_or_no_pipeline(requests: list[PictureRequest], tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="'owner/model' is no folder"):
        list(DiffusionMaker(settings(Path("owner/model"))).make(requests))
    with pytest.raises(SettingsError, match="has no model_index.json"):
        list(DiffusionMaker(settings(tmp_path)).make(requests))


def test_weights_that_could_run_code_are_not_loaded(
    build: Callable[..., Path], requests: list[PictureRequest]
) -> None:
    folder = build()
    (folder / "unet" / "diffusion_pytorch_model.safetensors").unlink()
    (folder / "unet" / "diffusion_pytorch_model.bin").write_bytes(b"not read")
    with pytest.raises(SettingsError, match="weights must be safetensors"):
        list(DiffusionMaker(settings(folder)).make(requests))


def test_a_place_that_is_found_elsewhere(folder: Path, requests: list[PictureRequest]) -> None:
    asked = []

    def locate(name: str) -> Path:
        asked.append(name)
        return folder

    maker = DiffusionMaker(settings(Path("hub:x")), locate=locate)
    assert len(pixels(maker, requests)) == 3
    assert asked == ["hub:x"]


def test_without_the_extra(
    folder: Path, requests: list[PictureRequest], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("compo_pipeline.images.makers.diffusion.find_spec", lambda name: None)
    with pytest.raises(SettingsError, match=r"compo-pipeline\[diffusion\]"):
        list(DiffusionMaker(settings(folder)).make(requests))


def test_the_hash_tells_settings_apart_but_not_batches() -> None:
    base = DiffusionSettings("m")
    hashes = {
        DiffusionMaker(chosen).settings_hash
        for chosen in (
            base,
            replace(base, steps=8),
            replace(base, injection=False),
            replace(base, adain=AdainSettings(0.4)),
            replace(base, seed=1),
        )
    }
    assert len(hashes) == 5
    assert DiffusionMaker(replace(base, batch=2)).settings_hash in hashes


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"steps": 0}, "steps must be at least 1"),
        ({"batch": 0}, "batch must be at least 1"),
        ({"height": 100}, "height must be a multiple of 8"),
        ({"adain": AdainSettings(1.5)}, "adain.weight must lie within 0 and 1"),
    ],
)
def test_settings_that_no_pipeline_can_follow(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        DiffusionSettings("m", **change)
