"""The counterfactuals pipeline as Kedro runs it: rules on captions, scenes edited and drawn."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from compo_pipeline.core.files import write_files
from compo_pipeline.core.records import Caption, Fact
from compo_pipeline.core.sentences import split
from compo_pipeline.core.settings import parse
from compo_pipeline.core.table_files import LOCAL
from compo_pipeline.data.catalog import FolderDataset
from compo_pipeline.generation.counterfactuals.settings import CounterfactualSettings
from compo_pipeline.pipelines.counterfactuals.nodes import (
    check_counterfactuals,
    make_counterfactuals,
    preview_counterfactuals,
)
from compo_scenes.dataset import SceneSettings, write

SETTINGS = CounterfactualSettings()


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A few rendered scenes."""
    folder = tmp_path_factory.mktemp("counterfactuals") / "scenes"
    write(SceneSettings(train=6, val=1, test=1, items=1, images=4, classified=1), folder)
    return folder


@pytest.fixture(scope="module")
def captions(root: Path) -> list[Caption]:
    """A row for every training scene, and one that does not train."""
    source = json.loads((root / "annotations" / "captions_train.json").read_text())
    files = {image["id"]: f"train/{image['file_name']}" for image in source["images"]}
    rows = [
        Caption(
            str(one["id"]), str(one["image_id"]), files[one["image_id"]], 224, 224,
            tuple(split(one["caption"])), "scenes", "train",
        )
        for one in source["annotations"]
    ]  # fmt: skip
    return [*rows, Caption("held", "held", rows[0].image, 224, 224, ("A cat.",), "scenes", "test")]


@pytest.fixture
def run(root: Path, captions: list[Caption], tmp_path: Path) -> Callable[..., Any]:
    """Runs the first node; returns its tables and the folder of its images."""
    facts = [
        Fact(n, row.sample_id, row.image, row.split, "0", None, 1, 1, 1, 1, 1, False, False, False)
        for n, row in enumerate(captions)
    ]

    def start(method: str = "sparcl", **changed: Any) -> Any:
        state, folder = str(tmp_path / "state"), tmp_path / "images"
        chosen = parse(CounterfactualSettings, changed, "counterfactuals")
        given = captions, facts, "train", method, chosen, "compo_en", root, SceneSettings()
        rows, quarantine, images = make_counterfactuals(*given, state, LOCAL)
        FolderDataset(filepath=str(folder)).save(images)
        return list(rows), list(quarantine), folder

    return start


def test_scenes_are_edited_and_drawn(
    run: Callable[..., Any], captions: list[Caption], root: Path, tmp_path: Path
) -> None:
    rows, quarantine, folder = run(caption_editor="scenes", image_generator="scenes")
    assert len(rows) == 2 * (len(captions) - 1)
    made = [row for row in rows if row.state == "generated"]
    assert len(made) + len(quarantine) == len(rows) and len(made) > len(rows) / 2
    texts = {row.sample_id: row.sentences[0] for row in captions}
    for row in made:
        assert row.text != texts[row.sample_id]
        assert row.caption_editor == row.image_generator == "scenes"
        with Image.open(folder / row.image) as image:
            assert image.format == "JPEG" and min(image.size) > 100
    page = tmp_path / "page"
    write_files(preview_counterfactuals(rows, folder, captions, "scenes", root), page)
    html = (page / "index.html").read_text()
    assert html.count("<article") == min(40, len(captions) - 1) and html.count("<mark>") > 6
    counts = check_counterfactuals(rows, SETTINGS, page)
    assert counts["edits"] == len(rows) and counts["roles"]["negative"]["generated"] > 0


def test_rules_write_and_nobody_draws(run: Callable[..., Any]) -> None:
    rows, quarantine, folder = run()
    written = [row for row in rows if row.state == "edited"]
    assert {row.role for row in written} == {"negative", "positive"}
    assert {row.image_generator for row in rows} == {""} and not list(folder.iterdir())
    assert len(written) + len(quarantine) == len(rows)
    assert run() == (rows, quarantine, folder)


def test_methods_that_train_on_none_get_none(
    run: Callable[..., Any], root: Path, tmp_path: Path
) -> None:
    """Nothing of another run is left in the folder, and the page says why it is empty."""
    run(caption_editor="scenes", image_generator="scenes")
    rows, quarantine, folder = run(method="clic", caption_editor="scenes", image_generator="scenes")
    assert (rows, quarantine, list(folder.iterdir())) == ([], [], [])
    page = tmp_path / "page"
    write_files(preview_counterfactuals(rows, folder, [], "scenes", root), page)
    assert "<article" not in (page / "index.html").read_text()
    assert check_counterfactuals(rows, SETTINGS, page)["edits"] == 0
