"""Captions of photographs by image."""

import json
from collections import defaultdict
from pathlib import Path

import pytest

Photographs = dict[str, list[str]]


@pytest.fixture(scope="session")
def photographs(shared: Path) -> Photographs:
    """Captions of COCO by file name: those of coco_mini, and the true ones of SugarCrepe."""
    found: dict[str, dict[str, None]] = defaultdict(dict)
    for split in ("train", "val"):
        content = json.loads(
            (shared / f"coco_mini/annotations/captions_{split}2017.json").read_text()
        )
        for each in content["annotations"]:
            found[f"{each['image_id']:012}.jpg"][each["caption"].strip()] = None
    for file in sorted((shared / "benchmarks/sugar_crepe").glob("*.json")):
        for each in json.loads(file.read_text()).values():
            found[each["filename"]][each["caption"].strip()] = None
    return {name: list(captions) for name, captions in sorted(found.items())}
