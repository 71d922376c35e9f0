"""What a version is made from is listed, each with its licence, and nothing is left unsaid."""

from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, get_args

import pytest

from compo_pipeline.data.settings import DataSettings
from compo_pipeline.language.parsing import load_once
from compo_pipeline.models.settings import ModelSettings
from compo_pipeline.registry.materials import Material, list_materials
from compo_pipeline.registry.settings import Part

TABLE = DataSettings(root=Path("data"), splits={}, format="table")
ENDPOINT = {"url": "http://localhost:1/v1", "model": "qwen 7b"}
BASE = ModelSettings()
Materials = Callable[..., dict[str, Material]]


@pytest.fixture
def materials(context: Callable[..., Any]) -> Callable[..., dict[str, Material]]:
    """Materials of a version by part, with settings as a run has them."""

    def of(
        method: str = "sparcl",
        data: DataSettings = TABLE,
        model: ModelSettings = BASE,
        licences: Mapping[Part, str] = MappingProxyType({}),
    ) -> dict[str, Material]:
        read = context(
            recaption={"captioner": "endpoint", "endpoint": ENDPOINT},
            counterfactuals={"image_generator": "diffusion", "diffusion": {"model": "sd/turbo"}},
        ).settings
        manifest = {"data_hash": "d" * 64, "count": 4, "files": {"my captions.csv": "e" * 64}}
        made_by = read.recaption, read.counterfactuals
        listed = list_materials(manifest, model, "my photos", data, method, "compo_en", *made_by)
        return {one.part: one.licensed(licences) for one in listed}

    return of


def test_each_part_is_named_and_has_a_setting_of_its_licence(materials: Materials) -> None:
    parts = get_args(Part)
    found = materials(licences={part: f"of the {part}" for part in parts})
    assert {part: found[part].licence for part in parts} == {
        part: f"of the {part}" for part in parts
    }
    assert (found["images"].label, found["images"].name) == ("images (3)", "my photos")
    assert (found["captioner"].name, found["image_generator"].name) == ("qwen 7b", "sd/turbo")
    version = load_once("compo_en").meta["version"]
    assert found["parser"][2:] == ("compo_en", version, "of the parser")


def test_licences_that_nothing_states_are_unknown(materials: Materials) -> None:
    found = materials()
    assert found["parser"].licence == load_once("compo_en").meta["license"]
    for part in ("images", "captions", "captioner", "image_generator"):
        assert found[part].licence is None


def test_downloaded_weights_have_the_licence_of_their_tag(materials: Materials) -> None:
    found = materials(model=ModelSettings("ViT-B-16-SigLIP", "webli"))["base"]
    assert found[2:] == ("ViT-B-16-SigLIP", "webli", "Apache-2.0")
    own = ModelSettings("ViT-B-32", "mine.safetensors")
    assert materials(model=own)["base"].licence is None
