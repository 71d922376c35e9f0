"""The raw pipeline's node: scenes are rendered, other sources only located."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from compo_pipeline.core.settings import SettingsError, parse
from compo_pipeline.data.settings import DataSettings
from compo_pipeline.pipelines.ingest.nodes import prepare_source
from compo_scenes.dataset import SceneSettings

FEW = SceneSettings(train=4, val=2, test=3, items=2, images=6, classified=2)


def data(root: Path, **changes: Any) -> DataSettings:
    splits = {"train": "train", "val": "val", "test": "test"}
    return DataSettings(**{"root": root, "format": "scenes", "splits": splits, **changes})


def test_scenes_are_rendered_where_the_source_is_looked_for(tmp_path: Path) -> None:
    source = prepare_source(data(tmp_path / "scenes"), FEW)
    files = {name: [f"annotations/captions_{name}.json"] for name in ("train", "val", "test")}
    assert source == {"format": "scenes", "root": str(tmp_path / "scenes"), "splits": files}


def test_another_source_is_left_as_it_is(tmp_path: Path) -> None:
    prepare_source(data(tmp_path), FEW)
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    source = prepare_source(
        data(tmp_path, format="coco_captions", splits={"train": "test"}), replace(FEW, test=1)
    )
    assert source["splits"] == {"train": ["annotations/captions_test.json"]}
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == before


def test_a_world_that_cannot_be_drawn_renders_nothing(tmp_path: Path) -> None:
    unknown = parse(SceneSettings, {"world": {"things": ["unicorn"]}}, "scenes")
    with pytest.raises(SettingsError, match=r"scenes\.world\.things"):
        prepare_source(data(tmp_path / "scenes"), unknown)
    assert not (tmp_path / "scenes").exists()
