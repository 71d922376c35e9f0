"""Counterfactuals are generated once, whatever interrupts a run and whatever changes."""

import signal
from collections import Counter
from dataclasses import replace
from multiprocessing.context import ForkServerContext
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from tests.generation.counterfactuals import worker

from compo_pipeline.generation.counterfactuals.generation import (
    IMAGES,
    publish,
    published_path,
)


def contents(folder: Path) -> dict[str, bytes]:
    """Every file below a folder."""
    files = (path for path in (folder / "images").rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any, Any]:
    """A run that nothing stops: its folder, its tables, its calls."""
    folder = tmp_path_factory.mktemp("whole")
    log = worker.Log(folder / "calls.log")
    return folder, worker.run(folder, log), log


def test_table_says_what_became_of_every_edit(whole: tuple[Path, Any, Any]) -> None:
    _, (rows, quarantine), log = whole
    assert len(rows) == 14
    assert [(row.sentence, row.role) for row in rows[:2]] == [(0, "negative"), (0, "positive")]
    states = Counter(row.state for row in rows)
    assert states == {"generated": 12, "failed": 2}
    first = rows[0]
    assert (first.text, first.detail) == ("A CAT, 0 negative", "capitals")
    assert (first.caption_editor, first.image_generator, len(first.fingerprint)) == (
        "upper",
        "painter",
        12,
    )
    failed = [row for row in rows if row.state == "failed"]
    assert [(row.text, row.image, row.detail) for row in failed] == [
        ("A CAT, 5 negative", "", "no paint"),
        ("", "", "nothing to say"),
    ]
    told = [(one.row, one.sample_id, one.image, one.rule, one.detail) for one in quarantine]
    assert told == [
        (10, "no image", "5.png", "no_image", "negative of sentence 0: no paint"),
        (11, "no image", "5.png", "no_text", "positive of sentence 0: nothing to say"),
    ]
    assert len(log.asked("text")) == 14
    assert len(log.asked("image")) == 13


def test_images_lie_where_the_table_says_under_safe_names(whole: tuple[Path, Any, Any]) -> None:
    folder, (rows, _), _ = whole
    named = {f"images/{row.image}" for row in rows if row.image}
    assert named == set(contents(folder)) and len(named) == 12
    assert all(name.isascii() and ".." not in name and len(name) < 100 for name in named)
    # "plain" and "PLAIN" stay apart where file names have no case.
    assert len({name.casefold() for name in named}) == 12
    with Image.open(folder / "images" / rows[0].image) as image:
        assert (image.format, image.size) == ("JPEG", (8, 6))


@pytest.mark.parametrize(
    ("deadly", "texts", "images"),
    # Texts are made anew (their editors store what costs), images stored one by one.
    [
        ("text 6", 5, 0),
        ("image 5", 14, 0),
        ("rename 4", 14, 1),
        ("link 3", 14, 1),  # what cannot be made is tried again
    ],
)
def test_killed_and_run_again_equals_an_uninterrupted_run(
    whole: tuple[Path, Any, Any],
    tmp_path: Path,
    deadly: str,
    texts: int,
    images: int,
    imported: ForkServerContext,
) -> None:
    uninterrupted, tables, log = whole
    process = imported.Process(target=worker.run_until, args=(tmp_path, deadly))
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL
    second = worker.Log(tmp_path / "calls.log")
    assert not (tmp_path / "images").exists()
    assert worker.run(tmp_path, second) == tables
    assert contents(tmp_path) == contents(uninterrupted)
    for kind, again in (("text", texts), ("image", images)):
        calls, expected = Counter(second.asked(kind)), Counter(log.asked(kind))
        assert set(calls) == set(expected)
        assert calls.total() == expected.total() + again


def test_a_second_run_asks_for_nothing(tmp_path: Path) -> None:
    first = worker.run(tmp_path, worker.Log(tmp_path / "first.log"))
    before = contents(tmp_path)
    log = worker.Log(tmp_path / "second.log")
    assert worker.run(tmp_path, log) == first
    # Which cannot be made.
    assert log.asked("image") == [("'no image'", "0", "'negative'")]
    assert contents(tmp_path) == before


@pytest.mark.parametrize(
    ("changed", "images"),
    [  # the image that cannot be made is tried by every run
        ({"generator": "m2"}, 13),
        ({"seed": 1}, 13),
        ({"format": "png"}, 13),
        # The other editor's texts are the same here: their images are there already.
        ({"editor": "w2"}, 1),
        ({"sentences": None}, 14),
        ({"generator": None}, 0),
        ({"tolerated_share": 0.1}, 1),
    ],
)
def test_a_changed_setting_makes_anew_only_what_it_decides(
    tmp_path: Path, changed: dict[str, Any], images: int
) -> None:
    worker.run(tmp_path, worker.Log(tmp_path / "first.log"))
    log = worker.Log(tmp_path / "second.log")
    worker.run(tmp_path, log, **changed)
    assert len(log.asked("image")) == images
    back = worker.Log(tmp_path / "third.log")
    worker.run(tmp_path, back)
    assert len(back.asked("image")) == 1


def test_a_changed_caption_or_image_gets_counterfactuals_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker.run(tmp_path, worker.Log(tmp_path / "first.log"))
    rows = [replace(worker.ROWS[0], sentences=("a bird",)), *worker.ROWS[1:]]
    log = worker.Log(tmp_path / "second.log")
    made, _ = worker.run(tmp_path, log, rows=rows)
    assert made[0].text == "A BIRD negative"
    assert len(log.asked("image")) == 3
    monkeypatch.setitem(worker.HASHES, worker.ROWS[0].image, "another")
    log = worker.Log(tmp_path / "third.log")
    worker.run(tmp_path, log, rows=rows)
    assert len(log.asked("image")) == 3


def test_without_an_image_generator_there_are_texts_alone(tmp_path: Path) -> None:
    log = worker.Log(tmp_path / "calls.log")
    rows, quarantine = worker.run(tmp_path, log, generator=None)
    assert Counter(row.state for row in rows) == {"edited": 13, "failed": 1}
    assert {(row.image, row.image_generator) for row in rows} == {("", "")}
    assert [one.rule for one in quarantine] == ["no_text"]
    assert (tmp_path / "images").is_dir() and contents(tmp_path) == {}


# Sample ids come from tables in UTF-8: no lone surrogates.
@given(st.text(st.characters(codec="utf-8")))
def test_any_sample_id_gives_a_plain_path(sample_id: str) -> None:
    path = published_path(sample_id, 0, "negative", Path("store/0f/0f12ab.jpg"))
    folder, file = path.split("/")
    assert (len(folder), len(file) < 90) == (2, True)
    assert path.isascii() and path.isprintable()
    assert not set(path) & set('\\:*?"<>| ') and not file.startswith((".", "~"))


def test_equal_paths_are_of_equal_images() -> None:
    """The key of the store tells apart ids that read alike once they are safe."""
    stored = [Path(f"store/{key[:2]}/{key}.png") for key in ("0f12ab", "0f12ac")]
    paths = {published_path(name, 0, "negative", file) for name in ("a", "a/b") for file in stored}
    assert len(paths) == 4 and all(path.startswith("0f/") for path in paths)
    assert published_path("a/b", 1, "positive", stored[0]) == "0f/positive-1-a_b-0f12ab.png"


@pytest.mark.parametrize("linked", [True, False])
def test_published_folder_holds_these_images_and_no_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, linked: bool
) -> None:
    if not linked:

        def refuse(*_: object) -> None:
            raise OSError("another disk")

        monkeypatch.setattr(Path, "hardlink_to", refuse)
    state = tmp_path / "state"
    for key in ("aa1", "aa2", "bb3"):
        (state / IMAGES / key[:2]).mkdir(parents=True, exist_ok=True)
        (state / IMAGES / key[:2] / f"{key}.jpg").write_bytes(b"image")
    folder = publish(["bb/third-bb3.jpg", "", "aa/second-aa2.jpg"], state)
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    assert [str(path.relative_to(folder)) for path in files] == [
        "aa/second-aa2.jpg",
        "bb/third-bb3.jpg",
    ]
    assert files[0].read_bytes() == b"image"
    assert (files[0].stat().st_nlink > 1) == linked
