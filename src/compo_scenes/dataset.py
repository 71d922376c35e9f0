"""Scenes on disk in the formats of COCO captions, SugarCrepe and SugarCrepe++."""

from __future__ import annotations

import itertools
import json
import logging
import os
import random
import re
from collections.abc import Callable, Iterable
from dataclasses import asdict, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from filelock import FileLock
from pydantic import NonNegativeFloat, PositiveInt

from compo_pipeline.core.files import read_json_or_none, write_json, write_text
from compo_pipeline.core.hashing import files_hash
from compo_pipeline.core.seeding import rng
from compo_pipeline.core.settings import SettingsError, Share, settings
from compo_scenes import benchmark
from compo_scenes.captions import COLOUR_WORDS, RELATIONS, THING_WORDS, sentences
from compo_scenes.instances import instances
from compo_scenes.render import image
from compo_scenes.shapes import SHAPES
from compo_scenes.world import COLOURS, SCENES, Scene, World

log = logging.getLogger(__name__)

# Every file that `write` creates below its root, for any settings.
_OURS = re.compile(
    r"(?P<split>train|val|test)/(?P=split)-captions-\d{6,}\.jpg"
    r"|annotations/((captions|instances)_(train|val|test)\.json|scenes_(train|val|test)\.jsonl)"
    r"|benchmarks/(?P<held_out>val|test)/("
    r"images/(?P=held_out)-(benchmark|classification)-\d{6,}\.jpg"
    rf"|sugar_crepe(_pp)?/({'|'.join(benchmark.SUGAR_CREPE)})\.json"
    r"|zero_shot/(things|colours)\.json|benchmarks\.json)"
)
# The official benchmarks are about photographs: reports use other names for these.
TITLES = {
    "source": "scenes rendered by compo_pipeline, asked about in the benchmarks' formats",
    "titles": {"sugar_crepe": "SugarCrepe-style", "sugar_crepe_pp": "SugarCrepe++-style"},
}
THING_TEMPLATES = ("a {}", "a picture of a {}", "there is a {}", "a drawing of a {}")
# One template per kind of thing: captions hardly ever say "thing".
COLOUR_TEMPLATE = "there is a {{}} {thing}"


@settings
class WorldSettings:
    """Settings of the things and colours that exist in scenes.

    See `world.World`.
    """

    things: tuple[str, ...] = ()
    """Names of things. Empty uses the standard ones."""
    colours: tuple[str, ...] = ()
    """Names of colours. Empty uses the standard ones."""

    def world(self) -> World:
        """Create the `World` with these things and colours.

        Raises:
            SettingsError: naming a thing or colour that cannot be drawn.
        """
        for key, chosen, known in (
            ("scenes.world.things", self.things, SHAPES),
            ("scenes.world.colours", self.colours, COLOURS),
        ):
            if unknown := [name for name in chosen if name not in known]:
                raise SettingsError(f"{key}: {unknown} cannot be drawn; allowed: {sorted(known)}")
            if len(set(chosen)) < len(chosen):
                raise SettingsError(f"{key}: each name once, got {list(chosen)}")
            if 0 < len(chosen) < 4:
                raise SettingsError(f"{key}: a scene world needs at least four, got {len(chosen)}")
        standard = World()
        return World(self.things or standard.things, self.colours or standard.colours)


@settings
class SceneSettings:
    """Settings of the rendered dataset: numbers of scenes and items, and captions."""

    seed: int = 0
    """Seed of every scene and caption."""
    train: PositiveInt = 4000
    """Scenes of the training split."""
    val: PositiveInt = 500
    """Scenes of the validation split."""
    test: PositiveInt = 1000
    """Scenes of the test split."""
    items: PositiveInt = 1000
    """Items of each benchmark subtask, per held-out split."""
    images: PositiveInt = 1500
    """Number of images from which these items are drawn."""
    classified: PositiveInt = 1000
    """Number of images of one thing, for zero-shot classification."""
    counts: tuple[NonNegativeFloat, NonNegativeFloat, NonNegativeFloat] = (0.35, 0.5, 0.15)
    """Weights of scenes with one, two and three things."""
    relations: Share = RELATIONS
    """Probability that the first sentence of a training scene names the relation of two things, if
    it is clear."""
    long_captions: bool = False
    """Whether captions name every detail of their scene (each thing's colour, pattern, size and
    place, each relation, the background) or only two to four of them."""
    world: WorldSettings = field(default_factory=WorldSettings)
    """Things and colours that exist."""

    def __post_init__(self) -> None:
        """Refuse weights that are all zero."""
        if sum(self.counts) <= 0:
            raise ValueError(f"counts must be weights, not all zero, got {self.counts}")


def generate(settings: SceneSettings, root: Path) -> None:
    """Render the scenes dataset."""
    write(settings, root)


def benchmarks(root: str, split: str) -> str:
    """Path of the benchmark folder for a held-out split, below the data root."""
    return f"{root}/benchmarks/{split}"


def recipes() -> list[tuple[str, tuple[str, ...], str]]:
    """List of one entry: the environment that teaches relations, and its gains in five seeds."""
    gained = (
        "over the base, five seeds gain replaced relations +29.3 [+25.9, +32.6], "
        "swapped objects +24.2 [+20.1, +28.1]"
    )
    return [("relations_scenes", ("replaced_relation", "swapped_objects"), gained)]


def write(settings: SceneSettings, root: Path) -> dict[str, Any]:
    """Render the whole scenes dataset into `root`, unless it is there, and return counts.

    Earlier scenes are removed first.

    Of several processes one renders, and the others wait. Returns the counts by split and
    benchmark.

    Layout: `<split>/*.jpg`, `annotations/captions_<split>.json`, beside it `instances_<split>.json`
    (where each thing is seen) and `scenes_<split>.jsonl` (the records), and
    `benchmarks/<val|test>/{sugar_crepe,sugar_crepe_pp,zero_shot}/*.json` with `images/` beside
    them, and `benchmarks.json` with the titles of these benchmarks.

    Raises:
        SettingsError: the world cannot be drawn, or `root` holds anything but scenes.
    """
    world = replace(settings.world.world(), counts=settings.counts)
    root.parent.mkdir(parents=True, exist_ok=True)
    file = root.with_name(f".{root.name}.rendered.json")
    with FileLock(file.with_suffix(".lock")):
        record = read_json_or_none(file)
        if record and record["fingerprint"] == _fingerprint(settings, root):
            log.info("%s holds these scenes already.", root)
            return dict(record["counts"])
        clear(root)
        counts = _render_all(settings, world, root)
        record = {"fingerprint": _fingerprint(settings, root), "counts": counts}
        write_json(file, record)
        return counts


def _fingerprint(settings: SceneSettings, root: Path) -> list[str]:
    """Settings, version of scenes and hash of all files below the root, to find changes."""
    files = ((str(file.relative_to(root)), file) for file in sorted(_visible_files(root)))
    values = json.dumps(asdict(settings), sort_keys=True)
    return [values, str(SCENES), files_hash(files)]


def _render_all(settings: SceneSettings, world: World, root: Path) -> dict[str, Any]:
    """Render captions and benchmarks of all splits, and return counts by split and benchmark."""
    counts: dict[str, Any] = {}
    for split, count, relations in (
        ("train", settings.train, settings.relations),
        ("val", settings.val, RELATIONS),
        ("test", settings.test, RELATIONS),
    ):
        scenes = list(itertools.islice(world.scenes(settings.seed, split), count))
        sentences_of = partial(sentences, relations=relations, every=settings.long_captions)
        _write_captions(scenes, split, root, settings.seed, sentences_of)
        counts[split] = count
    for split in ("val", "test"):
        folder = root / "benchmarks" / split
        counts[f"benchmarks/{split}"] = _write_benchmarks(settings, world, split, folder)
    return counts


def _write_images(scenes: Iterable[Scene], folder: Path) -> None:
    """Render scenes as JPEG files into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    for scene in scenes:
        image(scene).save(folder / _image_file_name(scene), quality=92, subsampling=0)


def _image_file_name(scene: Scene) -> str:
    """File name of a scene's image."""
    return f"{scene.scene_id}.jpg"


def _write_json(value: Any, path: Path, indent: int | None = 1) -> None:
    """Write a value as a JSON file."""
    write_text(path, json.dumps(value, indent=indent))


def _write_captions(
    scenes: list[Scene],
    split: str,
    root: Path,
    seed: int,
    sentences_of: Callable[[Scene, random.Random], tuple[str, ...]],
) -> None:
    """Write the images of a split with COCO's caption and instance files and scene records.

    There is one caption annotation per image, its sentences in one text.
    """
    _write_images(scenes, root / split)
    images, annotations = [], []
    for number, scene in enumerate(scenes, 1):
        text = " ".join(sentences_of(scene, rng(seed, "caption", scene.scene_id)))
        images.append(
            {
                "id": number,
                "file_name": _image_file_name(scene),
                "width": scene.width,
                "height": scene.height,
            }
        )
        annotations.append({"id": number, "image_id": number, "caption": text})
    info = {"description": "Rendered compositional scenes", "split": split}
    captions = {"info": info, "images": images, "annotations": annotations}
    _write_json(captions, root / "annotations" / f"captions_{split}.json")
    # With indent, one number per line would make the file three times as long.
    _write_json(
        instances(scenes, images), root / "annotations" / f"instances_{split}.json", indent=None
    )
    records = "".join(json.dumps(asdict(scene)) + "\n" for scene in scenes)
    write_text(root / "annotations" / f"scenes_{split}.jsonl", records)


def _write_benchmarks(
    settings: SceneSettings, world: World, split: str, folder: Path
) -> dict[str, int]:
    """Write benchmark items in the official formats, and classification sets.

    Returns counts.
    """
    stream = world.scenes(settings.seed, split, "benchmark", things=2)
    scenes = list(itertools.islice(stream, settings.images))
    counts = {}
    for subtask in benchmark.SUGAR_CREPE:
        random_ = rng(settings.seed, "benchmark", split, subtask)
        order = random_.sample(scenes, len(scenes))
        drawn = benchmark.items(subtask, order, world, random_)
        items = list(itertools.islice(drawn, settings.items))
        if len(items) < settings.items:
            found = f"{len(items)} of the {settings.items} items of scenes.items"
            raised = f"raise scenes.images ({settings.images})"
            log.warning("The %s benchmark %s has %s: %s", split, subtask, found, raised)
        counts[subtask] = len(items)
        _write_items(items, subtask, folder)
    _write_images(scenes, folder / "images")
    _write_json(TITLES, folder / "benchmarks.json")
    counts["zero_shot"] = settings.classified
    _write_classification(settings, world, split, folder)
    return counts


def _write_items(items: list[benchmark.SceneItem], subtask: str, folder: Path) -> None:
    """Write a subtask's items in the formats of SugarCrepe and SugarCrepe++."""
    plain = {
        str(number): {
            "filename": _image_file_name(item.scene),
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
    """Write zero-shot classification sets of scenes with one thing: its kind and its colour."""
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
            {"filename": _image_file_name(scene), "class": classes[label]}
            for scene, label in zip(scenes, labels, strict=True)
        ]
        value = {"templates": list(templates), "classes": classes, "items": items}
        _write_json(value, folder / "zero_shot" / f"{name}.json")


def clear(root: Path) -> None:
    """Delete the rendered dataset below `root`, and raise an error if there are other files.

    Links are removed, their targets are not. Hidden files stay.

    Raises:
        SettingsError: there are other files, such as the user's own data; nothing was removed.
    """
    ours: list[Path] = []
    foreign: list[Path] = []
    for path in _visible_files(root):
        known = not path.is_dir() and _OURS.fullmatch(path.relative_to(root).as_posix())
        (ours if known else foreign).append(path)
    if foreign:
        shown = ", ".join(str(path.relative_to(root)) for path in sorted(foreign)[:3])
        raise SettingsError(
            f"data.root: '{root}' holds other files than rendered scenes ({len(foreign)} in all: "
            f"{shown}{', ...' if len(foreign) > 3 else ''}), expected an "
            "empty folder or one with scenes alone; set data.root to another folder, or "
            "data.format to the format of this one"
        )
    for path in ours:
        path.unlink()
    if ours:
        log.info("Removed %d files of earlier scenes from %s.", len(ours), root)


def _visible_files(root: Path) -> list[Path]:
    """Paths of all files and folder links below a folder, without hidden ones."""
    found = []
    for place, folders, files in os.walk(root):
        folders[:] = [name for name in folders if not name.startswith(".")]
        links = [name for name in folders if Path(place, name).is_symlink()]
        found += [Path(place, name) for name in files + links if not name.startswith(".")]
    return found
