"""Scenes, all their edits and the validation items, for benchmarks/relations_search.py.

    kedro run --pipelines=raw
    python benchmarks/relations_data.py

Embeds images with the base's image trunk, which no training of the search changes, and tokenizes
texts. Writes data/relations_search.npz: pooled images, token ids, and rows of their numbers (-1
where there is none).
"""

from __future__ import annotations

import argparse
import io
import json
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from compo_pipeline.models.encoding import pool_images
from compo_pipeline.models.loading import LoadedModel, load
from compo_pipeline.models.settings import ModelSettings
from compo_pipeline.run.seeding import rng
from compo_scenes.captions import sentences
from compo_scenes.counterfactuals import edit
from compo_scenes.edits import EDITS, EditKind
from compo_scenes.render import image
from compo_scenes.world import Scene, World

DATA = Path("data/relations_search.npz")
# The edits of a caption: two that ask for a relation, one for a binding, and any.
KINDS: tuple[tuple[EditKind, ...], ...] = (
    *(("replace_relation",), ("swap_things",), ("swap_colours",)),
    tuple(EDITS),
)
FORMATS = {
    "sugar_crepe": ("caption", "negative_caption"),
    "sugar_crepe_pp": ("caption", "caption2", "negative_caption"),
}


class Prepared:
    """Images and texts by number, and the rows that refer to them."""

    def __init__(self, base: LoadedModel) -> None:
        """Start without any."""
        self._base = base
        self._pending: list[Image.Image] = []
        self._pooled: list[NDArray[np.float16]] = []
        self._texts: dict[str, int] = {}
        self._files: dict[Path, int] = {}
        self._images = 0
        self.arrays: dict[str, NDArray[Any]] = {}

    def image(self, picture: Image.Image) -> int:
        """The number of a picture."""
        self._pending.append(picture)
        if len(self._pending) == 256:
            self._pool()
        self._images += 1
        return self._images - 1

    def file(self, path: Path) -> int:
        """The number of an image file."""
        if path not in self._files:
            self._files[path] = self.image(Image.open(path).convert("RGB"))
        return self._files[path]

    def text(self, text: str) -> int:
        """The number of a text."""
        return self._texts.setdefault(text, len(self._texts))

    def _pool(self) -> None:
        pixels = torch.stack([self._base.preprocess(one) for one in self._pending])
        with torch.inference_mode(), torch.autocast("cpu", torch.bfloat16):
            self._pooled.append(pool_images(self._base.model, pixels).half().numpy())
        self._pending.clear()

    def write(self, path: Path) -> None:
        """Write images, tokens and rows."""
        self._pool()
        tokens = self._base.tokenize(list(self._texts)).numpy().astype(np.uint16)
        longest = (tokens != 0).any(0).nonzero()[0].max() + 1
        pooled = np.concatenate(self._pooled)
        arrays: dict[str, Any] = {**self.arrays, "pooled": pooled, "tokens": tokens[:, :longest]}
        np.savez_compressed(path, **arrays)


def as_jpeg(picture: Image.Image) -> Image.Image:
    """A rendered scene as the dataset stores it."""
    stored = io.BytesIO()
    picture.save(stored, "JPEG", quality=92, subsampling=0)
    return Image.open(stored).convert("RGB")


def add_training(data: Prepared, scenes: int) -> None:
    """Add rows: a real image and text, those of the rephrased caption, and of each of KINDS."""
    for name, counts in (("any", (0.35, 0.5, 0.15)), ("several", (0.0, 0.7, 0.3))):
        world = replace(World(), counts=counts)
        rows = [_row(data, scene) for scene in islice(world.scenes(0, "train"), scenes)]
        data.arrays[f"rows_{name}"] = np.array(rows)


def add_validation(data: Prepared, root: Path, retrieval: int) -> None:
    """Add the validation items of the benchmarks, and scenes of the validation stream."""
    items = root / "benchmarks" / "val"
    for benchmark, captions in FORMATS.items():
        for file in sorted((items / benchmark).glob("*.json")):
            found = json.loads(file.read_text(encoding="utf-8"))
            data.arrays[f"{benchmark}/{file.stem}"] = np.array(
                [
                    [data.file(items / "images" / one["filename"])]
                    + [data.text(one[key]) for key in captions]
                    for one in (found.values() if isinstance(found, dict) else found)
                ]
            )
    for file in sorted((items / "zero_shot").glob("*.json")):
        found = json.loads(file.read_text(encoding="utf-8"))
        classes = found["classes"]
        data.arrays[f"prompts/{file.stem}"] = np.array(
            [[data.text(prompt.format(one)) for prompt in found["templates"]] for one in classes]
        )
        data.arrays[f"classes/{file.stem}"] = np.array(
            [
                [data.file(items / "images" / one["filename"]), classes.index(one["class"])]
                for one in found["items"]
            ]
        )
    data.arrays["retrieval"] = np.array(
        [
            [
                data.image(as_jpeg(image(scene))),
                data.text(sentences(scene, rng(0, "caption", scene.scene_id))[0]),
            ]
            for scene in islice(World().scenes(0, "val"), retrieval)
        ]
    )


def _row(data: Prepared, scene: Scene) -> list[int]:
    caption = sentences(scene, rng(0, "caption", scene.scene_id), relations=1.0)[0]
    row = [data.image(as_jpeg(image(scene))), data.text(caption.lower())]
    for role, kinds in (("positive", KINDS[-1]), *(("negative", kinds) for kinds in KINDS)):
        draw = rng(0, "counterfactual", scene.scene_id, 0, role, *kinds)
        made = edit(scene, caption, role, draw, edits=kinds)
        row += [data.image(image(made.scene)), data.text(made.text.lower())] if made else [-1, -1]
    return row


def main() -> None:
    """Embed training rows and validation items, write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--root", type=Path, default=Path("data/01_raw/scenes"))
    parser.add_argument("--scenes", type=int, default=6000)
    parser.add_argument("--retrieval", type=int, default=3000)
    arguments = parser.parse_args()
    data = Prepared(load(ModelSettings(name="scenes-base")))
    add_training(data, arguments.scenes)
    add_validation(data, arguments.root, arguments.retrieval)
    data.write(DATA)


if __name__ == "__main__":
    main()
