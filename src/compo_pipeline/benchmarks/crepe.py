"""CREPE, productivity: `<kind>/prod_vg_hard_negs_<kind>_complexity_<number>.csv`.

The columns are image_id, x, y, width, height, caption and hard_negs, a Python list of texts. The
image, of Visual Genome, is cropped to the box. The score is R@1: the caption above its negatives.
"""

from __future__ import annotations

import re
from pathlib import Path

from compo_pipeline.benchmarks.files import Record, read_files
from compo_pipeline.benchmarks.items import Benchmark, Item, Mean, Subtask
from compo_pipeline.core.settings import SettingsError
from compo_pipeline.core.untrusted import shown

NAME = "crepe"
KINDS = ("atom", "negate", "swap")
COMPLEXITIES = range(4, 13)
_PATTERN = "*/prod_vg_hard_negs_*_complexity_*.csv"
_NAME = re.compile(rf"prod_vg_hard_negs_({'|'.join(KINDS)})_complexity_([1-9]\d?)", re.ASCII)
_BOX = ("x", "y", "width", "height")
# Visual Genome comes in two folders; without them, below the first one.
_FOLDERS = ("VG_100K", "VG_100K_2")


def load(root: Path, images: Path) -> list[Subtask]:
    """Load CREPE: a subtask for each CSV file."""
    subtasks = []
    for file in read_files(root, _PATTERN):
        named = _NAME.fullmatch(file.name)
        if named is None:
            raise SettingsError(
                f"{file.name}.csv is none of {', '.join(KINDS)} with a complexity: {_PATTERN}"
            )
        items = tuple(_parse_item(record, images) for record in file.records())
        name = "_".join(named.groups())
        subtasks.append(Subtask(NAME, name, ("image_to_text",), images, items))
    return subtasks


def _parse_item(record: Record, images: Path) -> Item:
    """Benchmark item of a CREPE record: an image crop, its caption and hard negatives."""
    number = record.text("image_id")
    if not re.fullmatch(r"\d{1,12}", number, re.ASCII):
        raise SettingsError(f"{record.where}: expected a number 'image_id', got {shown(number)}")
    folders = (folder for folder in _FOLDERS if (images / folder / f"{number}.jpg").is_file())
    image = f"{next(folders, _FOLDERS[0])}/{number}.jpg"
    caption, foils = record.text("caption"), record.texts("hard_negs")
    return Item(record.name, record.crop(image, _BOX), (caption,), foils)


_AVERAGES = {kind: Mean(tuple(f"{kind}_{number}" for number in COMPLEXITIES)) for kind in KINDS}

BENCHMARK = Benchmark(
    name=NAME,
    role="composition",
    label="CREPE",
    load=load,
    headline=lambda metric, name: name == "average",
    averages={"accuracy": {**_AVERAGES, "average": Mean(tuple(_AVERAGES.values()))}},
    source="github.com/RAIVNLab/CREPE: prod_hard_negatives/{atom,negate,swap}/*.csv; images: "
    "Visual Genome's folders VG_100K and VG_100K_2",
    files=("*/*",),
    download="15 GB of Visual Genome, CC BY 4.0",
)
