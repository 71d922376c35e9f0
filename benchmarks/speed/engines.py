"""Partitions a second of each engine of preparation, and processor time of each of its steps.

    python benchmarks/speed/engines.py [--engines local processes]

Captions of rendered scenes, all different, are parsed and CLIC's views of them are drawn, in parts
of 500 rows; every engine must give the bytes of `local`. Each engine gets two lengths: their
difference leaves out the start of the workers, which the first run shows, over two parts. Seconds
are those of the clock, so the machine should do nothing else; core hours are processor time of the
engine `local`, whatever else runs. Adds the figures to benchmarks/results/engines.json and writes
engines.md.
"""

from __future__ import annotations

import argparse
import itertools
import json
import logging
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pyarrow as pa
from PIL import Image

import idle
from compo_pipeline.core import compute, table_files
from compo_pipeline.core.records import Caption, Parse
from compo_pipeline.core.seeding import rng
from compo_pipeline.core.table_files import LOCAL, Parts, PrepareSettings, write_rows
from compo_pipeline.core.tables import Table
from compo_pipeline.data.quality.ingest import measure
from compo_pipeline.data.quality.settings import IngestSettings
from compo_pipeline.generation.counterfactuals.contract import Opening
from compo_pipeline.generation.counterfactuals.editors.rules import RuleEditor
from compo_pipeline.generation.counterfactuals.generation import Jobs, Parser, generate
from compo_pipeline.generation.counterfactuals.settings import CounterfactualSettings, RulesSettings
from compo_pipeline.language.parsing import CaptionParser, parse_by
from compo_pipeline.methods.clic import Clic, ClicObjective, ClicViews
from compo_pipeline.methods.contract import ViewContext
from compo_pipeline.methods.views import write
from compo_scenes.captions import sentences
from compo_scenes.world import World

RESULTS = Path(__file__).parents[1] / "results"
PART = 500
FIRST, ROWS = 1000, (4000, 12000)
IMAGE = (640, 480)
ENGINES = {"local": LOCAL, "processes": PrepareSettings(compute.cores())}
IMAGES = 200
MODEL = "compo_en"


def captions(rows: int, folder: Path) -> Table[Caption]:
    """Two sentences a row, in a file."""
    scenes = itertools.islice(World().scenes(0, "train"), rows)

    def row(number: int, texts: tuple[str, ...]) -> Caption:
        image = f"{number}.jpg"
        return Caption(str(number), image, image, *IMAGE, texts, "scenes", "train")

    told = (sentences(scene, rng(scene.scene_id))[:2] for scene in scenes)
    write_rows(
        folder / "captions.parquet",
        (
            row(number, (f"{first[:-1]} {number}.", *more))
            for number, (first, *more) in enumerate(told)
        ),
        Caption,
    )
    return Table.open(folder / "captions.parquet", Caption)


def prepared(rows: Table[Caption], folder: Path, engine: PrepareSettings) -> dict[str, float]:
    """Seconds of parses and of views, by the clock and of this processor."""
    parser, found = CaptionParser(rows, MODEL, 1), {}

    def timed(name: str, work: Callable[[], None]) -> None:
        wall, processor = time.perf_counter(), time.process_time()
        work()
        found[name] = time.perf_counter() - wall
        found[f"{name}, processor"] = time.process_time() - processor

    parses = Parts("parses", parser, len(rows), "all", engine)
    timed("parses", lambda: write_rows(folder / "parses.parquet", parses, Parse))
    context = ViewContext.from_parses(Table.open(folder / "parses.parquet", Parse), MODEL, 0, {})
    method = Clic(ClicViews(), ClicObjective())
    timed("views", lambda: write(method, rows, context, 1, folder / "views", "all", engine))
    return found


def contents(folder: Path) -> dict[str, bytes]:
    """The tables that were written."""
    return {str(file.relative_to(folder)): file.read_bytes() for file in folder.rglob("*.parquet")}


def processor_time(rows: Table[Caption], folder: Path) -> dict[str, float]:
    """Seconds an image is measured, and a caption edited twice, by the processor's time."""
    noise = Image.effect_noise(IMAGE, 60).convert("RGB")
    noise.save(folder / "0.jpg")
    for number in range(1, IMAGES):
        (folder / f"{number}.jpg").write_bytes((folder / "0.jpg").read_bytes() + b"%d" % number)
    names = [f"{number}.jpg" for number in range(IMAGES)]
    began = time.process_time()
    list(measure(folder, names, IngestSettings(), PrepareSettings(workers=1)))
    measured = time.process_time() - began
    few = rows[: 2 * PART]
    hashes = pa.chunked_array([["0"] * len(few)])
    editor = RuleEditor(RulesSettings(), "counterfactuals.rules", Opening(0))
    parser = Parser("", partial(parse_by, MODEL))
    settings = CounterfactualSettings()
    jobs = Jobs(Table.of(few, Caption), hashes, settings.sentences)
    began = time.process_time()
    generate(jobs, editor, parser, None, settings, folder, folder / "state")
    edited = time.process_time() - began
    return {"image measured": measured / IMAGES, "caption parsed and edited": edited / len(few)}


def compared(rows: Table[Caption], folder: Path, name: str) -> dict[str, float]:
    """Parts a second of both steps, and seconds of a first run."""
    engine = ENGINES[name]
    first = prepared(rows[:FIRST], folder / f"{name}-{FIRST}", engine)
    short, long = (prepared(rows[:count], folder / f"{name}-{count}", engine) for count in ROWS)
    found = {}
    for step in ("parses", "views"):
        found[step] = (ROWS[1] - ROWS[0]) / PART / (long[step] - short[step])
        found[f"{step}, first"] = first[step]
        processor = f"{step}, processor"
        found[processor] = (long[processor] - short[processor]) / (ROWS[1] - ROWS[0])
    return found


def table(results: dict[str, dict[str, float]]) -> str:
    """The figures as Markdown."""
    machine, costs = results["machine"], results["seconds of one core"]
    lines = [
        "# Engines of preparation",
        "",
        f"`python benchmarks/speed/engines.py`: captions in parts of {PART}, "
        f"{machine['cores']:.0f} workers on as many cores; all tables have equal "
        f"bytes. Load of the machine before: {machine['load']:.0f}.",
        "",
        "| engine | parses, parts a second | first two, s | views, parts a second | first two, s |",
        "| --- | --- | --- | --- | --- |",
    ]
    for name in ENGINES:
        if found := results.get(name):
            steps = (
                f"{found[step]:.2f} | {found[f'{step}, first']:.1f}" for step in ("parses", "views")
            )
            lines.append(f"| {name} | {' | '.join(steps)} |")
    lines += [
        "",
        "| step | milliseconds of one core | core hours a million |",
        "| --- | --- | --- |",
    ]
    lines += [
        f"| {step} | {1e3 * cost:.2f} | {cost / 3.6e-3:.2f} |" for step, cost in costs.items()
    ]
    return "\n".join(lines) + "\n"


def main() -> None:
    """Measure, and write the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--engines", nargs="+", choices=ENGINES, default=[*ENGINES])
    options = parser.parse_args()
    logging.basicConfig(level=logging.WARNING)
    file = RESULTS / "engines.json"
    results = json.loads(file.read_text()) if file.exists() else {}
    table_files.PART = PART
    results["machine"] = {"cores": compute.cores(), "load": idle.load()}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        rows = captions(ROWS[1], folder)
        for engine in options.engines:
            results[engine] = compared(rows, folder, engine)
            print(engine, results[engine])
            for count in ROWS:
                first = contents(folder / f"{options.engines[0]}-{count}")
                assert contents(folder / f"{engine}-{count}") == first, engine
        if "local" in options.engines:
            results["seconds of one core"] = {
                "caption parsed": results["local"]["parses, processor"],
                "view drawn": results["local"]["views, processor"],
                **processor_time(rows, folder),
            }
    file.write_text(json.dumps(results, indent=2) + "\n")
    (RESULTS / "engines.md").write_text(table(results))


if __name__ == "__main__":
    main()
