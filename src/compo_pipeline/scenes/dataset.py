"""Scenes written to disk in the layouts of the real thing: COCO captions, SugarCrepe, SugarCrepe++.

Nothing downstream knows that the images are rendered.
"""

from __future__ import annotations

import itertools
import json
import logging
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from compo_pipeline.configuration import SettingsError
from compo_pipeline.scenes import benchmark
from compo_pipeline.scenes.captions import sentences
from compo_pipeline.scenes.clearing import clear
from compo_pipeline.scenes.instances import instances
from compo_pipeline.scenes.render import image
from compo_pipeline.scenes.shapes import SHAPES
from compo_pipeline.scenes.words import COLOUR_WORDS, THING_WORDS
from compo_pipeline.scenes.world import COLOURS, Scene, World
from compo_pipeline.seeding import rng

log = logging.getLogger(__name__)

# The official benchmarks ask about photographs: reports call these by names of their own.
TITLES = {
    "source": "scenes rendered by compo_pipeline, asked about in the benchmarks' formats",
    "titles": {"sugar_crepe": "SugarCrepe-style", "sugar_crepe_pp": "SugarCrepe++-style"},
}
THING_TEMPLATES = ("a {}", "a picture of a {}", "there is a {}", "a drawing of a {}")
# A colour is asked for with every thing that may have it: captions hardly ever speak of a "thing".
COLOUR_TEMPLATE = "there is a {{}} {thing}"


@dataclass(frozen=True)
class WorldSettings:
    """The size of the world, see `world.World`; empty lists mean the standard one."""

    things: tuple[str, ...] = ()
    colours: tuple[str, ...] = ()

    def world(self) -> World:
        """The world of these settings.

        Raises:
            SettingsError: naming a thing or colour that cannot be drawn.
        """
        for key, chosen, known in (
            ("scenes.world.things", self.things, SHAPES),
            ("scenes.world.colours", self.colours, COLOURS),
        ):
            unknown = [name for name in chosen if name not in known]
            if unknown:
                raise SettingsError(f"{key}: {unknown} cannot be drawn; allowed: {sorted(known)}")
            if len(set(chosen)) < len(chosen):
                raise SettingsError(f"{key}: each name once, got {list(chosen)}")
            if 0 < len(chosen) < 4:
                raise SettingsError(f"{key}: a scene world needs at least four, got {len(chosen)}")
        standard = World()
        return World(self.things or standard.things, self.colours or standard.colours)


@dataclass(frozen=True)
class SceneSettings:
    """What is rendered.

    Attributes:
        seed: of every scene and caption.
        train: scenes of the training split; val and test likewise.
        items: questions of each benchmark subtask, per held-out split.
        images: benchmark images that those questions are drawn from.
        classified: images of one thing for zero-shot classification.
        counts: weights of scenes with one, two and three things.
        world: which things and colours exist.
    """

    seed: int = 0
    train: int = 4000
    val: int = 500
    test: int = 1000
    items: int = 1000
    images: int = 1500
    classified: int = 1000
    counts: tuple[float, float, float] = (0.35, 0.5, 0.15)
    world: WorldSettings = field(default_factory=WorldSettings)

    def __post_init__(self) -> None:
        """Refuse counts that leave a split or a benchmark empty."""
        for key in ("train", "val", "test", "items", "images", "classified"):
            if getattr(self, key) < 1:
                raise ValueError(f"{key} must be at least 1, got {getattr(self, key)}")
        if min(self.counts) < 0 or sum(self.counts) <= 0:
            raise ValueError(f"counts must be weights, not all zero, got {self.counts}")


def write(settings: SceneSettings, root: Path) -> dict[str, Any]:
    """Render everything under `root`, in place of what an earlier call wrote there; returns counts
    by split and benchmark.

    Layout: `<split>/*.jpg`, `annotations/captions_<split>.json`, beside it `instances_<split>.json`
    (where each thing is seen) and `scenes_<split>.jsonl` (the records), and
    `benchmarks/<val|test>/{sugar_crepe,sugar_crepe_pp,zero_shot}/*.json` with `images/` beside
    them, and `benchmarks.json`, which says that these are not the official benchmarks.

    Raises:
        SettingsError: the world cannot be drawn, or `root` holds anything but scenes.
    """
    world = replace(settings.world.world(), counts=settings.counts)
    clear(root)
    counts: dict[str, Any] = {}
    for split, count in (
        ("train", settings.train),
        ("val", settings.val),
        ("test", settings.test),
    ):
        scenes = list(itertools.islice(world.scenes(settings.seed, split), count))
        _write_captions(scenes, split, root, settings.seed)
        counts[split] = count
    for split in ("val", "test"):
        folder = root / "benchmarks" / split
        counts[f"benchmarks/{split}"] = _write_benchmarks(settings, world, split, folder)
    return counts


def _write_images(scenes: Iterable[Scene], folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for scene in scenes:
        image(scene).save(folder / _file(scene), quality=92, subsampling=0)


def _file(scene: Scene) -> str:
    return f"{scene.scene_id}.jpg"


def _write_json(value: Any, path: Path, indent: int | None = 1) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value, indent=indent), encoding="utf-8")


def _write_captions(scenes: list[Scene], split: str, root: Path, seed: int) -> None:
    """COCO's caption file: one annotation an image, its sentences in one text."""
    _write_images(scenes, root / split)
    images, annotations = [], []
    for number, scene in enumerate(scenes, 1):
        text = " ".join(sentences(scene, rng(seed, "caption", scene.scene_id)))
        images.append(
            {
                "id": number,
                "file_name": _file(scene),
                "width": scene.width,
                "height": scene.height,
            }
        )
        annotations.append({"id": number, "image_id": number, "caption": text})
    info = {"description": "Rendered compositional scenes", "split": split}
    captions = {"info": info, "images": images, "annotations": annotations}
    _write_json(captions, root / "annotations" / f"captions_{split}.json")
    # A number a line would be a file three times as long: masks are mostly numbers.
    _write_json(
        instances(scenes, images), root / "annotations" / f"instances_{split}.json", indent=None
    )
    records = "".join(json.dumps(scene.as_dict()) + "\n" for scene in scenes)
    (root / "annotations" / f"scenes_{split}.jsonl").write_text(records, encoding="utf-8")


def _write_benchmarks(
    settings: SceneSettings, world: World, split: str, folder: Path
) -> dict[str, int]:
    """Questions in the official files' shapes, and classification sets."""
    stream = world.scenes(settings.seed, split, "benchmark", things=2)
    scenes = list(itertools.islice(stream, settings.images))
    counts = {}
    for subtask in benchmark.SUGAR_CREPE:
        random_ = rng(settings.seed, "benchmark", split, subtask)
        order = random_.sample(scenes, len(scenes))
        questions = benchmark.questions(subtask, order, world, random_)
        items = list(itertools.islice(questions, settings.items))
        if len(items) < settings.items:
            log.warning(
                "The %s benchmark %s has %d items of the %d that scenes.items asks for: "
                "raise scenes.images (%d)",
                *(split, subtask, len(items), settings.items, settings.images),
            )
        counts[subtask] = len(items)
        _write_items(items, subtask, folder)
    _write_images(scenes, folder / "images")
    _write_json(TITLES, folder / "benchmarks.json")
    counts["zero_shot"] = settings.classified
    _write_classification(settings, world, split, folder)
    return counts


def _write_items(items: list[benchmark.Item], subtask: str, folder: Path) -> None:
    plain = {
        str(number): {
            "filename": _file(item.scene),
            "caption": item.caption,
            "negative_caption": item.negative,
        }
        for number, item in enumerate(items)
    }
    _write_json(plain, folder / "sugar_crepe" / f"{subtask}.json")
    if subtask in benchmark.SUGAR_CREPE_PP:
        paired = [
            {"id": number, **plain[str(number)], "caption2": item.caption2}
            for number, item in enumerate(items)
        ]
        _write_json(paired, folder / "sugar_crepe_pp" / f"{subtask}.json")


def _write_classification(settings: SceneSettings, world: World, split: str, folder: Path) -> None:
    """Scenes of one thing: which thing is it, and which colour has it?"""
    stream = world.scenes(settings.seed, split, "classification", things=1)
    scenes = list(itertools.islice(stream, settings.classified))
    _write_images(scenes, folder / "images")
    things = [THING_WORDS.get(name, (name,))[0] for name in world.things]
    colours = [COLOUR_WORDS.get(name, (name,))[0] for name in world.colours]
    sets = (
        ("things", THING_TEMPLATES, things, [world.things.index(s.things[0].kind) for s in scenes]),
        (
            "colours",
            [COLOUR_TEMPLATE.format(thing=thing) for thing in things],
            colours,
            [world.colours.index(s.things[0].colour) for s in scenes],
        ),
    )
    for name, templates, classes, labels in sets:
        items = [
            {"filename": _file(scene), "class": classes[label]}
            for scene, label in zip(scenes, labels, strict=True)
        ]
        value = {"templates": list(templates), "classes": classes, "items": items}
        _write_json(value, folder / "zero_shot" / f"{name}.json")
