"""The pipeline with the image generator `diffusion`: real captions, rules, a tiny random model."""

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from PIL import Image

from compo_pipeline.core.records import Caption, Counterfactual
from compo_pipeline.core.settings import SettingsError, parse
from compo_pipeline.core.tables import Table
from compo_pipeline.data.catalog import FolderDataset
from compo_pipeline.generation.counterfactuals.contract import Opening
from compo_pipeline.generation.counterfactuals.generation import Jobs, generate, publish
from compo_pipeline.generation.counterfactuals.settings import CounterfactualSettings
from compo_pipeline.pipelines.counterfactuals.nodes import open_engines

SMALL = {"steps": 1, "height": 16, "width": 16, "batch": 4}
CAPTIONS = ("Two dogs near a red car.", "A man sits on a couch.", "A bike beside a wooden bench.")


@pytest.fixture(scope="module")
def model(tiny_diffusion: Callable[..., Path]) -> Path:
    return tiny_diffusion()


class Run:
    """Runs the pipeline in a folder; its state stays from run to run."""

    def __init__(self, folder: Path, rows: list[Caption], root: Path):
        self.folder, self.rows, self.root = folder, rows, root
        self.state, self.images = folder / "state", folder / "images"

    def __call__(self, **diffusion: Any) -> list[Counterfactual]:
        given: dict[str, Any] = {"caption_editor": "rules", "image_generator": "diffusion"}
        given["diffusion"] = {**SMALL, **diffusion}
        settings = parse(CounterfactualSettings, given, "counterfactuals")
        opening = Opening(settings.seed, self.rows, self.root, self.state, {})
        opened = open_engines(settings, "compo_en", opening)
        hashes = pa.chunked_array([[row.image for row in self.rows]])
        jobs = Jobs(Table.of(self.rows, Caption), hashes, settings.sentences)
        rows, _ = generate(jobs, *opened, settings, self.root, self.state)
        images = publish([row.image for row in rows], self.state)
        FolderDataset(filepath=str(self.images)).save(images)
        return list(rows)

    def kept(self) -> dict[str, int]:
        """When each image in store was written."""
        files = (self.state / "images").rglob("*.jpg")
        return {path.name: path.stat().st_mtime_ns for path in files}


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """On three images of noise, one of which is lost."""
    rows = []
    for number, text in enumerate(CAPTIONS):
        name = f"{number}.png"
        rows.append(Caption(str(number), str(number), name, 40, 30, (text,), "own", "train"))
        noise = np.random.default_rng(number).integers(0, 90 * (number + 1) % 256, (30, 40, 3))
        if number:
            Image.fromarray(noise.astype(np.uint8)).save(tmp_path / name)
    return Run(tmp_path / "generated", rows, tmp_path)


def test_images_are_made_once_and_failures_are_told(run: Run, model: Path) -> None:
    rows = run(model=str(model))
    assert Counter(row.state for row in rows)["generated"] >= 2
    assert {(row.caption_editor, row.image_generator) for row in rows} == {("rules", "diffusion")}
    for row in rows:
        if row.state == "generated":
            with Image.open(run.images / row.image) as image:
                assert image.size == (16, 16)
    lost = next(row for row in rows if row.sample_id == "0" and row.text)
    assert (lost.state, lost.detail) == ("failed", "the real image: missing: no file at '0.png'")
    before = run.kept()
    assert run(model=str(model), batch=1) == rows
    assert run.kept() == before


def test_a_changed_setting_makes_new_images_of_the_same_texts(run: Run, model: Path) -> None:
    rows, before = run(model=str(model)), run.kept()
    again = run(model=str(model), injection=False)
    assert [row.text for row in again] == [row.text for row in rows]
    assert {row.fingerprint for row in again}.isdisjoint({row.fingerprint for row in rows})
    assert len(run.kept()) == 2 * len(before) and before.items() <= run.kept().items()
    assert run(model=str(model)) == rows


@pytest.mark.parametrize(
    ("changed", "key"),
    [
        ({"model": "no/folder/here"}, "model: 'no/folder/here' is no folder"),
        ({"adain": {"space": "vgg"}}, "adain.space: .*files of your own"),
        ({"adain": {"space": "vgg", "vgg": "none.pth", "decoder": "d"}}, "adain.vgg: there is no"),
    ],
)
def test_errors_are_told_before_a_caption_is_edited(
    run: Run, model: Path, changed: dict[str, Any], key: str
) -> None:
    with pytest.raises(SettingsError, match=f"^counterfactuals.diffusion.{key}"):
        run(**{"model": str(model), **changed})
    assert not run.state.exists()
