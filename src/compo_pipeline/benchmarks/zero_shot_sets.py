"""Zero-shot classification on the usual sets, each in a folder, in the form in which it is on disk.

- CLIP_benchmark's WebDataset: `test/nshards.txt`, `test/0.tar`, ... with an image (webp, png, jpg)
  and its class number (`.cls`) by one key; `classnames.txt` and
  `zeroshot_classification_templates.txt` (a line each, `{c}` where the class goes).
- What torchvision unpacks of Food101, DTD, Oxford-IIIT Pet, FGVC Aircraft, Flowers102, Stanford
  Cars, Caltech101, Country211 and SUN397. Not CIFAR, which is pickled.
- A folder of images for each class, in the set's folder or in its `test` or `val`. Folders that are
  all named by ImageNet's identifiers (`val/n01440764`) have open_clip's names and templates.

In any of them, `classnames.txt` replaces the names of the classes, a line for each in the order of
their numbers or of their folders' names, and `templates.txt` the template "a photo of a {}.".
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from compo_pipeline.benchmarks.files import read_file
from compo_pipeline.benchmarks.items import Benchmark, Item, Mean, Subtask
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
    """Load the zero-shot sets: a subtask for each folder, in whichever known layout it has."""
    folders = sorted(path for path in root.iterdir() if path.is_dir() and path != images)
    if not folders:
        raise SettingsError(f"{root} has no folder of a set")
    return [_subtask(root, folder) for folder in folders]


def _subtask(root: Path, folder: Path) -> Subtask:
    """Zero-shot subtask of a set's folder, read by the first layout that matches."""
    layouts = (read for marker, read in _LAYOUTS.items() if (folder / marker).exists())
    try:
        found = next(layouts, _read_split_folders)(folder)
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

    The folders are below `test`, `val` or the set's folder itself.
    """
    base = next((folder / split for split in ("test", "val") if (folder / split).is_dir()), folder)
    return _read_class_folders(folder, base)


def _read_class_folders(folder: Path, base: Path) -> _SetContent:
    """Labelled images and class names, from one folder for each class below `base`.

    What Caltech101 calls its background is no class.
    """
    classes = sorted(
        path
        for path in base.iterdir()
        if path.is_dir() and not path.name.startswith(".") and path.name != "BACKGROUND_Google"
    )
    if len(classes) < 2:
        raise SettingsError(
            f"{folder}: expected test/nshards.txt of a WebDataset, what torchvision unpacks, or a "
            "folder of images for each class; huggingface.co/clip-benchmark has the usual sets as "
            "WebDatasets"
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


def _read_sun397(folder: Path) -> _SetContent:
    """All images and labels of SUN397, from its list of class folders.

    A class is a folder such as `a/abbey` or `a/apartment_building/outdoor`.
    """
    base = folder / "SUN397"
    paths = [line.removeprefix("/") for line in _read_lines(base / "ClassName.txt")]
    images = [
        (f"{image.relative_to(folder)}", number)
        for number, path in enumerate(paths)
        for image in sorted((base / path).glob("sun_*.jpg"))
    ]
    return _SetContent([path.partition("/")[2].replace("/", " ") for path in paths], images)


def _read_food101(folder: Path) -> _SetContent:
    """Test images and labels of Food-101, from its JSON file."""
    file = read_file(folder / "food-101/meta/test.json", dict)
    classes = sorted(file.content)
    images = [
        (f"food-101/images/{image}.jpg", classes.index(name))
        for name in file.content
        for image in file.texts(name)
    ]
    return _SetContent(classes, images)


def _read_dtd(folder: Path) -> _SetContent:
    """Test images and labels of DTD (first split), whose folders are the classes."""
    images = _read_lines(folder / "dtd/dtd/labels/test1.txt")
    classes = sorted({image.partition("/")[0] for image in images})
    numbers = {name: number for number, name in enumerate(classes)}
    found = [(f"dtd/dtd/images/{each}", numbers[each.partition("/")[0]]) for each in images]
    return _SetContent(classes, found)


def _read_pets(folder: Path) -> _SetContent:
    """Test images and labels of Oxford-IIIT Pet, from its text files."""
    rows = [line.split() for line in _read_lines(folder / "oxford-iiit-pet/annotations/test.txt")]
    names = {int(label) - 1: image.rpartition("_")[0].title() for image, label, *_ in rows}
    images = [(f"oxford-iiit-pet/images/{image}.jpg", int(label) - 1) for image, label, *_ in rows]
    return _SetContent([names[number] for number in range(len(names))], images)


def _read_aircraft(folder: Path) -> _SetContent:
    """Test images and labels of FGVC-Aircraft by variant, from its text files."""
    data = "fgvc-aircraft-2013b/data"
    classes = _read_lines(folder / data / "variants.txt")
    rows = [line.split(" ", 1) for line in _read_lines(folder / data / "images_variant_test.txt")]
    return _SetContent(
        classes, [(f"{data}/images/{image}.jpg", classes.index(name)) for image, name in rows]
    )


def _read_flowers(folder: Path) -> _SetContent:
    """Test images and labels of Flowers-102, from its MATLAB files."""
    base = folder / "flowers-102"
    labels = _read_matlab(base / "imagelabels.mat")["labels"]
    numbers = _read_matlab(base / "setid.mat")["tstid"]
    return _SetContent(
        [],
        [(f"flowers-102/jpg/image_{each:05d}.jpg", int(labels[each - 1]) - 1) for each in numbers],
    )


def _read_cars(folder: Path) -> _SetContent:
    """Test images and labels of Stanford Cars, from its MATLAB files."""
    base = folder / "stanford_cars"
    rows = _read_matlab(base / "cars_test_annos_withlabels.mat")["annotations"]
    images = [(f"stanford_cars/cars_test/{row['fname']}", int(row["class"]) - 1) for row in rows]
    names = _read_matlab(base / "devkit" / "cars_meta.mat")["class_names"]
    return _SetContent([str(name) for name in names], images)


def _read_matlab(path: Path) -> Any:
    """Content of a MATLAB file, by variable name."""
    from scipy.io import loadmat

    return loadmat(path, squeeze_me=True)


def _refuse_pickled(folder: Path) -> _SetContent:
    """Raise an error for CIFAR's pickled files that says how to export them."""
    raise SettingsError(
        f"{folder}: CIFAR's pickled files are not read; export the set with "
        "`clip_benchmark_export_wds`, or as a folder for each class"
    )


_LAYOUTS: dict[str, Callable[[Path], _SetContent]] = {
    "test/nshards.txt": _read_webdataset,
    "food-101/meta/test.json": _read_food101,
    "dtd/dtd/labels/test1.txt": _read_dtd,
    "oxford-iiit-pet/annotations/test.txt": _read_pets,
    "fgvc-aircraft-2013b/data/images_variant_test.txt": _read_aircraft,
    "flowers-102/setid.mat": _read_flowers,
    "stanford_cars/cars_test_annos_withlabels.mat": _read_cars,
    "caltech101/101_ObjectCategories": lambda folder: _read_class_folders(
        folder, folder / "caltech101/101_ObjectCategories"
    ),
    "SUN397/ClassName.txt": _read_sun397,
    "country211/test": lambda folder: _read_class_folders(folder, folder / "country211/test"),
    "cifar-10-batches-py": _refuse_pickled,
    "cifar-100-python": _refuse_pickled,
}
"""Readers by a file or folder that only this layout has."""

BENCHMARK = Benchmark(
    name=NAME,
    role="zero_shot",
    label="Zero-shot",
    load=load,
    headline=lambda metric, name: metric == "top1",
    averages={"top1": {"zs10": Mean(ZS10), "zs11": Mean(ZS11), "zs21": Mean(ZS21)}},
    source="huggingface.co/clip-benchmark: a folder for each set, as wds_<name>; or as torchvision "
    "unpacks it, or with a folder for each class; image-net.org: its val",
    files=("*/*", "*/test/*.tar", "**/*.txt", "**/*.json", "**/*.mat"),
    subtask_in_label="first",
    download="6 GB of ImageNet's validation images",
)
