import hashlib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from compo_pipeline.benchmarks.items import Item, Subtask
from compo_pipeline.core.records import Caption, Fact
from compo_pipeline.core.settings import SettingsError
from compo_pipeline.data.images.decoding import Limits
from compo_pipeline.evaluation.contamination import (
    Overlap,
    TrainingRows,
    count_overlaps,
    image_id,
    items_hash,
    normalise_text,
    training_rows,
    without_reported,
)


def _noise(seed: int) -> Image.Image:
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


def _known(root: Path) -> TrainingRows:
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
    return training_rows(captions, facts)


def _look(root: Path) -> Overlap:
    items = (
        Item("0", "copy.png", ("a DOG number 0", "a cat"), ("it barks",)),
        Item("1", "smaller.png", ("a dog number 2",), ("x",)),
        Item("2", "b.png", ("a cat",), ("x",)),
        Item("3", "absent.png", ("it barks",), ("x",)),
    )
    subtask = Subtask("b", "s", ("image_to_text",), root / "test", items)
    (found,) = count_overlaps([subtask], _known(root), 1, {})
    return found


def test_overlap_is_counted_of_the_training_split_alone(root: Path) -> None:
    found = _look(root)
    assert (found.images, found.same_bytes, found.same_name) == (4, 1, 1)
    # Distinct right texts: of "number 0", "a cat", "number 2" (test split), "it barks", two match.
    assert (found.captions, found.same_caption) == (4, 2)


def test_known_bindings_are_counted_by_subtask(root: Path) -> None:
    items = tuple(Item(str(k), "copy.png", ("x",), ("y",)) for k in range(3))
    known = "right seen, wrong unseen"
    slices = {("b", "s", str(k)): ("object=x", f"binding={known}") for k in range(2)}
    subtask = Subtask("b", "s", ("image_to_text",), root / "test", items)
    (found,) = count_overlaps([subtask], _known(root), 1, slices)
    assert found.bindings == {known: 2}


def test_crops_of_one_file_are_one_image_of_the_training_rows(root: Path) -> None:
    boxes = ("0,0,20,20", "9,9,50,50")
    items = tuple(Item(box, f"copy.png#xywh={box}", ("x",), ("y",)) for box in boxes)
    subtask = Subtask("b", "s", ("image_to_text",), root / "test", items)
    (found,) = count_overlaps([subtask], _known(root), 1, {})
    assert (found.images, found.same_bytes) == (1, 1)


def test_both_images_and_captions_of_a_pair_are_looked_for(root: Path) -> None:
    items = (Item("0", "b.png", ("x",), ("A dog, number 1",), ("copy.png",)),)
    for protocol, known_captions in (("group", (2, 1)), ("image_to_text", (1, 0))):
        subtask = Subtask("b", "s", (protocol,), root / "test", items)
        (found,) = count_overlaps([subtask], _known(root), 1, {})
        assert (found.images, found.same_bytes, found.same_name) == (2, 1, 1)
        assert (found.captions, found.same_caption) == known_captions


def test_parts_of_a_set_are_counted_as_one(root: Path) -> None:
    parts = [
        Subtask(
            "aro", name, ("image_to_text",), root / "test", (Item("0", image, (text,), ("y",)),)
        )
        for name, image, text in (
            ("vg/on", "copy.png", "a dog number 0"),
            ("vg/in", "copy.png", "x"),
            ("other", "b.png", "x"),
        )
    ]
    slices = {("aro", name, "0"): (f"binding={name}",) for name in ("vg/on", "vg/in", "other")}
    known = _known(root)
    first, second = count_overlaps(parts, known, 1, slices)
    assert (first.subtask, first.images, first.same_bytes) == ("vg", 1, 1)
    assert (first.captions, first.same_caption) == (2, 1)
    assert first.bindings == {"vg/on": 1, "vg/in": 1}
    assert (second.subtask, second.images) == ("other", 1)


def test_normalised() -> None:
    assert normalise_text("A  Dog,\nit's  here!") == "a dog it s here"


def test_coco_names_an_image_alike_in_2014_and_2017() -> None:
    """NegCLIP's training captions are of 2014's files, SugarCrepe asks about 2017's."""
    assert image_id("coco/val2014/COCO_val2014_000000184613.jpg") == "000000184613"
    assert image_id("val2017/000000184613.jpg") == "000000184613"
    assert image_id("COCO_of_mine_1.png") == "COCO_of_mine_1"


KEY = "tuning.benchmarks"


@pytest.fixture
def folders(tmp_path: Path) -> tuple[Path, Path]:
    """Images of the validation items and of the reported ones, all different."""
    for folder in ("own", "reported"):
        (tmp_path / folder).mkdir()
        for number in range(4):
            (tmp_path / folder / f"{number}.png").write_text(f"{folder} {number}")
    return tmp_path / "own", tmp_path / "reported"


def task(folder: Path, name: str = "swap_att", count: int = 4) -> Subtask:
    items = (
        Item(f"{n}", f"{n}.png", (f"{folder.name} {n}",), (f"no {folder.name} {n}",))
        for n in range(count)
    )
    return Subtask("sugar_crepe", name, ("image_to_text",), folder, tuple(items))


def names(tasks: list[Subtask]) -> list[list[str]]:
    return [[item.item for item in one.items] for one in tasks]


def test_what_shares_nothing_stays_as_it_is(folders: tuple[Path, Path]) -> None:
    own, reported = map(task, folders)
    assert without_reported([own], [reported], 2, KEY) == [own]


def test_the_same_image_is_left_out_whatever_its_name(
    folders: tuple[Path, Path], caplog: pytest.LogCaptureFixture
) -> None:
    """Wherever it is reported: there the items are of another subtask."""
    caplog.set_level("INFO")
    own, reported = folders
    (own / "2.png").write_bytes((reported / "1.png").read_bytes())
    found = without_reported([task(own)], [task(reported, "add_obj")], 2, KEY)
    assert names(found) == [["0", "1", "3"]]
    assert caplog.messages == [
        "sugar_crepe swap_att: 1 of 4 validation items are also reported and left out"
    ]


def test_a_second_image_that_is_reported_is_left_out_too(folders: tuple[Path, Path]) -> None:
    own, reported = folders
    (own / "2.png").write_bytes((reported / "1.png").read_bytes())
    groups = replace(
        task(own),
        items=tuple(
            Item(f"{k}", f"{k}.png", (f"{k}",), ("x",), (f"{k + 1}.png",)) for k in (0, 1, 2)
        ),
    )
    with pytest.raises(SettingsError, match="2 of 3 items"):
        without_reported([groups], [task(reported, "add_obj")], 1, KEY)
    first = replace(groups, items=groups.items[:2])
    assert names(without_reported([first], [task(reported, "add_obj")], 1, KEY)) == [["0"]]


def test_the_same_texts_of_another_image_are_left_out(folders: tuple[Path, Path]) -> None:
    own, reported = map(task, folders)
    asked = reported.items[0]
    same = replace(own.items[3], positives=asked.positives, negatives=asked.negatives)
    half = replace(own.items[2], positives=asked.positives)
    own = replace(own, items=(*own.items[:2], half, same))
    assert names(without_reported([own], [reported], 1, KEY)) == [["0", "1", "2"]]
    other = replace(reported, name="add_obj")
    assert names(without_reported([own], [other], 1, KEY)) == [["0", "1", "2", "3"]]


def test_class_names_and_captions_alone_are_no_question(folders: tuple[Path, Path]) -> None:
    """All images of a set are asked the same classes; a caption is found, not chosen."""
    for more in ({"classes": ("cat",), "templates": ("a {}",)}, {}):
        own, reported = (
            Subtask("b", "t", ("p",), folder, (Item("0", "0.png", ("cat",)),), **more)
            for folder in folders
        )
        assert without_reported([own], [reported], 1, KEY) == [own]


def test_images_that_cannot_be_read_are_not_taken_for_the_same(
    folders: tuple[Path, Path],
) -> None:
    own, reported = map(task, folders)
    for folder in folders:
        (folder / "0.png").unlink()
    assert without_reported([own], [reported], 1, KEY) == [own]


@pytest.mark.parametrize("shared", [2, 3])
def test_more_than_half_are_the_wrong_files(folders: tuple[Path, Path], shared: int) -> None:
    own, reported = folders
    for number in range(shared):
        (own / f"{number}.png").write_bytes((reported / f"{number}.png").read_bytes())
    if shared == 2:
        assert names(without_reported([task(own)], [task(reported)], 1, KEY)) == [["2", "3"]]
        return
    with pytest.raises(
        SettingsError, match=r"tuning\.benchmarks: 3 of 4 items of sugar_crepe swap_att"
    ):
        without_reported([task(own)], [task(reported)], 1, KEY)


def test_fingerprint_is_that_of_what_is_asked_and_how(folders: tuple[Path, Path]) -> None:
    own = task(folders[0])
    first, *others = own.items
    changed = [
        replace(own, items=tuple(others)),
        replace(own, items=(replace(first, negatives=("another",)), *others)),
        replace(own, items=(replace(first, image="9.png"), *others)),
        replace(own, protocols=("image_to_text", "text_only")),
        replace(own, name="add_obj"),
        replace(own, limits=Limits(exif=False)),
    ]
    assert len({items_hash([one]) for one in [own, *changed]}) == 7
    classified = replace(own, classes=("cat", "dog"), templates=("a {}",))
    choices = [
        replace(classified, classes=("cat", "dog", "cup")),
        replace(classified, templates=("the {}",)),
    ]
    assert len({items_hash([one]) for one in [own, classified, *choices]}) == 4
    # Where images lie is a matter of the machine.
    assert items_hash([replace(own, images=folders[1])]) == items_hash([own])
