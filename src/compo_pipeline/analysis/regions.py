"""Named regions of images: what COCO's instance files say of where things are.

`instances_<split>.json` of COCO or in its layout. Where an annotation has a field `phrase`, as
rendered scenes have, that is what its thing is called, else its category: "a dog".
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw

from compo_pipeline.configuration import SettingsError

Mask = NDArray[np.bool_]
Runs = tuple[int, ...]
Polygon = tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Region:
    """A part of an image, drawn when asked for: the masks of a whole data set fill no memory.

    Attributes:
        width: of the image, in pixels.
        height: of the image, in pixels.
        runs: for each piece the lengths of its runs, outside and inside in turn, down the columns.
        polygons: further pieces, each as x, y, x, y, ...
    """

    width: int
    height: int
    runs: tuple[Runs, ...] = ()
    polygons: tuple[Polygon, ...] = ()

    def mask(self) -> Mask:
        """[height, width], true in any of the pieces; a polygon's border belongs to it."""
        drawn = Image.new("1", (self.width, self.height))
        draw = ImageDraw.Draw(drawn)
        for polygon in self.polygons:
            draw.polygon(polygon, fill=1)
        mask = np.array(drawn)
        for runs in self.runs:
            inside = np.arange(len(runs)) % 2 == 1
            mask |= np.repeat(inside, runs).reshape(self.width, self.height).T
        return mask

    def __or__(self, other: Region) -> Region:
        """Both regions of one image as one."""
        runs, polygons = self.runs + other.runs, self.polygons + other.polygons
        return replace(self, runs=runs, polygons=polygons)


@dataclass(frozen=True, slots=True)
class Case:
    """A phrase asked of an image.

    Attributes:
        root: folder of the image.
        image: its path below the root.
        phrase: what is looked for ("a red ball").
        region: where that is; None where nobody has said so.
    """

    root: Path
    image: str
    phrase: str
    region: Region | None = None


def read(path: Path, root: Path) -> tuple[list[Case], Counter[str]]:
    """The cases of an instances file, in its order, and what keeps others from being cases.

    Things that one phrase names in one image (three dogs) are one case, and one region.

    Args:
        path: the JSON file.
        root: folder of the images that it names.

    Returns:
        Cases, and the number of phrases left out by reason.

    Raises:
        SettingsError: the file is missing, or no instances file.
    """
    try:
        content = json.loads(path.read_bytes())
        return _cases(content, root)
    except OSError as error:
        raise SettingsError(
            f"attention.regions: {path} cannot be read ({error.strerror}); set it to a file of "
            "COCO instances, or set attention.images and attention.phrases"
        ) from error
    except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
        raise SettingsError(
            f"attention.regions: {path} is no file of COCO instances "
            f"({type(error).__name__}: {error}); expected images, categories and annotations with "
            "image_id, category_id and segmentation"
        ) from error


def _cases(content: Mapping[str, Any], root: Path) -> tuple[list[Case], Counter[str]]:
    images = {entry["id"]: entry for entry in content["images"]}
    names = {entry["id"]: entry["name"] for entry in content["categories"]}
    regions: dict[tuple[Any, str], Region | str] = {}
    for entry in content["annotations"]:
        image = images[entry["image_id"]]
        phrase = entry.get("phrase") or _indefinite(names[entry["category_id"]])
        key = image["id"], phrase
        size = int(image["width"]), int(image["height"])
        found = _region(entry.get("segmentation"), *size)
        regions[key] = _joined(regions[key], found) if key in regions else found
    cases = [
        Case(root, images[image]["file_name"], phrase, region)
        for (image, phrase), region in regions.items()
        if isinstance(region, Region)
    ]
    return cases, Counter(region for region in regions.values() if isinstance(region, str))


def _joined(first: Region | str, second: Region | str) -> Region | str:
    """Both as one; none where one cannot be drawn: attention on it would be called wrong."""
    if isinstance(first, Region) and isinstance(second, Region):
        return first | second
    return first if isinstance(first, str) else second


def _region(segmentation: Any, width: int, height: int) -> Region | str:
    """The region of one annotation, or why it cannot be drawn."""
    if isinstance(segmentation, dict):
        counts = segmentation["counts"]
        if isinstance(counts, str):
            return "compressed run lengths"
        runs = tuple(int(count) for count in counts)
        if list(segmentation["size"]) != [height, width] or sum(runs) != height * width:
            return "run lengths of another size than the image"
        if min(runs) < 0:
            return "run lengths below zero"
        return Region(width, height, (runs,))
    if not segmentation:
        return "no segmentation"
    polygons = tuple(tuple(float(value) for value in polygon) for polygon in segmentation)
    if any(len(polygon) < 6 or len(polygon) % 2 for polygon in polygons):
        return "a polygon of less than three points"
    return Region(width, height, (), polygons)


def _indefinite(name: str) -> str:
    """A category behind `a` or `an`."""
    return f"an {name}" if name[0] in "aeiou" else f"a {name}"
