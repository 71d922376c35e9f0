"""Time and peak memory of joining captions of a table to the images of Parquet files.

    python benchmarks/joins.py [--rows 1000000]

The files have addresses as keys and cells without images, so that the join is all that costs. The
table is a CSV in another order; a tenth of its captions has no image, and as many images have no
caption. The join is a process of its own, which reads all records once, as ingest does. Writes
benchmarks/results/joins.json and joins.md.
"""

from __future__ import annotations

import argparse
import csv
import json
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa
import pyarrow.parquet as pq

from compo_pipeline.datasets import readers
from compo_pipeline.datasets.settings import CaptionTable, DataSettings
from compo_pipeline.storage.records import Rejected

RESULTS = Path(__file__).parent / "results"
SHARD = 100_000
MOST_SECONDS, MOST_BYTES = 60, 2 * 10**9


def address(number: int) -> str:
    """The address of an image."""
    return f"https://images.example.org/{number * 2654435761 % 2**32:010d}/{number}.jpg?w=1024"


def write_data(folder: Path, rows: int) -> None:
    """Parquet files of images without bytes, and captions of nine tenths of them and others."""
    kind = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    for start in range(0, rows, SHARD):
        numbers = range(start, min(start + SHARD, rows))
        cells = pa.array([{"bytes": b"", "path": None}] * len(numbers), kind)
        table = pa.table({"image": cells, "url": [address(number) for number in numbers]})
        pq.write_table(table, folder / f"{start // SHARD:05}.parquet")
    order = list(range(rows // 10, rows + rows // 10))
    random.Random(0).shuffle(order)
    with (folder / "captions.csv").open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["url", "caption"])
        for number in order:
            writer.writerow([address(number), f"A dog sleeps on red sofa {number}, in the sun."])


def peak() -> int:
    """The most bytes that this process has had in memory; of the processes before it none count."""
    (line,) = (
        each for each in Path("/proc/self/status").read_text().splitlines() if "VmHWM" in each
    )
    return int(line.split()[1]) * 1024


def joined(folder: Path) -> dict[str, Any]:
    """Join all, and count."""
    started = time.perf_counter(), time.process_time()
    table = CaptionTable(file="captions.csv", key="url", image_key="url")
    data = DataSettings(folder, "image_parquet", {"train": "*.parquet"}, captions=table)
    report: dict[str, Any] = {}
    rejected = sum(isinstance(each, Rejected) for each in readers.read(data, report))
    return {
        "seconds": time.perf_counter() - started[0],
        "processor seconds": time.process_time() - started[1],
        "peak bytes": peak(),
        "rejected": rejected,
        "report": report,
    }


def lines(machine: dict[str, Any], found: dict[str, Any]) -> str:
    """The figures as Markdown."""
    report = found["report"]
    return (
        "# Joined captions\n\n"
        f"`python benchmarks/joins.py`: {machine['processor']}, {machine['cores']} cores; "
        f"load before: {machine['load']:.1f}.\n\n"
        "| captions | images | matched | seconds | processor's seconds | peak memory, MB |\n"
        "| --- | --- | --- | --- | --- | --- |\n"
        f"| {report['captions']:,} | {report['images']:,} | {report['matched']:,} | "
        f"{found['seconds']:.1f} | {found['processor seconds']:.1f} | "
        f"{found['peak bytes'] / 1e6:.0f} |\n"
    )


def main() -> None:
    """Measure, and write the table.

    Raises:
        SystemExit: the join takes too long, or too much memory.
    """
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--folder", type=Path, help="join what is there, and print the figures")
    options = parser.parse_args()
    if options.folder is not None:
        print(json.dumps(joined(options.folder)))
        return
    # Its import takes a gigabyte, which the join has no part in.
    from training_speed import processor

    machine = {
        "processor": processor(),
        "cores": psutil.cpu_count(),
        "load": psutil.getloadavg()[0],
    }
    with tempfile.TemporaryDirectory() as name:
        write_data(Path(name), options.rows)
        command = [sys.executable, __file__, "--folder", name]
        output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    found = json.loads(output)
    print(json.dumps(found, indent=1))
    if found["seconds"] > MOST_SECONDS or found["peak bytes"] > MOST_BYTES:
        raise SystemExit(f"expected at most {MOST_SECONDS} s and {MOST_BYTES} bytes")
    (RESULTS / "joins.json").write_text(json.dumps({"machine": machine, **found}, indent=2) + "\n")
    (RESULTS / "joins.md").write_text(lines(machine, found))


if __name__ == "__main__":
    main()
