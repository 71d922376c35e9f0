"""Scenes per second of one core: drawn, told, asked about, edited, rendered, written, batched.

python benchmarks/scenes_rendering.py [scenes]
"""

import io
import itertools
import sys
import time
from collections.abc import Callable, Iterable
from typing import TypeVar

import torch
from rich.console import Console
from rich.table import Table

from compo_pipeline.run.seeding import rng
from compo_scenes.base_model.supervision import ImageBatches
from compo_scenes.benchmark import make_item
from compo_scenes.captions import alt_text, first, sentences
from compo_scenes.counterfactuals import edit
from compo_scenes.render import image, render
from compo_scenes.world import Scene, World

WORLD = World()
MIX = (0.1, 0.3, 0.45, 0.05, 0.1)
ROLES = ("negative", "positive")

Item = TypeVar("Item")


def rate(work: Callable[[Item], object], items: Iterable[Item]) -> tuple[int, float, float]:
    """How many, and seconds of wall and of processor for them, after a few to fill caches."""
    todo = list(items)
    for item in todo[:200]:
        work(item)
    started, processor = time.perf_counter(), time.process_time()
    for item in todo:
        work(item)
    return len(todo), time.perf_counter() - started, time.process_time() - processor


def saved(scene: Scene) -> None:
    """An image as it is written to disk."""
    image(scene).save(io.BytesIO(), "jpeg", quality=92, subsampling=0)


def edited(told: tuple[Scene, str, str]) -> None:
    """The image of an edited scene, from caption to file."""
    scene, caption, role = told
    if found := edit(scene, caption, role, rng(scene.scene_id, role)):
        saved(found.scene)


def main() -> None:
    """Measure and print."""
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 2000
    torch.set_num_threads(1)
    scenes = list(itertools.islice(WORLD.scenes(0, "train"), count))
    pairs = list(itertools.islice(WORLD.scenes(0, "test", "benchmark", 2), count))
    told = [
        (scene, first(scene, rng(scene.scene_id)), role)
        for scene, role in zip(scenes, itertools.cycle(ROLES), strict=False)
    ]
    batches = ImageBatches(
        WORLD, seed=0, batches=1, batch_size=count, size=64, grid=8, composites=0.3
    )
    batches[0]
    started, processor = time.perf_counter(), time.process_time()
    batches[0]
    batch = (count, time.perf_counter() - started, time.process_time() - processor)
    rows = {
        "scenes drawn": rate(lambda s: WORLD.draw(rng(s.scene_id), ""), scenes),
        "captions of 3-5 sentences": rate(lambda s: sentences(s, rng(s.scene_id)), scenes),
        "alt texts": rate(lambda s: alt_text(s, rng(s.scene_id), MIX), scenes),
        "benchmark items": rate(lambda s: make_item("swap_att", s, WORLD, rng(s.scene_id)), pairs),
        "images rendered": rate(render, scenes),
        "images rendered and compressed": rate(saved, scenes),
        "counterfactuals edited, rendered and compressed": rate(edited, told),
        "training images with truth (30% composites)": batch,
    }
    table = Table("what", "number", "a second", "a second of processor")
    for what, (number, wall, processor) in rows.items():
        table.add_row(what, f"{number}", f"{number / wall:,.0f}", f"{number / processor:,.0f}")
    Console().print(table)


if __name__ == "__main__":
    main()
