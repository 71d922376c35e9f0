"""Cases of the attention analysis: phrases and images, with regions from COCO's instance files.

`instances_<split>.json` is COCO's file or has its layout. An annotation's thing is named by its
field `phrase`, as in rendered scenes, else by its category: "a dog".
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw

from compo_pipeline.benchmarks.items import Item, Subtask
from compo_pipeline.configuration.settings import SettingsError
from compo_pipeline.evaluation.analysis.settings import AttentionSettings
from compo_pipeline.images.decoding import Limits
from compo_pipeline.language.concepts import naming_phrases
from compo_pipeline.language.editing import extent
from compo_pipeline.run.seeding import rng
from compo_pipeline.storage.records import Parse
from compo_pipeline.storage.remote import read_bytes
from compo_pipeline.storage.untrusted import OutsideRoot, parse_json, path_below

if TYPE_CHECKING:
    from compo_pipeline.datasets.quality.settings import IngestSettings
    from compo_pipeline.datasets.settings import DataSettings

log = logging.getLogger(__name__)

Mask = NDArray[np.bool_]
Runs = tuple[int, ...]
Polygon = tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Region:
    """Region of an image as run lengths and polygons, from which its mask is drawn.

    It is drawn on demand: the masks of a data set would fill memory.
    """

    width: int
    """Width of the image in pixels."""
    height: int
    """Height of the image in pixels."""
    runs: tuple[Runs, ...] = ()
    """Per piece, the lengths of its runs, outside and inside in turn, column by column."""
    polygons: tuple[Polygon, ...] = ()
    """Further pieces, each as x, y, x, y, ..."""

    def mask(self) -> Mask:
        """Boolean mask [height, width] of the region; polygons include their borders."""
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
    """One phrase in one image, with the region of the named thing if it is known."""

    root: Path
    """Folder of the image."""
    image: str
    """Path of the image below the root."""
    phrase: str
    """For example "a red ball"."""
    region: Region | None = None
    """Region of the named thing; None if unknown."""


@dataclass(frozen=True, slots=True)
class AttentionCases:
    """Phrases and images of an attention analysis, and counts of unusable phrases."""

    cases: Sequence[Case]
    """Phrases in images."""
    skipped: Mapping[str, int]
    """Number of phrases without a case, by reason."""
    limits: Limits
    """Of the images."""


def read_regions(path: Path, root: Path) -> tuple[list[Case], Counter[str]]:
    """Read phrases with image regions from a file of COCO instances, in its order.

    Things with the same phrase in one image (three dogs) are one case with one region.

    Args:
        path: the JSON file.
        root: folder of the images.

    Returns:
        Cases, and the number of phrases that were left out, by reason.

    Raises:
        SettingsError: the file is missing or not an instances file.
    """
    try:
        content = parse_json(read_bytes(path))
        return _read_cases(content, root)
    except OSError as error:
        raise SettingsError(
            f"attention.regions: {path} cannot be read ({error.strerror}); set it to a file of "
            "COCO instances, or set attention.images and attention.phrases"
        ) from error
    except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
        raise SettingsError(
            f"attention.regions: {path} is not a file of COCO instances "
            f"({type(error).__name__}: {error}); expected images, categories and annotations with "
            "image_id, category_id and segmentation"
        ) from error


def _read_cases(content: Mapping[str, Any], root: Path) -> tuple[list[Case], Counter[str]]:
    """Cases from the content of a COCO instances file, and counts of unusable regions."""
    images = {entry["id"]: entry for entry in content["images"]}
    names = {entry["id"]: entry["name"] for entry in content["categories"]}
    regions: dict[tuple[Any, str], Region | str] = {}
    for entry in content["annotations"]:
        image = images[entry["image_id"]]
        phrase = entry.get("phrase") or _with_article(names[entry["category_id"]])
        key = image["id"], phrase
        size = int(image["width"]), int(image["height"])
        found = _parse_region(entry.get("segmentation"), *size)
        regions[key] = _union(regions[key], found) if key in regions else found
    cases = [
        Case(root, images[image]["file_name"], phrase, region)
        for (image, phrase), region in regions.items()
        if isinstance(region, Region)
    ]
    return cases, Counter(region for region in regions.values() if isinstance(region, str))


def _union(first: Region | str, second: Region | str) -> Region | str:
    """Union of two regions, or the reason why one of them cannot be drawn.

    Attention on such a one would count as wrong.
    """
    if isinstance(first, Region) and isinstance(second, Region):
        return first | second
    return first if isinstance(first, str) else second


def _parse_region(segmentation: Any, width: int, height: int) -> Region | str:
    """Region from a COCO segmentation, or the reason why it cannot be drawn."""
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


def _with_article(name: str) -> str:
    """A category name with its indefinite article."""
    return f"an {name}" if name[0] in "aeiou" else f"a {name}"


def item_cases(task: Subtask, item: Item, parses: Sequence[Parse]) -> list[Case]:
    """The noun phrases of a benchmark item to analyse, each with the item's image.

    They are those in which its texts differ; where the texts have the same ones (swapped things,
    relations) or there is one text, all of the first; the text itself where it has none.

    Args:
        task: the item's.
        item: whose first image is taken.
        parses: of its first right text and, where there is one, of its first wrong one.
    """
    right, *wrong = (dict.fromkeys(_noun_phrases(parse)) for parse in parses)
    others = wrong[0] if wrong else {}
    different = [phrase for phrase in (*right, *others) if (phrase in right) != (phrase in others)]
    phrases = different or list(right) or [parses[0].text]
    return [Case(task.images, item.image, phrase) for phrase in phrases]


def _noun_phrases(parse: Parse) -> Iterator[str]:
    """Yield the noun phrases of a text that name things, in lower case."""
    for first, last in naming_phrases(parse):
        start, end = extent(parse, first, last)
        yield parse.text[start:end].lower()


def find_cases(settings: AttentionSettings, data: DataSettings) -> tuple[list[Case], Counter[str]]:
    """The cases that the settings select, and counts of unusable phrases by reason.

    Raises:
        SettingsError: images or regions are missing, or there is no case.
    """
    skipped: Counter[str] = Counter()
    if settings.images is None:
        own = [part for part in data.parts.values() if settings.split in part.splits]
        if len(own) != 1:
            problem = (
                "is of several sources" if own else f"is not one of {', '.join(data.split_names)}"
            )
            raise SettingsError(
                f"attention.split: '{settings.split}' {problem}; or set attention.images and "
                "attention.phrases for your own images"
            )
        (data,) = own
        source = data.splits[settings.split]
        try:
            images = path_below(data.root, source, follow_symlinks=True)
            name, links = f"annotations/instances_{source}.json", data.follow_symlinks
            given = settings.regions and _user_path(settings.regions)
            regions = given or path_below(data.root, name, follow_symlinks=links)
        except OutsideRoot as error:
            raise SettingsError(
                f"data.splits.{settings.split}: {error} (data.follow_symlinks allows links)"
            ) from error
        cases, skipped = read_regions(regions, images)
    elif settings.regions is not None:
        cases, skipped = read_regions(_user_path(settings.regions), _user_path(settings.images))
    else:
        cases = _own_cases(_user_path(settings.images), settings.phrases or "")
    if not cases:
        why = ", ".join(f"{reason}: {count}" for reason, count in skipped.items()) or "it is empty"
        raise SettingsError(f"attention.regions: no region of the file can be used ({why})")
    return _sample_images(cases, settings), skipped


def _user_path(text: str) -> Path:
    """Path from a text in the settings; `~` is the home folder."""
    return Path(text).expanduser()


def _own_cases(place: Path, text: str) -> list[Case]:
    """Cases of all given phrases with all image files of a folder, without its subfolders."""
    phrases = list(dict.fromkeys(phrase.strip() for phrase in text.split(";") if phrase.strip()))
    if not phrases:
        raise SettingsError(f"attention.phrases: no phrase in {text!r}")
    if place.is_dir():
        entries = [path for path in place.iterdir() if not path.name.startswith(".")]
        files = sorted(path for path in entries if path.is_file())
        if folders := len(entries) - len(files):
            log.warning("%s: %d folders in it are skipped.", place, folders)
        if not files:
            raise SettingsError(f"attention.images: no files in the folder {place}")
    elif place.is_file():
        files = [place]
    else:
        raise SettingsError(
            f"attention.images: there is no file or folder {place} (seen from {Path.cwd()})"
        )
    return [Case(file.parent, file.name, phrase) for file in files for phrase in phrases]


def _sample_images(cases: Sequence[Case], settings: AttentionSettings) -> list[Case]:
    """The cases of a random sample of `limit` images, in the order of the cases."""
    images = sorted({case.image for case in cases})
    if settings.limit is None or len(images) <= settings.limit:
        return list(cases)
    chosen = set(rng("attention", settings.seed).sample(images, settings.limit))
    log.info("%d of %d images are measured (attention.limit).", len(chosen), len(images))
    return [case for case in cases if case.image in chosen]


def image_limits(settings: AttentionSettings, ingest: IngestSettings) -> Limits:
    """Limits for accepted images: those of ingest, but the user's own images may be links."""
    links = ingest.follow_symlinks or settings.phrases is not None
    return replace(ingest.limits, follow_symlinks=links)
