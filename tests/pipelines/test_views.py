"""Nodes of the views pipeline: captions in, parses and tables of views out."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from compo_pipeline.core.records import Caption, Parse, View
from compo_pipeline.core.table_files import LOCAL, write_rows
from compo_pipeline.core.tables import Table
from compo_pipeline.data.annotations import AnnotationColumns, AnnotationSettings
from compo_pipeline.data.settings import DataSettings
from compo_pipeline.methods.views import ViewSettings
from compo_pipeline.pipelines.views.nodes import draw_views, join_annotations, parse_captions

SENTENCES = {
    "a": ("A red cat sits on a mat.", "Its bed is warm.", "A lamp shines."),
    "b": ("Two brown dogs run in the park.", "They are wet.", "A ball lies there."),
    "c": ("A tall man holds a blue cup.", "He smiles.", "It is hot."),
    "held out": ("A bird flies over a house.", "It sings."),
}
SETTINGS = ViewSettings(epochs=2, split="train")
DATA = DataSettings(Path(), "table", {"train": "captions.csv"})


@pytest.fixture
def captions() -> list[Caption]:
    return [
        Caption(
            *(name, name, f"{name}.png", 40, 30, sentences, "test"),
            "val" if name == "held out" else "train",
        )
        for name, sentences in SENTENCES.items()
    ]


@pytest.fixture
def run(
    captions: list[Caption], context: Callable[..., Any], tmp_path: Path
) -> Callable[..., tuple[list[Parse], dict[int, list[View]]]]:
    """The nodes that draw, with the method's settings of conf/base; views by epoch."""

    def draw(
        method: str = "clic", seed: int = 0, **changes: Any
    ) -> tuple[list[Parse], dict[int, list[View]]]:
        views = replace(SETTINGS, **changes)
        own = context(method=method).params["method_settings"]["views"]
        found = parse_captions(captions, views.split, method, "compo_en", LOCAL)
        write_rows(tmp_path / "parses.parquet", found, Parse)
        parses = list(Table.open(tmp_path / "parses.parquet", Parse))
        others = join_annotations(captions, method, own, views)
        chosen = method, own, views, DATA, "compo_en", seed, str(tmp_path), LOCAL
        folder = draw_views(captions, parses, [], others, *chosen)
        tables = {
            int(file.stem[6:]): list(Table(View, pq.read_table(file))) for file in folder.iterdir()
        }
        return parses, tables

    return draw


def test_first_sentences_that_train_become_views_of_every_epoch(run: Callable[..., Any]) -> None:
    parses, tables = run()
    assert [(parse.sample_id, parse.sentence, parse.text) for parse in parses] == [
        (name, 0, SENTENCES[name][0]) for name in "abc"
    ]
    assert sorted(tables) == [0, 1] and tables[0] != tables[1]
    assert run(seed=1)[1] != tables == run()[1]
    for views in tables.values():
        assert [view.sample_id for view in views] == ["a", "b", "c"]
        for view in views:
            assert view.kind == "composite" and "held out" not in view.sample_ids
            first, second = (SENTENCES[name][0] for name in view.sample_ids)
            assert view.positives[0] == f"{first} {second}"
            (negative,) = view.negatives
            told = json.loads(view.provenance)
            assert sorted(negative.lower().replace(".", "").split()) == sorted(
                view.positives[0].lower().replace(".", "").split()
            )
            assert told["language"].startswith("compo_en==")
            assert len(told["negatives"][0]["words"]) == 2


def test_plain_clip_needs_no_parse(run: Callable[..., Any]) -> None:
    parses, tables = run("clip")
    assert parses == []
    assert [view.positives for view in tables[0]] == [(SENTENCES[name][0],) for name in "abc"]


def test_another_table_makes_other_views(run: Callable[..., Any], tmp_path: Path) -> None:
    """A changed file of the same name counts, and how it is drawn from."""
    file = tmp_path / "table.csv"
    columns = AnnotationColumns(caption="caption", negatives=("first", "second"))
    found = []
    for negative, drawn in (("No.", None), ("No.", None), ("None.", None), ("None.", 1)):
        lines = [f'"{texts[0]}","{negative}","Not."' for texts in SENTENCES.values()]
        file.write_text("\n".join(["caption,first,second", *lines]))
        table = AnnotationSettings(str(file), columns=columns, drawn=drawn)
        found.append(run("negclip", from_table=table)[1])
    assert found[0] == found[1] != found[2] != found[3]
