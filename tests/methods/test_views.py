"""Views on disk."""

import logging
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from compo_pipeline.methods.clic import Clic, ClicObjective, ClicViews
from compo_pipeline.methods.contract import ViewContext
from compo_pipeline.methods.views import ViewSettings, write
from compo_pipeline.storage.records import Caption, Parse, View, from_table

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
        assert list(from_table(table, View)) == expected


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


def test_at_least_one_epoch() -> None:
    with pytest.raises(ValueError, match="epochs"):
        ViewSettings(epochs=0)
