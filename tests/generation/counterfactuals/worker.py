"""Generates counterfactuals with an editor and a generator of its own, and dies at a given step."""

import os
import signal
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
from PIL import Image

from compo_pipeline.core.records import Caption, Counterfactual, Parse, Rejected
from compo_pipeline.core.tables import Table
from compo_pipeline.data.catalog import FolderDataset
from compo_pipeline.generation.counterfactuals.contract import (
    EditedCaption,
    EditRequest,
    ImageRequest,
)
from compo_pipeline.generation.counterfactuals.generation import Jobs, Parser, generate, publish
from compo_pipeline.generation.counterfactuals.settings import CounterfactualSettings

IDS = ("plain", "../odd/..\\id", "x" * 200, "Ünïcode ✓", "plain2", "no image", "PLAIN")
ROWS = tuple(
    Caption(name, name, f"{place}.png", 8, 6, (f"a cat, {place}", f"a dog, {place}"), "t", "train")
    for place, name in enumerate(IDS)
)
HASHES = {row.image: f"hash of {row.image}" for row in ROWS}


@dataclass
class Log:
    """Calls, one a line, kept on disk whatever happens; `deadly` names the step that kills."""

    file: Path
    deadly: str = ""

    def step(self, kind: str, *of: object) -> None:
        steps = self.steps()
        if self.deadly == f"{kind} {sum(step[0] == kind for step in steps) + 1}":
            os.kill(os.getpid(), signal.SIGKILL)
        with self.file.open("a") as file:
            file.write("\t".join([kind, *map(repr, of)]) + "\n")

    def steps(self) -> list[list[str]]:
        lines = self.file.read_text().splitlines() if self.file.exists() else []
        return [line.split("\t") for line in lines]

    def asked(self, kind: str) -> list[tuple[str, ...]]:
        return [tuple(of) for name, *of in self.steps() if name == kind]


@dataclass
class Upper:
    """Writes in capitals; finds nothing positive to say about 'no image'."""

    log: Log
    settings_fingerprint: str = "w1"
    name: str = "upper"
    concurrent: bool = False

    def edit(self, requests: Sequence[EditRequest]) -> Iterator[EditedCaption | str]:
        for one in requests:
            assert one.parse.text == one.caption
            self.log.step("text", one.sample_id, one.sentence, one.role)
            if (one.sample_id, one.role) == ("no image", "positive"):
                yield "nothing to say"
            else:
                yield EditedCaption(f"{one.caption.upper()} {one.role}", "capitals")


@dataclass
class Painter:
    """Paints a colour; fails at the negative of 'no image'."""

    log: Log
    settings_fingerprint: str = "m1"
    name: str = "painter"

    def generate(self, requests: Sequence[ImageRequest]) -> Iterator[Image.Image | str]:
        for one in requests:
            self.log.step("image", one.sample_id, one.sentence, one.role)
            if one.sample_id == "no image":
                yield "no paint"
            else:
                shade = one.seed % 256
                yield Image.new("RGB", (8, 6), (shade, 255 - shade, len(one.text)))


def parser() -> Parser:
    def parse(items: Iterable[tuple[str, int, str]]) -> Iterator[Parse]:
        for name, sentence, text in items:
            yield Parse(name, sentence, text, (), (), (), (), ())

    return Parser("words==1", parse)


def run(
    folder: Path,
    log: Log,
    *,
    editor: str = "w1",
    generator: str | None = "m1",
    rows: Sequence[Caption] = ROWS,
    **settings: Any,
) -> tuple[list[Counterfactual], list[Rejected]]:
    chosen = CounterfactualSettings(**settings)
    painter = Painter(log, generator) if generator else None
    state = folder / "state"
    hashes = pa.chunked_array([[HASHES[row.image] for row in rows]])
    jobs = Jobs(Table.of(rows, Caption), hashes, chosen.sentences)
    editing = Upper(log, editor), parser()
    made, failed = generate(jobs, *editing, painter, chosen, folder / "real", state)
    images = publish([row.image for row in made], state)
    FolderDataset(filepath=str(folder / "images")).save(images)
    return list(made), list(failed)


def deadly(log: Log, kind: str, act: Callable[..., Any]) -> Callable[..., Any]:
    def acted(*given: Any, **named: Any) -> Any:
        log.step(kind)
        return act(*given, **named)

    return acted


def run_until(folder: Path, step: str) -> None:
    """Run up to a step such as "image 3", which kills this process: it is for one of its own."""
    diary = Log(folder / "calls.log", step)
    # An image is written but has no name yet; a link of the published folder is about to be made.
    Path.replace = deadly(diary, "rename", Path.replace)  # type: ignore[method-assign]
    Path.hardlink_to = deadly(diary, "link", Path.hardlink_to)  # type: ignore[method-assign]
    run(folder, diary)
