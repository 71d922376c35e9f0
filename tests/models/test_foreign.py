"""Model folders of others: nothing of theirs is run, and no setting of theirs is taken unread."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import open_clip
import pytest
from tests.models.conftest import edit

from compo_pipeline.core.settings import SettingsError
from compo_pipeline.models import foreign, sources
from compo_pipeline.models.loading import load
from compo_pipeline.models.settings import ModelSettings

CONFIG = "open_clip_config.json"
PlantCode = Callable[[Path, str], Path]


@pytest.fixture
def folder(tiny_siglip: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(tiny_siglip, tmp_path / "model"))


@pytest.mark.parametrize(
    ("part", "key"),
    [
        ("model_cfg", "cast_dtype"),
        ("model_cfg.vision_cfg", "timm_model_kwargs"),
        ("model_cfg.text_cfg", "hf_tokenizer_kwargs"),
        ("model_cfg.text_cfg.tokenizer_kwargs", "trust_remote_code"),
        ("model_cfg.text_cfg.tokenizer_kwargs", "bpe_path"),
        ("preprocess_cfg", "transform"),
    ],
)
def test_an_unknown_key_is_refused_by_file_and_name(folder: Path, part: str, key: str) -> None:
    edit(folder, part, key, True)
    with pytest.raises(SettingsError, match=rf"{CONFIG}: {part}\.{key} is not known"):
        load(folder)


@pytest.mark.parametrize(
    ("part", "key", "value"),
    [
        ("model_cfg.vision_cfg", "timm_model_name", "hf-hub:someone/model"),
        ("model_cfg.vision_cfg", "timm_model_name", "local-dir:/somewhere"),
        ("model_cfg.text_cfg", "hf_model_name", "./somewhere"),
        ("model_cfg.text_cfg", "hf_model_name", ["roberta-base"]),
    ],
)
def test_towers_of_other_places_are_refused(folder: Path, part: str, key: str, value: Any) -> None:
    edit(folder, part, key, value)
    with pytest.raises(SettingsError, match=rf"{CONFIG}: {part}\.{key}: expected .*, got"):
        load(folder)


@pytest.mark.parametrize("content", ["[]", "{", '{"model_cfg": 3}', '{"model_cfg": "text"}'])
def test_a_file_that_is_no_configuration(folder: Path, content: str) -> None:
    (folder / CONFIG).write_text(content)
    with pytest.raises(SettingsError, match=CONFIG):
        load(folder)


def test_every_architecture_of_open_clip_passes(tmp_path: Path) -> None:
    path = tmp_path / CONFIG
    for name in open_clip.list_models():
        config = {"model_cfg": open_clip.get_model_config(name), "preprocess_cfg": {}}
        path.write_text(json.dumps(config))
        assert foreign.read_config(path) == config


@pytest.mark.parametrize("file", ["tokenizer_config.json", "config.json"])
def test_code_of_a_model_folder_is_not_run(folder: Path, plant_code: PlantCode, file: str) -> None:
    marker = plant_code(folder, file)
    with pytest.raises(SettingsError, match=rf"{file}: auto_map"):
        load(ModelSettings(name=f"local-dir:{folder}"))
    assert not marker.exists()


def test_code_of_a_tokenizer_folder_is_not_run(
    folder: Path, tiny_siglip: Path, plant_code: PlantCode, imported_model: Callable[..., Any]
) -> None:
    marker = plant_code(folder, "tokenizer_config.json")
    with pytest.raises(SettingsError, match=r"tokenizer_config\.json: auto_map"):
        imported_model(tiny_siglip, tokenizer=str(folder))
    assert not marker.exists()


def test_a_configuration_beside_a_weights_file_is_read_as_carefully(folder: Path) -> None:
    edit(folder, "preprocess_cfg", "transform", "own")
    with pytest.raises(SettingsError, match=r"preprocess_cfg\.transform is not known"):
        sources.find_source(ModelSettings("ViT-B-16-SigLIP", pretrained=str(folder)))
