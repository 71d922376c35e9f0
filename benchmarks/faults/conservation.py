"""Records of corrupted sources: used, rejected or left out, by every reader.

    python benchmarks/faults/conservation.py

A file of each source is cut off, has bits flipped, or a block of zeros. What is in it is counted
without the readers: lines of text, elements of JSON, files, and the rows and samples written into
Parquet and tar, as far as a byte of them is left. Ingest, of every other source with
`data.sample.rows`, has as many records, or refuses the file in one line.
"""

from __future__ import annotations

import csv
import io
import json
import random
import re
import shutil
import tarfile
import tempfile
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from compo_pipeline.core.settings import PlainError
from compo_pipeline.core.table_files import LOCAL
from compo_pipeline.data.quality.settings import IngestSettings, SentenceSettings
from compo_pipeline.data.readers import locate
from compo_pipeline.data.settings import DataSettings, SampleSettings
from compo_pipeline.pipelines.ingest.nodes import ingest_captions

RESULT = Path(__file__).parents[1] / "results" / "conservation.md"
ROWS, CASES = 40, 150
# Reader and the file that is corrupted; data.splits names it, or what `SOURCES` says.
FILES = """table rows.csv, table rows.tsv, table rows.jsonl, table rows.parquet,
cogvlm_laion rows.csv, neg_clip rows.tsv, img2dataset train.parquet, webdataset rows.tar,
image_parquet rows.parquet, coco_captions annotations/captions_train.json, folder train/7.jpg"""
SOURCES = {"captions_train.json": "train", "7.jpg": "train"}
IMAGES = [f"P5 1 1 255 {chr(48 + number)}".encode() for number in range(ROWS)]  # of one pixel
SETTINGS = IngestSettings(sentences=SentenceSettings(least_words=1, whole=True))


def write(name: str, file: Path, folder: Path) -> None:
    """Write a source: images in a folder, and the file with their captions."""
    texts = ("caption", "title")
    rows: list[dict[str, Any]] = [
        {
            **dict.fromkeys(texts, f"A dog, number {n}, sleeps on a red sofa."),
            **dict.fromkeys(("image", "filepath"), f"train/{n}.jpg"),
            **dict.fromkeys(("id", "image_id"), n),
            "file_name": f"{n}.jpg",
            "key": str(n),
        }
        for n in range(ROWS)
    ]
    for path in (file.parent, folder):
        path.mkdir(parents=True, exist_ok=True)
    for each, image in zip(rows, IMAGES, strict=True):
        (folder / each["file_name"]).write_bytes(image)
    if file.suffix == ".parquet":
        table = pa.Table.from_pylist(rows)
        if name == "image_parquet":
            table = table.append_column("pixels", pa.array(IMAGES))
        pq.write_table(table, file, row_group_size=10)
    elif file.suffix in (".csv", ".tsv"):
        header = [] if name == "cogvlm_laion" else [rows[0]]
        columns = ("image", "caption") if name == "cogvlm_laion" else tuple(rows[0])
        with file.open("w", encoding="utf-8", newline="") as lines:
            writer = csv.writer(lines, delimiter="\t" if file.suffix == ".tsv" else ",")
            writer.writerows([*header, *([each[key] for key in columns] for each in rows)])
    elif file.suffix == ".jsonl":
        file.write_text("".join(json.dumps(each) + "\n" for each in rows))
    elif file.suffix == ".tar":
        with tarfile.open(file, "w") as tar:
            for each, image in zip(rows, IMAGES, strict=True):
                for ending, content in (("jpg", image), ("txt", each["caption"].encode())):
                    member = tarfile.TarInfo(f"img v1.2 no.{each['key']}.{ending}")
                    member.size = len(content)
                    tar.addfile(member, io.BytesIO(content))
    elif name == "coco_captions":
        file.write_text(json.dumps({"images": rows, "annotations": rows}))


def corrupted(content: bytes, case: int) -> bytes:
    """The content, cut off, with one or eight bits flipped, or with a block of zeros."""
    draws, found = random.Random(case), bytearray(content)
    place = draws.randrange(len(content))
    if case % 3 == 0:
        return content[:place]
    if case % 3 == 1:
        size = min(draws.choice((512, 4096)), len(content) - place)
        return content[:place] + bytes(size) + content[place + size :]
    for at in draws.choices(range(len(content)), k=draws.choice((1, 8))):
        found[at] ^= 1 << draws.randrange(8)
    return bytes(found)


def count(name: str, suffix: str, content: bytes, whole: bytes) -> int:
    """Number of records in a corrupted file, counted without the readers."""
    if suffix in (".csv", ".tsv", ".jsonl"):
        ends = rb"\n" if suffix == ".jsonl" else rb"[\r\n]"
        header = suffix != ".jsonl" and name != "cogvlm_laion"
        return sum(bool(line.strip()) for line in re.split(ends, content)) - header
    if name == "coco_captions":
        images, texts = (json.loads(content)[key] for key in ("images", "annotations"))
        named = {each.get("image_id") for each in texts if "caption" in each and "id" in each}
        known = {each.get("id") for each in images if "file_name" in each}
        return len(texts) + len(images) - len(named & known)
    if suffix == ".tar":
        with tarfile.open(fileobj=io.BytesIO(whole)) as tar:
            starts = [*(member.offset for member in tar.getmembers()[::2]), tar.offset]
        return sum(any(content[start:end]) for start, end in pairwise(starts))
    return ROWS


def main() -> None:
    """Corrupt the files of all readers, and write the table."""
    head = "| reader | file | files | refused | in | used | rejected | left out |"
    lines = [head, "| --- " * 8 + "|"]
    for name, place in map(str.split, FILES.split(",")):
        root = Path(tempfile.mkdtemp())
        file, found = root / place, list[tuple[int, ...]]()
        write(name, file, root / "train")
        splits, whole = {"train": SOURCES.get(file.name, place)}, file.read_bytes()
        for case in range(CASES):
            file.write_bytes(corrupted(whole, case))
            sample = SampleSettings(rows=15 if case % 2 else None)
            data = DataSettings(root, name, splits, sample=sample, captioned=name != "folder")
            try:
                report = ingest_captions(locate(data), data, SETTINGS, LOCAL)[3]["records"]
            except PlainError as error:
                assert "\n" not in str(error), (name, error)
                continue
            there = count(name, file.suffix, file.read_bytes(), whole)
            sums = [sum(report[key].values()) for key in ("rejected", "left_out")]
            found.append((there, report["used"], *sums))
            assert there == report["used"] + sum(sums), (name, case, there, report)
        cells = (CASES, CASES - len(found), *map(sum, zip(*found, strict=True)))
        lines.append(f"| `{name}` | {place} | {' | '.join(f'{cell:,}' for cell in cells)} |")
        shutil.rmtree(root)
    text = (
        "`python benchmarks/faults/conservation.py`: in = used + rejected + left out, of each file."
    )
    RESULT.write_text("\n".join(["# Records of corrupted sources", "", text, "", *lines, ""]))


if __name__ == "__main__":
    main()
