"""Views on disk."""

import logging
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from compo_pipeline.core.records import Caption, Parse, View
from compo_pipeline.core.tables import Table
from compo_pipeline.methods.clic import Clic, ClicObjective, ClicViews
from compo_pipeline.methods.contract import Example, ViewContext
from compo_pipeline.methods.views import (
    long_view,
    own_sentence,
    single_view,
    write,
)

CAT, DOG = "A/DET red/ADJ cat/NOUN", "The/DET blue/ADJ dog/NOUN"


@pytest.fixture
def rows(caption: Callable[..., Caption]) -> list[Caption]:
    return [caption(f"s{i}", (CAT, DOG)[i % 2], f"More of {i}.") for i in range(4)]


@pytest.fixture
def parses(rows: list[Caption], parse: Callable[[str, str], Parse]) -> dict[str, Parse]:
    return {row.sample_id: parse(row.sample_id, (CAT, DOG)[i % 2]) for i, row in enumerate(rows)}


def test_one_table_an_epoch(rows: list[Caption], parses: dict[str, Parse], tmp_path: Path) -> None:
    method, folder = Clic(ClicViews(), ClicObjective()), tmp_path / "views"
    folder.mkdir()
    (folder / "epoch=07.parquet").write_text("of an earlier run")
    write(method, rows, ViewContext(parses, "compo_en==1", 5, 0), 3, folder)
    assert sorted(file.name for file in tmp_path.rglob("*")) == [
        *(f"epoch=0{epoch}.parquet" for epoch in range(3)),
        "views",
    ]
    for epoch in range(3):
        table = pq.read_table(folder / f"epoch=0{epoch}.parquet")
        expected = list(method.views(rows, ViewContext(parses, "compo_en==1", 5, epoch)))
        assert list(Table(View, table)) == expected


def test_what_could_not_be_made_is_told(
    rows: list[Caption],
    parses: dict[str, Parse],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    tall = replace(rows[3], width=10, height=20)
    method = Clic(ClicViews(), ClicObjective())
    with caplog.at_level(logging.INFO):
        write(method, [*rows[:3], tall], ViewContext(parses, "x", 0, 0), 1, tmp_path / "views")
    assert "3 views of 4 captions an epoch; negatives that could not be made: 0" in caplog.text
    assert "1 captions have no view: no other image has their orientation" in caplog.text


def test_no_view_at_all_is_an_error_and_leaves_the_old_folder(
    rows: list[Caption], parses: dict[str, Parse], tmp_path: Path
) -> None:
    method, folder = Clic(ClicViews(), ClicObjective()), tmp_path / "views"
    drawing = ViewContext(parses, "x", 0, 0)
    write(method, rows, drawing, 1, folder)
    with pytest.raises(ValueError, match="none of 1 captions has a view under the method 'clic'"):
        write(method, rows[:1], drawing, 1, folder)
    assert [file.name for file in folder.iterdir()] == ["epoch=00.parquet"]


def test_whole_captions_take_the_place_of_views(
    rows: list[Caption],
    parses: dict[str, Parse],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    method, drawing = Clic(ClicViews(), ClicObjective()), ViewContext(parses, "x", 0, 0)
    rows = [replace(rows[number % 4], sample_id=f"s{number}") for number in range(200)]
    drawing = drawing._replace(parses={row.sample_id: parses["s0"] for row in rows})
    with caplog.at_level(logging.INFO):
        write(method, rows, drawing, 2, tmp_path / "views", long_share=0.3)
    own = {view.sample_id: view for view in method.views(rows, drawing)}
    tables = [
        list(Table(View, pq.read_table(tmp_path / "views" / f"epoch=0{epoch}.parquet")))
        for epoch in range(2)
    ]
    long = [{view.sample_id for view in table if view.kind == "long"} for table in tables]
    # Of 200 draws with a chance of 0.3, within four deviations.
    assert all(abs(len(found) - 60) < 26 for found in long) and long[0] != long[1]
    assert f"{len(long[0])} views show whole captions" in caplog.text
    for caption, view in zip(rows, tables[0], strict=True):
        assert view.sample_id == caption.sample_id
        if caption.sample_id not in long[0]:
            assert view == own[caption.sample_id]
            continue
        assert (view.images, view.axis) == ((caption.image,), None)
        assert set(view.positives) == {" ".join(caption.sentences)}
        assert len(view.positives) == len(own[caption.sample_id].positives)
        assert view.negatives == (None,)


def test_plain_steps_show_the_whole_caption(rows: list[Caption]) -> None:
    """Of composites the anchor's first sentence, of a long view all of them."""
    view = single_view(rows[0], rows[0].sentences[:1], (), "")
    long = long_view(rows[0], view, "")
    composite = replace(view, kind="composite", positives=("one of the composite",))
    shown = [own_sentence(Example(rows[0], each)) for each in (view, long, composite)]
    assert shown == ["A red cat", "A red cat More of 0.", "A red cat"]
