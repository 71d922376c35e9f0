"""Rendered scenes and a table of photos in one training, through the whole chain."""

import csv
import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from PIL import Image

from compo_pipeline.core.records import Caption
from compo_pipeline.core.tables import Table
from compo_pipeline.methods.views import EpochViews

ROWS = 30
OPTIONS = {
    "dataset": "mixed",
    "data.root": "data/01_raw/mixed",
    "data.sources.scenes.weight": "3",
    "data.sources.photos.format": "table",
    "data.sources.photos.splits.train": "captions.csv",
    "data.sources.photos.splits.test": "captions.csv",
    "evaluation.slices": "[source]",
    "evaluation.slice_items": "2",
    "views.epochs": "2",
    "training.epochs": "2",
}


def run(workspace: Path, *arguments: str, **options: str) -> str:
    """The output of `kedro run` in the environment `smoke`."""
    params = ",".join(f"{key}={value}" for key, value in {**OPTIONS, **options}.items())
    done = subprocess.run(
        [sys.executable, "-m", "kedro", "run", "--env=smoke", *arguments, "--params", params],
        cwd=workspace,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-4000:]
    return " ".join(done.stdout.split())


@pytest.mark.slow
def test_scenes_and_photos_train_together(workspace: Path) -> None:
    photos = workspace / "data" / "01_raw" / "mixed" / "photos"
    photos.mkdir(parents=True)
    rows = []
    for number in range(ROWS):
        Image.effect_noise((64, 48), number + 1).save(photos / f"{number}.png")
        text = f"A red dog {number} sleeps on a blue sofa. It is near a green ball."
        rows.append((f"{number}.png", text, "test" if number % 5 == 0 else "train"))
    with (photos / "captions.csv").open("w", newline="") as file:
        csv.writer(file).writerows([("image", "caption", "split"), *rows])
    output = run(workspace)
    # The scenes are 48: an epoch takes three quarters of these and twelve of 24 photos.
    assert "clic: 6 of 6 steps" in output
    assert "rows of scenes 72, rows of photos 24" in output
    place = "data/{}/mixed/clic/default/seed=0"
    views = EpochViews(workspace / place.format("05_model_input") / "views")
    captions = Table.open(workspace / "data/03_primary/mixed/captions.parquet", Caption)
    source = {row.sample_id: row.source for row in captions}
    epochs = [[view.sample_id for view in views.epoch(epoch)] for epoch in range(2)]
    for epoch in epochs:
        assert Counter(map(source.__getitem__, epoch)) == {"scenes": 36, "photos": 12}
    # Two halves of the photos are all of them, each once.
    drawn = [name for epoch in epochs for name in epoch if source[name] == "photos"]
    assert len(set(drawn)) == len(drawn) == 24
    comparison = json.loads(
        (workspace / place.format("07_model_output") / "comparison.json").read_text()
    )
    assert {row["slice"] for row in comparison["slices"]} == {"source=scenes", "source=photos"}
