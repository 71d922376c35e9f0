"""A user's own package plugs in a format of data, its edits and its base model, and is run."""

import json
import os
import sys
from pathlib import Path

import pytest
from tests.processes import ran

CODE = '''
"""Squares: pictures of one colour, made here."""

import json
from pathlib import Path

from PIL import Image

from compo_pipeline.core.settings import settings
from compo_pipeline.generation.counterfactuals.contract import (
    EditedCaption, EditorEntry, GeneratorEntry
)

COLOURS = {"red": (255, 0, 0), "green": (0, 160, 0), "blue": (0, 0, 255), "grey": (90, 90, 90)}


@settings
class Squares:
    """What is drawn."""

    side: int = 32
    """Of an image, in pixels."""


@settings
class Swap:
    """How colours are exchanged."""

    colour: str = "grey"
    """The colour that takes the place of every other one."""


def generate(given, root):
    side = given.side
    for split in ("train", "val", "test"):
        (root / split).mkdir(parents=True, exist_ok=True)
        images, captions = [], []
        for number, (name, rgb) in enumerate(COLOURS.items()):
            size = side + len(split) + number  # no two images are the same
            Image.new("RGB", (size, size), rgb).save(root / split / f"{name}.png")
            images.append({"id": number, "file_name": f"{name}.png", "width": size, "height": size})
            text = f"A {name} square of the {split} split."
            captions.append({"id": number, "image_id": number, "caption": text})
        (root / "annotations").mkdir(exist_ok=True)
        file = root / "annotations" / f"captions_{split}.json"
        file.write_text(json.dumps({"images": images, "annotations": captions}))


def benchmarks(root, split):
    return f"{root}/about/{split}"


def recipes():
    return ()


class Swapper:
    name, settings_fingerprint, concurrent = "squares", "1", False

    def __init__(self, colour):
        self.colour = colour

    def edit(self, requests):
        for request in requests:
            words = request.caption.split()
            words[1] = self.colour if request.role == "negative" else f"{words[1]}, flat"
            yield EditedCaption(" ".join(words), "swapped")

    def generate(self, requests):
        for request in requests:
            colour = request.text.split()[1].strip(",")
            yield Image.new("RGB", (40, 40), COLOURS[colour])


def open_editor(given, key, opening):
    assert opening.generator_settings.side == 240, opening.generator_settings
    return Swapper(given.colour)


def open_generator(given, key, opening, editor):
    return editor


EDITOR = EditorEntry(Swap, "squares:open_editor", parses=False)
GENERATOR = GeneratorEntry(Swap, "squares:open_generator", editor="squares")


def base_model():
    return Path(__file__).with_name("base")
'''
POINTS = """\
[compo_pipeline.settings]
squares = squares:Squares
[compo_pipeline.readers]
squares = compo_pipeline.data.readers.coco_captions
[compo_pipeline.data_generators]
squares = squares
[compo_pipeline.caption_editors]
squares = squares:EDITOR
[compo_pipeline.image_generators]
squares = squares:GENERATOR
[compo_pipeline.base_models]
squares-base = squares:base_model
"""
OWN = {
    "dataset": "squares",
    "data.format": "squares",
    "data.root": "data/01_raw/squares",
    "squares.side": "240",
    "method": "sparcl",
    "counterfactuals.caption_editor": "squares",
    "counterfactuals.image_generator": "squares",
    "benchmarks.root": "null",
    "model.name": "squares-base",
    "training.max_steps": "1",
    "training.batch_size": "2",
    "training.validation.every": "null",
    "evaluation.control": "false",
}


@pytest.fixture
def installed(tmp_path: Path, tiny_clip: Path) -> Path:
    """The folder of the package, as pip leaves it."""
    (tmp_path / "squares").mkdir()
    (tmp_path / "squares" / "__init__.py").write_text(CODE)
    (tmp_path / "squares" / "base").symlink_to(tiny_clip)
    (tmp_path / "squares-1.0.dist-info").mkdir()
    metadata = {"METADATA": "Metadata-Version: 2.1\nName: squares\n", "entry_points.txt": POINTS}
    for name, text in metadata.items():
        (tmp_path / "squares-1.0.dist-info" / name).write_text(text)
    return tmp_path


def test_a_package_s_data_are_made_edited_and_trained_on(installed: Path, workspace: Path) -> None:
    chain = "ingest,validation,foils,counterfactuals,views,training"
    command = [sys.executable, "-m", "kedro", "run", "--env=smoke", f"--pipelines={chain}"]
    given = ",".join(f"{key}={value}" for key, value in OWN.items())
    path = os.pathsep.join([str(installed), os.environ.get("PYTHONPATH", "")])
    done = ran([*command, "--params", given], workspace, PYTHONPATH=path)
    assert done.returncode == 0, done.stdout + done.stderr
    source = json.loads((workspace / "data/02_intermediate/squares/source.json").read_text())
    assert source["format"] == "squares" and list(source["splits"]) == ["train", "val", "test"]
    (images,) = (workspace / "data/05_model_input/squares").rglob("counterfactual_images")
    made = [file for file in images.rglob("*") if file.is_file()]
    assert len(made) == 2 * 4
