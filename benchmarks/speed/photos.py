"""Time from a folder of photos with captions to a measured and registered model, on this machine.

    python benchmarks/speed/photos.py FOLDER

FOLDER has train2017/ and annotations/captions_train2017.json in COCO's layout, val2017 likewise.
Runs the command of the README in a project of its own: CLIC and its control on ViT-B/32, whose
weights are random, as their values do not change the time. Adds machine, photos, captions, steps
and minutes to benchmarks/results/photos.json.
"""

from __future__ import annotations

import argparse
import csv
import json
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

import idle
from compo_pipeline.core import compute

PROJECT = Path(__file__).parents[2]
RESULT = PROJECT / "benchmarks" / "results" / "photos.json"
STEPS = re.compile(r"training clic: .* of (\d+)")


def write_table(coco: Path, folder: Path) -> dict[str, int]:
    """The photos, and captions.csv that lists them."""
    (folder / "photos").mkdir(parents=True)
    rows = []
    for split in ("train2017", "val2017"):
        listed = json.loads((coco / f"annotations/captions_{split}.json").read_text("utf-8"))
        names = {image["id"]: image["file_name"] for image in listed["images"]}
        for image in names.values():
            shutil.copy(coco / split / image, folder / "photos")
        rows += [(f"photos/{names[a['image_id']]}", a["caption"]) for a in listed["annotations"]]
    with (folder / "captions.csv").open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([("image", "caption"), *rows])
    return {"photos": len({image for image, _ in rows}), "captions": len(rows)}


def measured(coco: Path) -> dict[str, Any]:
    """What a run of README's command took."""
    load = idle.load()
    with tempfile.TemporaryDirectory() as name:
        project = Path(name)
        (project / "src").mkdir()
        for part in ("conf", "pyproject.toml"):
            (project / part).symlink_to(PROJECT / part)
        given = write_table(coco.resolve(), project / "photos")
        params = f"data.root={project / 'photos'},dataset=photos,model.pretrained=null"
        command = ["kedro", "run", "--pipeline=train_eval", "--env=table", f"--params={params}"]
        began = time.monotonic()
        ended = subprocess.run(
            [sys.executable, "-m", *command], cwd=project, capture_output=True, text=True
        )
        minutes = (time.monotonic() - began) / 60
    if ended.returncode:
        raise SystemExit(f"{' '.join(command)}\n{(ended.stdout + ended.stderr)[-3000:]}")
    steps = [int(found) for found in STEPS.findall(ended.stdout + ended.stderr)]
    return {
        "machine": compute.environment(torch.device("cpu")),
        "cores": compute.cores(),
        "load": load,
        **given,
        "steps": max(steps),
        "minutes": round(minutes, 1),
    }


def main() -> None:
    """Measure, add to the result."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("coco", type=Path, metavar="FOLDER")
    found = measured(parser.parse_args().coco)
    kept = json.loads(RESULT.read_text("utf-8")) if RESULT.exists() else []
    RESULT.write_text(json.dumps([*kept, found], indent=1) + "\n", encoding="utf-8")
    print(json.dumps(found))


if __name__ == "__main__":
    main()
