"""Zero-shot classification on the usual sets, each in a folder, in one of two forms.

- CLIP_benchmark's WebDataset: `test/nshards.txt`, `test/0.tar`, ... with an image (webp, png, jpg)
  and its class number (`.cls`) by one key; `classnames.txt` and
  `zeroshot_classification_templates.txt` (a line each, `{c}` where the class goes).
- A folder of images for each class, in the set's folder or in its `test` or `val`. Folders that are
  all named by ImageNet's identifiers (`val/n01440764`) have open_clip's names and templates.

In either, `classnames.txt` replaces the names of the classes, a line for each in the order of
their numbers or of their folders' names, and `templates.txt` the template "a photo of a {}.".
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from compo_pipeline.benchmarks.averages import Mean
from compo_pipeline.benchmarks.items import Benchmark, Item, Subtask
from compo_pipeline.benchmarks.zero_shot import distinct_classes
from compo_pipeline.core import archives
from compo_pipeline.core.remote import read_bytes
from compo_pipeline.core.settings import SettingsError
from compo_pipeline.core.untrusted import shown

NAME = "zero_shot_sets"
# CLIC's ten, and ELEVATER's twenty with ImageNet; a folder `wds_<name>` has the name as well.
_SETS = """
food101 cifar10 cifar100 stanford_cars fgvc_aircraft dtd oxford_pets caltech101 flowers102
country211 eurosat fer2013 gtsrb hateful_memes kitti_distance mnist patch_camelyon rendered_sst2
resisc45 voc2007 imagenet1k
"""
ZS21 = tuple(_SETS.split())
ZS10 = ZS21[:10]
ZS11 = ("imagenet1k", *ZS10[:3], "sun397", *ZS10[3:9])
_TEMPLATES = ("templates.txt", "zeroshot_classification_templates.txt")
_IMAGES = frozenset(("webp", "png", "jpg", "jpeg"))
_WORDNET_ID = re.compile(r"n\d{8}", re.ASCII)
# Of CLIC's ten sets. CLIP_benchmark names what it exports `wds_<name>`, and exports torchvision's
# data set in its order, with the names and templates that CLIC has.
_DRAWN = 1000

log = logging.getLogger(__name__)


class _SetContent(NamedTuple):
    """Class names, labelled images and prompt templates read from a zero-shot set's files.

    Names are empty where the files have none, templates for the usual one. An image's name is
    below the set's folder.
    """

    classes: list[str]
    images: list[tuple[str, int]]
    templates: tuple[str, ...] = ()


def load(root: Path, images: Path) -> list[Subtask]:
    """Load the zero-shot sets: a subtask for each folder."""
    folders = sorted(path for path in root.iterdir() if path.is_dir() and path != images)
    if not folders:
        raise SettingsError(f"{root} has no folder of a set")
    return [_subtask(root, folder) for folder in folders]


def _subtask(root: Path, folder: Path) -> Subtask:
    """Zero-shot subtask of a set's folder, in whichever of the two forms it has."""
    exported = (folder / "test/nshards.txt").exists()
    try:
        found = _read_webdataset(folder) if exported else _read_split_folders(folder)
    except SettingsError:
        raise
    except (OSError, ValueError, KeyError, TypeError, IndexError) as error:
        raise SettingsError(f"{folder} cannot be read: {type(error).__name__}: {error}") from error
    names = _class_names(folder, found.classes)
    for image, number in found.images:
        if not 0 <= number < len(names):
            raise SettingsError(
                f"{folder}: {shown(image)} has the class {number} of {len(names)} (from 0)"
            )
    items = tuple(
        Item(image, f"{folder.name}/{image}", (names[number],)) for image, number in found.images
    )
    name, classes = folder.name.removeprefix("wds_"), distinct_classes(folder, names)
    return Subtask(
        NAME,
        name,
        ("zero_shot",),
        root,
        items,
        classes,
        _read_templates(folder) or found.templates or ("a photo of a {}.",),
        official_draw=_DRAWN if folder.name != name and name in ZS10 else None,
    )


def _class_names(folder: Path, found: list[str]) -> list[str]:
    """Class names by number, from `classnames.txt` or else from the set's own files."""
    names = _read_lines(folder / "classnames.txt") or [name.replace("_", " ") for name in found]
    if not names:
        raise SettingsError(f"{folder}: expected classnames.txt, a line for each class")
    if found and len(names) != len(found):
        raise SettingsError(
            f"{folder}/classnames.txt: expected {len(found)} lines, got {len(names)}"
        )
    return names


def _read_templates(folder: Path) -> tuple[str, ...]:
    """Prompt templates from the set's text file, with `{}` for the class, empty if it is absent."""
    files = (_read_lines(folder / name) for name in _TEMPLATES)
    lines = next(filter(None, files), [])
    templates = tuple(line.replace("{c}", "{}") for line in lines)
    if any("{}" not in template for template in templates):
        raise SettingsError(f"{folder}: every template needs {{}} or {{c}}, got {shown(templates)}")
    return templates


def _read_lines(path: Path) -> list[str]:
    """Non-blank lines of a text file, empty if there is no file."""
    if not path.is_file():
        return []
    try:
        lines = read_bytes(path).decode("utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"{path} cannot be read as UTF-8: {error}") from error
    return [line.strip() for line in lines if line.strip()]


def _read_split_folders(folder: Path) -> _SetContent:
    """Labelled images and class names of a set with one folder of images for each class.

    The folders are below `test`, `val` or the set's folder itself. What Caltech101 calls its
    background is no class.
    """
    base = next((folder / split for split in ("test", "val") if (folder / split).is_dir()), folder)
    classes = sorted(
        path
        for path in base.iterdir()
        if path.is_dir() and not path.name.startswith(".") and path.name != "BACKGROUND_Google"
    )
    if len(classes) < 2:
        raise SettingsError(
            f"{folder}: expected test/nshards.txt of a WebDataset, or a folder of images for each "
            "class; huggingface.co/clip-benchmark has the usual sets as WebDatasets"
        )
    images = [
        (f"{path.relative_to(folder)}", number)
        for number, of_class in enumerate(classes)
        for path in sorted(of_class.iterdir())
        if path.is_file() and not path.name.startswith(".")
    ]
    names = [path.name for path in classes]
    if all(map(_WORDNET_ID.fullmatch, names)):
        names, templates = _imagenet_texts(folder, names)
        return _SetContent(names, images, templates)
    return _SetContent(names, images)


def _imagenet_texts(folder: Path, identifiers: list[str]) -> tuple[list[str], tuple[str, ...]]:
    """open_clip's class names for ImageNet identifiers such as n01440764, and its templates."""
    from open_clip import IMAGENET_CLASSNAMES, OPENAI_IMAGENET_TEMPLATES
    from timm.data import ImageNetInfo

    known = dict(zip(ImageNetInfo().label_names(), IMAGENET_CLASSNAMES, strict=True))
    if unknown := [each for each in identifiers if each not in known]:
        raise SettingsError(
            f"{folder}: {unknown[0]} is none of ImageNet's 1,000 classes; name the classes of "
            "another set in classnames.txt"
        )
    templates = tuple(template("{}") for template in OPENAI_IMAGENET_TEMPLATES)
    return [known[each] for each in identifiers], templates


def _read_webdataset(folder: Path) -> _SetContent:
    """Images and labels of a set in WebDataset shards, as CLIP_benchmark exports them."""
    kind = _read_lines(folder / "dataset_type.txt")
    if kind and kind != ["classification"]:
        raise SettingsError(
            f"{folder}/dataset_type.txt: expected classification, got {shown(kind)}"
        )
    split = folder / "test"
    images: list[tuple[str, int]] = []
    for number in range(int(read_bytes(split / "nshards.txt"))):
        images += _read_shard(split / f"{number}.tar", folder)
    return _SetContent([], images)


def _read_shard(path: Path, folder: Path) -> Iterator[tuple[str, int]]:
    """Yield path and label of each complete image in a WebDataset shard."""
    archive = archives.scan(path)
    if archive.damage:
        raise SettingsError(f"{path} is {archive.damage}; fetch it again")
    left_out = 0
    for endings, total in archives.samples(archive).values():
        left_out += total - 1
        image = next((endings[each] for each in endings if each in _IMAGES), None)
        if image is None or "cls" not in endings:
            left_out += 1
            continue
        label = archives.read(path, endings["cls"])
        if not label.strip().isdigit():
            raise SettingsError(f"{path}, {endings['cls']}: expected a number, got {label[:50]!r}")
        yield f"{path.relative_to(folder)}/{image}", int(label)
    if left_out:
        log.warning("%s: %d samples without an image or a class are left out.", path, left_out)


BENCHMARK = Benchmark(
    name=NAME,
    role="zero_shot",
    label="Zero-shot",
    load=load,
    headline=lambda metric, name: metric == "top1",
    averages={"top1": {"zs10": Mean(ZS10), "zs11": Mean(ZS11), "zs21": Mean(ZS21)}},
    source="huggingface.co/clip-benchmark: a folder for each set, as wds_<name>; or with a folder "
    "for each class; image-net.org: its val",
    files=("*/*", "*/test/*.tar", "**/*.txt"),
    subtask_in_label="first",
    download="6 GB of ImageNet's validation images",
)
