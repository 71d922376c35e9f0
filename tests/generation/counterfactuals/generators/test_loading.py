"""Folders of diffusion models: checked before use, in the hub's cache, and on the hub."""

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest

from compo_pipeline.core.settings import SettingsError
from compo_pipeline.generation.counterfactuals.generators.diffusion import (
    DiffusionGenerator,
    local_folder,
)
from compo_pipeline.generation.counterfactuals.settings import (
    DiffusionSettings,
)

KEY = r"^counterfactuals\.diffusion"


def check(folder: Path | str, **settings: Any) -> None:
    DiffusionGenerator(replace(DiffusionSettings(str(folder)), **settings))


def edit(file: Path, **changes: Any) -> None:
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))


def test_no_pipeline(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=rf"{KEY}\.model: .*has no model_index.json"):
        check(tmp_path)


@pytest.mark.parametrize(
    ("file", "changes", "message"),
    [
        ("model_index.json", {"_class_name": "FluxPipeline"}, r"model: .* is a FluxPipeline"),
        ("vae/config.json", {"latents_mean": [0.0] * 4}, r"model: .*latents_mean"),
        ("image_encoder/config.json", {"model_type": "siglip"}, r"vision: .*'siglip', expected a"),
    ],
)
def test_parts_of_another_kind(
    tiny_diffusion: Callable[..., Path], file: str, changes: dict[str, Any], message: str
) -> None:
    folder = tiny_diffusion()
    edit(folder / file, **changes)
    with pytest.raises(SettingsError, match=rf"{KEY}\.{message}"):
        check(folder)


def test_two_encoders_take_no_features(tiny_diffusion: Callable[..., Path]) -> None:
    folder = tiny_diffusion(kind="StableDiffusionXLPipeline", scheduler="EulerDiscreteScheduler")
    with pytest.raises(SettingsError, match=rf"{KEY}\.model: .*injection to false"):
        check(folder)
    check(folder, injection=False)


@pytest.mark.parametrize("variant", ["diffusion_pytorch_model.bin", "m.fp16.safetensors"])
def test_weights_must_be_safetensors_of_no_variant(
    tiny_diffusion: Callable[..., Path], variant: str
) -> None:
    folder = tiny_diffusion()
    weights = folder / "unet" / "diffusion_pytorch_model.safetensors"
    weights.rename(weights.with_name(variant))
    with pytest.raises(SettingsError, match=rf"{KEY}\.model: .*safetensors weights in unet/"):
        check(folder)


def test_code_in_the_folder_is_not_run(tiny_diffusion: Callable[..., Path], tmp_path: Path) -> None:
    folder, trace = tiny_diffusion(), tmp_path / "ran"
    (folder / "unet" / "own.py").write_text(f"open({str(trace)!r}, 'w')")
    edit(folder / "model_index.json", unet=["own", "Net"])
    with pytest.raises(SettingsError, match=rf"{KEY}\.model: .*code of its own"):
        check(folder)
    assert not trace.exists()


@pytest.mark.parametrize("file", ["text_encoder/config.json", "scheduler/scheduler_config.json"])
def test_code_of_a_part_is_not_run(
    tiny_diffusion: Callable[..., Path], plant_code: Callable[[Path, str], Path], file: str
) -> None:
    folder = tiny_diffusion()
    marker = plant_code(folder, file)
    with pytest.raises(SettingsError, match=rf"{KEY}\.model: .*{file}: auto_map"):
        check(folder)
    assert not marker.exists()


def test_no_image_tower(tiny_diffusion: Callable[..., Path], tmp_path: Path) -> None:
    folder = tiny_diffusion(image_encoder=None, feature_extractor=None)
    with pytest.raises(SettingsError, match=rf"{KEY}\.vision: .*no image_encoder"):
        check(folder)
    check(folder, injection=False)
    with pytest.raises(SettingsError, match=rf"{KEY}\.vision: .*no preprocessor_config.json"):
        check(folder, vision=str(tmp_path))


def test_widths_that_do_not_fit(tiny_diffusion: Callable[..., Path]) -> None:
    with pytest.raises(SettingsError, match=rf"{KEY}\.vision: .*are 24 wide, the prompt's 16"):
        check(tiny_diffusion(projection=24))


MODEL_KEY = "counterfactuals.diffusion.model"


@pytest.fixture
def fetched(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, object]]:
    """What is asked of a hub that cannot be reached."""
    asked: list[dict[str, object]] = []

    def unreachable(*args: object, **how: object) -> None:
        asked.append(how)
        raise OSError("no route\nadvice")

    monkeypatch.setattr("huggingface_hub.HfApi.model_info", unreachable)
    return asked


def test_a_folder_is_never_asked_for(tmp_path: Path, fetched: list[object]) -> None:
    assert local_folder(str(tmp_path), MODEL_KEY) == tmp_path
    for name in ("no/such/folder", "nothing", "/no/such"):
        with pytest.raises(SettingsError, match=f"^{MODEL_KEY}: '{name}' is no folder"):
            local_folder(name, MODEL_KEY)
    assert fetched == []


def test_without_a_network_the_key_is_told(
    fetched: list[object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(
        SettingsError, match=f"^{MODEL_KEY}: there is no folder 'owner/model'.*no route"
    ) as told:
        local_folder("owner/model", MODEL_KEY)
    assert "advice" not in str(told.value) and len(fetched) == 1


def test_what_is_in_the_cache_is_taken_whole_or_fetched_again(
    tiny_diffusion: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = tiny_diffusion()
    half = shutil.copytree(whole, tmp_path / "half")
    (half / "vae" / "diffusion_pytorch_model.safetensors").unlink()
    fetched, cached = list[tuple[str, list[str]]](), whole

    def download(name: str, allow_patterns: list[str], local_files_only: bool = False) -> str:
        if local_files_only:
            return str(cached)
        fetched.append((name, allow_patterns))
        return str(whole)

    monkeypatch.setattr("compo_pipeline.models.hub.check_repository", lambda name: None)
    monkeypatch.setattr("huggingface_hub.snapshot_download", download)
    assert local_folder("owner/model", MODEL_KEY) == whole and fetched == []
    cached = half
    assert local_folder("owner/model", MODEL_KEY) == whole
    ((name, patterns),) = fetched
    assert name == "owner/model"
    assert not any(pattern.endswith((".py", ".bin", "*.safetensors")) for pattern in patterns)
