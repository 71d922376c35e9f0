"""Peak memory and time of each pipeline, by the number of caption rows.

    python benchmarks/speed/memory.py [--rows 20000 100000] [--pipelines ingest ...] [--name now]
                                [--params method=...] [--control-group /sys/fs/cgroup/...]

Captions are those of rendered scenes, five rows an image, with a number in each so that all differ.
The images are crops of one small file, so that rows cost more than pixels. Each pipeline is a
process of its own, `kedro run`. `own` is its largest private memory, the largest worker apart;
`resident` counts pages of mapped files too, which the system takes back when it needs them.
Training is 20 steps of CLIC without stored features, and two loader workers. Adds the figures under
a name to benchmarks/results/memory.json and writes memory.md from it.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import yaml
from PIL import Image

from compo_pipeline.core.seeding import rng
from compo_scenes.captions import sentences
from compo_scenes.world import World

RESULTS = Path(__file__).parents[1] / "results"
PROJECT = RESULTS.parents[1]
PACKAGES = sorted(file.parent for file in PROJECT.glob("src/*/__init__.py"))
PIPELINES = ("ingest", "validation", "foils", "counterfactuals", "views", "training")
FIGURES = ("own", "resident", "worker", "seconds", "processor")
ROWS_AN_IMAGE = 5
SCENES = 2_000
BATCH = 10_000
CONFIGURATION: dict[str, Any] = {
    "data": {
        "root": "data/01_raw/memory",
        "format": "table",
        "splits": {"train": "captions.parquet", "val": None, "test": None},
    },
    "ingest": {"sentences": {"least_words": 2, "most_words": 60}},
    "training": {
        "max_steps": 20,
        "batch_size": 64,
        "workers": 2,
        "cache_features": False,
        "device": "cpu",
        "precision": "fp32",
    },
    "evaluation": {"control": False},
}


def write_data(root: Path, rows: int) -> None:
    """A table of captions, and the image that they show parts of."""
    root.mkdir(parents=True)
    Image.linear_gradient("L").resize((64, 48)).convert("RGB").save(root / "image.png")
    scenes = itertools.islice(World().scenes(0, "train"), SCENES)
    texts = itertools.cycle([sentences(scene, rng(scene.scene_id)) for scene in scenes])
    columns = pa.schema([("image", pa.string()), ("caption", pa.string())])
    with pq.ParquetWriter(root / "captions.parquet", columns) as writer:
        for start in range(0, rows, BATCH):
            numbers = range(start, min(start + BATCH, rows))
            images = [f"image.png#xywh=0,0,{64 + number // ROWS_AN_IMAGE},48" for number in numbers]
            captions = [_numbered(*next(texts), number=number) for number in numbers]
            writer.write_table(pa.table([images, captions], schema=columns))


def _numbered(first: str, *further: str, number: int) -> str:
    """A caption whose first sentence has a number."""
    return " ".join([f"{first.removesuffix('.')} at number {number}.", *further])


def measured(
    pipeline: str, folder: Path, params: str, control_group: Path | None
) -> dict[str, float]:
    """MiB of a pipeline's process, and seconds by the clock and of the processor."""
    command = [sys.executable, "-m", "kedro", "run", "--env=memory", f"--pipeline={pipeline}"]
    command += [f"--params={params}"] if params else []
    if control_group is not None:
        join = 'echo $$ > "$0"/cgroup.procs && exec "$@"'
        command = ["sh", "-c", join, str(control_group), *command]
    log = folder / f"{pipeline}.log"
    began = time.monotonic()
    with log.open("w") as output:
        process = subprocess.Popen(command, cwd=folder, stdout=output, stderr=output)
    peaks = {"own": 0.0, "resident": 0.0, "worker": 0.0}
    while (ended := os.wait4(process.pid, os.WNOHANG))[0] == 0:
        for child, own, resident in _memory(process.pid):
            peaks["worker" if child else "own"] = max(peaks["worker" if child else "own"], own)
            peaks["resident"] = max(peaks["resident"], 0 if child else resident)
        time.sleep(0.02)
    _, status, used = ended
    if status:
        raise SystemExit(f"{log}:\n{log.read_text()[-3000:]}")
    processor = used.ru_utime + used.ru_stime
    return {"seconds": time.monotonic() - began, "processor": processor, **peaks}


def _memory(pid: int) -> Iterator[tuple[bool, float, float]]:
    """Of a process and its children: whether it is a child, private and resident MiB."""
    try:
        processes = [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]
    except psutil.Error:
        return
    for process in processes:
        try:
            memory = process.memory_info()
        except psutil.Error:
            continue
        yield process.pid != pid, (memory.rss - memory.shared) / 2**20, memory.rss / 2**20


def table(results: dict[str, dict[str, dict[str, dict[str, float]]]]) -> str:
    """The figures as Markdown."""
    lines = [
        "# Memory by rows",
        "",
        "`python benchmarks/speed/memory.py`: peak MiB of private memory, of all resident pages, "
        "and of the largest worker, and seconds by the clock and, where measured, of the "
        "processor.",
        "",
        "| code | rows | pipeline | own | resident | worker | seconds | processor |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for name, by_rows in results.items():
        for rows, by_pipeline in by_rows.items():
            for pipeline, found in by_pipeline.items():
                figures = " | ".join(
                    f"{found[key]:,.0f}" if key in found else "" for key in FIGURES
                )
                lines.append(f"| {name} | {int(rows):,} | {pipeline} | {figures} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Measure, and write the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", nargs="+", type=int, default=[20_000, 100_000])
    parser.add_argument("--pipelines", nargs="+", choices=PIPELINES, default=PIPELINES)
    parser.add_argument("--name", default="now", help="of the code that is measured")
    parser.add_argument("--params", default="", help="of `kedro run`")
    parser.add_argument(
        "--control-group", type=Path, help="folder of a control group that limits the pipelines"
    )
    options = parser.parse_args()
    file = RESULTS / "memory.json"
    results = json.loads(file.read_text()) if file.exists() else {}
    os.environ.update(OMP_NUM_THREADS="1", KEDRO_DISABLE_TELEMETRY="1")
    for rows in options.rows:
        found = results.setdefault(options.name, {}).setdefault(str(rows), {})
        with tempfile.TemporaryDirectory() as name:
            folder, environment = Path(name), Path(name) / "conf" / "memory"
            environment.mkdir(parents=True)
            (folder / "src").mkdir()
            # This code and configuration, and an environment beside the others.
            for part in (PROJECT / "pyproject.toml", *PROJECT.glob("conf/*"), *PACKAGES):
                (folder / part.relative_to(PROJECT)).symlink_to(part)
            globals_ = {"dataset": "memory", "data": {"root": CONFIGURATION["data"]["root"]}}
            (environment / "globals.yml").write_text(yaml.safe_dump(globals_))
            (environment / "parameters.yml").write_text(yaml.safe_dump(CONFIGURATION))
            write_data(folder / CONFIGURATION["data"]["root"], rows)
            for pipeline in options.pipelines:
                found[pipeline] = measured(
                    *(pipeline, folder, options.params, options.control_group)
                )
                print(rows, pipeline, {key: round(value) for key, value in found[pipeline].items()})
                file.write_text(json.dumps(results, indent=2) + "\n")
                (RESULTS / "memory.md").write_text(table(results))


if __name__ == "__main__":
    main()
