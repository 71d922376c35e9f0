"""The whole pipeline in small: a model that open_clip loads, and where it is computed."""

import json
from pathlib import Path

import open_clip
import pytest
import torch
from safetensors.torch import load_file

from compo_pipeline.core.settings import SettingsError
from compo_pipeline.data.catalog import FolderDataset
from compo_pipeline.models.loading import load
from compo_scenes.base_model.image_tower import build
from compo_scenes.dataset import SceneSettings, WorldSettings
from compo_scenes.pipelines.shipped import nodes
from compo_scenes.pipelines.shipped.nodes import train_base_model, train_image_tower
from compo_scenes.render import image
from compo_scenes.settings import BaseRecipe, PretrainingSettings, TowerRecipe
from compo_scenes.world import Scene, World

needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU on this machine")


@pytest.mark.slow
@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=needs_cuda)])
def test_the_whole_pipeline_in_small(
    world: World, wide: Scene, tmp_path: Path, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nodes, "TOWER", TowerRecipe(steps=4, batch_size=4, workers=0))
    monkeypatch.setattr(nodes, "BASE", BaseRecipe(scenes=8, steps=50, batch_size=4))
    monkeypatch.setattr(nodes, "PROBED", 8)
    settings = PretrainingSettings(device=device)
    scenes = SceneSettings(world=WorldSettings(tuple(world.things), tuple(world.colours)))
    trained, folder = tmp_path / "tower", tmp_path / "base"
    FolderDataset(filepath=str(trained)).save(train_image_tower(settings, scenes))
    model_files, report = train_base_model(trained, settings, scenes)
    FolderDataset(filepath=str(folder)).save(model_files)
    assert json.loads(json.dumps(report)) == report
    assert [point["step"] for point in report["curve"]] == [50]
    assert all(0 <= value <= 1 for value in report["linear probes"].values())

    model, _, transform = open_clip.create_model_and_transforms(f"local-dir:{folder}")
    ids = open_clip.get_tokenizer(f"local-dir:{folder}")(["a red ball left of a green key"])
    pixels = transform(image(wide))[None]
    ours = load(folder)
    assert ours.name == "scenes-base"
    model.eval()
    with torch.no_grad():
        assert pixels.equal(ours.preprocess(image(wide))[None])
        for one, other in (
            (model.encode_image(pixels), ours.model.encode_image(pixels)),  # type: ignore[operator]
            (model.encode_text(ids), ours.model.encode_text(ids)),  # type: ignore[operator]
        ):
            torch.testing.assert_close(one, other)
    _only_text_and_projection_learnt(folder, trained)


def _only_text_and_projection_learnt(folder: Path, trained: Path) -> None:
    """The second stage leaves the trunk of the first as it was."""
    shipped = load_file(folder / "open_clip_model.safetensors")
    assert sum(tensor.numel() * tensor.element_size() for tensor in shipped.values()) < 24e6
    tower_state = load_file(trained / "tower.safetensors")
    started = build(0).model.state_dict()
    for name, tensor in shipped.items():
        assert tensor.dtype in (torch.float16, torch.int64)
        if name.startswith("visual."):
            before = tower_state["visual/" + name.removeprefix("visual.")].to(tensor.dtype)
            assert tensor.equal(before) == (name != "visual.head.proj.weight"), name
    changed = [n for n, v in shipped.items() if not v.equal(started[n].to(v.dtype))]
    assert {"text_projection", "token_embedding.weight", "positional_embedding"} <= set(changed)


def test_a_device_that_is_not_there_is_refused(world: World) -> None:
    scenes = SceneSettings(world=WorldSettings(tuple(world.things), tuple(world.colours)))
    with pytest.raises(SettingsError, match=r"pretraining\.device: 'cuda:99' cannot be used"):
        train_image_tower(PretrainingSettings(device="cuda:99"), scenes)
