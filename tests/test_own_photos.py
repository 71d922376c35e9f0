"""Images and one table of captions, trained and judged as docs/tutorials/your-photos.md says."""

import csv
import json
import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image


@pytest.mark.slow
def test_sixty_photos_with_single_sentences(workspace: Path, tiny_clip: Path) -> None:
    photos = workspace / "photos"
    photos.mkdir()
    colours = ("red", "green", "blue", "white")
    rows = []
    for number in range(60):
        left, right = colours[number % 4], colours[number // 4 % 4]
        image = Image.effect_noise((64, 48), number + 1).convert("RGB")
        image.paste(Image.new("RGB", (20, 20), left), (number % 10, number // 4))
        image.save(photos / f"{number}.png")
        rows.append((f"{number}.png", f"A {left} chair {number} stands left of a {right} table."))
    with (photos / "captions.csv").open("w", newline="") as file:
        csv.writer(file).writerows([("image", "caption"), *rows])
    params = f"data.root={photos},dataset=mine,model.name=local-dir:{tiny_clip}"
    done = subprocess.run(
        [sys.executable, "-m", "kedro", "run", "--env=table", "--params", params],
        cwd=workspace,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    output = " ".join((done.stdout + done.stderr).split())
    assert "captions have fewer than 2 sentences" in output
    run = "data/{}/mine/clic/default/seed=0"
    comparison = json.loads(
        (workspace / run.format("07_model_output") / "comparison.json").read_text()
    )
    assert {row["benchmark"] for row in comparison["rows"]} == {"retrieval"}
    assert (workspace / run.format("08_reporting") / "report" / "report.html").is_file()
    report = json.loads((workspace / "data/08_reporting/mine/ingest.json").read_text())
    splits = report["rows_by_split"]
    assert report["records"]["source"] == 60 and set(splits) == {"train", "val", "test"}
