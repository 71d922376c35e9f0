"""Validation items share nothing with the reported ones."""

from dataclasses import replace
from pathlib import Path

import pytest

from compo_pipeline.configuration import SettingsError
from compo_pipeline.evaluation.benchmarks import Item, Subtask
from compo_pipeline.evaluation.held_out import held_apart, identity

KEY = "tuning.benchmarks"


@pytest.fixture
def folders(tmp_path: Path) -> tuple[Path, Path]:
    """Images of the validation questions and of the reported ones, all different."""
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
    assert held_apart([own], [reported], 2, KEY) == [own]


def test_the_same_image_is_left_out_whatever_its_name(
    folders: tuple[Path, Path], caplog: pytest.LogCaptureFixture
) -> None:
    """Wherever it is reported: there the questions are of another subtask."""
    caplog.set_level("INFO")
    own, reported = folders
    (own / "2.png").write_bytes((reported / "1.png").read_bytes())
    found = held_apart([task(own)], [task(reported, "add_obj")], 2, KEY)
    assert names(found) == [["0", "1", "3"]]
    assert caplog.messages == [
        "sugar_crepe swap_att: 1 of 4 validation items are reported too: left out"
    ]


def test_the_same_texts_of_another_image_are_left_out(folders: tuple[Path, Path]) -> None:
    own, reported = map(task, folders)
    asked = reported.items[0]
    same = replace(own.items[3], positives=asked.positives, negatives=asked.negatives)
    half = replace(own.items[2], positives=asked.positives)
    own = replace(own, items=(*own.items[:2], half, same))
    assert names(held_apart([own], [reported], 1, KEY)) == [["0", "1", "2"]]
    other = replace(reported, name="add_obj")
    assert names(held_apart([own], [other], 1, KEY)) == [["0", "1", "2", "3"]]


def test_class_names_and_captions_alone_are_no_question(folders: tuple[Path, Path]) -> None:
    """All images of a set are asked the same classes; a caption is found, not chosen."""
    for more in ({"classes": ("cat",), "templates": ("a {}",)}, {}):
        own, reported = (
            Subtask("b", "t", ("p",), folder, (Item("0", "0.png", ("cat",)),), **more)
            for folder in folders
        )
        assert held_apart([own], [reported], 1, KEY) == [own]


def test_images_that_cannot_be_read_are_not_taken_for_the_same(
    folders: tuple[Path, Path],
) -> None:
    own, reported = map(task, folders)
    for folder in folders:
        (folder / "0.png").unlink()
    assert held_apart([own], [reported], 1, KEY) == [own]


@pytest.mark.parametrize("shared", [2, 3])
def test_more_than_half_are_the_wrong_files(folders: tuple[Path, Path], shared: int) -> None:
    own, reported = folders
    for number in range(shared):
        (own / f"{number}.png").write_bytes((reported / f"{number}.png").read_bytes())
    if shared == 2:
        assert names(held_apart([task(own)], [task(reported)], 1, KEY)) == [["2", "3"]]
        return
    with pytest.raises(
        SettingsError, match=r"tuning\.benchmarks: 3 of 4 items of sugar_crepe swap_att"
    ):
        held_apart([task(own)], [task(reported)], 1, KEY)


def test_identity_is_that_of_what_is_asked_and_how(folders: tuple[Path, Path]) -> None:
    own = task(folders[0])
    first, *others = own.items
    changed = [
        replace(own, items=tuple(others)),
        replace(own, items=(replace(first, negatives=("another",)), *others)),
        replace(own, items=(replace(first, image="9.png"), *others)),
        replace(own, protocols=("image_to_text", "text_only")),
        replace(own, name="add_obj"),
    ]
    assert len({identity([one]) for one in [own, *changed]}) == 6
    # Where images lie is a matter of the machine.
    assert identity([replace(own, images=folders[1])]) == identity([own])


def test_identity_of_classes_is_that_of_all_that_could_be_chosen(
    folders: tuple[Path, Path],
) -> None:
    few = Subtask(
        "zero_shot",
        "things",
        ("zero_shot",),
        folders[0],
        (Item("0", "0.png", ("cat",)),),
        ("cat", "dog"),
        ("a {}",),
    )
    more = replace(few, classes=("cat", "dog", "cup"))
    other = replace(few, templates=("the {}",))
    assert len({identity([one]) for one in (few, more, other)}) == 3
