import hashlib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from compo_pipeline.evaluation.benchmarks import Item, Subtask
from compo_pipeline.evaluation.contamination import (
    Overlap,
    difference_hash,
    image_id,
    normalised,
    overlaps,
    trained,
)
from compo_pipeline.evaluation.settings import EvaluationSettings
from compo_pipeline.records import Caption, Fact


def _noise(seed: int) -> Image.Image:
    # Coarse blocks, so that rescaling keeps what the hash looks at.
    blocks = np.random.default_rng(seed).integers(0, 255, (8, 9, 3), dtype=np.uint8)
    return Image.fromarray(blocks).resize((90, 80), Image.Resampling.NEAREST)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for folder in ("train", "test"):
        (tmp_path / folder).mkdir()
    _noise(0).save(tmp_path / "train" / "a.png")
    _noise(1).save(tmp_path / "train" / "b.png")
    _noise(0).save(tmp_path / "test" / "copy.png")
    _noise(1).resize((45, 40)).save(tmp_path / "test" / "smaller.png")
    _noise(2).save(tmp_path / "test" / "b.png")
    return tmp_path


def _known(root: Path, perceptual: bool) -> tuple[list[Caption], list[Fact], EvaluationSettings]:
    captions, facts = [], []
    for row, (image, split) in enumerate(
        [("train/a.png", "train"), ("train/b.png", "train"), ("test/b.png", "test")]
    ):
        sentences = (f"A dog, number {row}.", "It barks!")
        captions.append(Caption(f"s{row}", image, image, 90, 80, sentences, "x", split))
        digest = hashlib.sha256((root / image).read_bytes()).hexdigest()
        facts.append(
            Fact(row, f"s{row}", image, split, digest, None, 90, 80, 2, 2, 4, False, False, False)
        )
    return captions, facts, EvaluationSettings(perceptual_hash=perceptual, workers=1)


def _look(root: Path, perceptual: bool = False) -> Overlap:
    captions, facts, settings = _known(root, perceptual)
    items = (
        Item("0", "copy.png", ("a DOG number 0", "a cat"), ("it barks",)),
        Item("1", "smaller.png", ("a dog number 2",), ("x",)),
        Item("2", "b.png", ("a cat",), ("x",)),
        Item("3", "absent.png", ("it barks",), ("x",)),
    )
    subtask = Subtask("b", "s", ("image_to_text",), root / "test", items)
    (found,) = overlaps([subtask], trained(captions, facts, root, settings), 1)
    return found


def test_overlap_is_counted_of_the_training_split_alone(root: Path) -> None:
    found = _look(root)
    assert (found.images, found.same_bytes, found.same_name) == (4, 1, 1)
    # Distinct right texts: of "number 0", "a cat", "number 2" (test split), "it barks", two match.
    assert (found.captions, found.same_caption) == (4, 2)
    assert found.near is None


def test_the_perceptual_hash_finds_a_rescaled_copy(root: Path) -> None:
    assert _look(root, perceptual=True).near == 2
    assert difference_hash(_noise(0)) != difference_hash(_noise(2))


def test_normalised() -> None:
    assert normalised("A  Dog,\nit's  here!") == "a dog it s here"


def test_coco_names_an_image_alike_in_2014_and_2017() -> None:
    """NegCLIP's training captions are of 2014's files, SugarCrepe asks about 2017's."""
    assert image_id("coco/val2014/COCO_val2014_000000184613.jpg") == "000000184613"
    assert image_id("val2017/000000184613.jpg") == "000000184613"
    assert image_id("COCO_of_mine_1.png") == "COCO_of_mine_1"
