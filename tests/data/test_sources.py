"""Several sources: their settings, their records under ids of their own, their files."""

import csv
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from compo_pipeline.core.records import Rejected
from compo_pipeline.core.settings import SettingsError, parse, plain
from compo_pipeline.data.readers import locate, read, records_of
from compo_pipeline.data.readers.record import RawCaption
from compo_pipeline.data.settings import DataSettings


def settings(root: Path = Path("data"), **values: Any) -> DataSettings:
    """As conf/base has them, with other values."""
    base = {"root": root, "format": "table", "splits": {"train": "a.csv", "test": "b.csv"}}
    return parse(DataSettings, {**base, **values}, "data")


def table(
    file: Path, *rows: tuple[str, ...], columns: tuple[str, ...] = ("image", "caption")
) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("w", newline="") as opened:
        csv.writer(opened).writerows([columns, *rows])


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Two sources: one as `data` says, and one with a table and a folder of images of its own."""
    for name in ("one", "two/images"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "0.jpg").touch()
    table(tmp_path / "one" / "a.csv", ("0.jpg", "A dog."))
    table(tmp_path / "one" / "b.csv", ("1.jpg", "A cat."))
    table(
        tmp_path / "two" / "rows.csv",
        ("0.jpg", "A cup."),
        ("../../one/0.jpg", "A jug."),
        ("1.jpg",),
    )
    return tmp_path


SOURCES = {
    "one": {"weight": 3},
    "web": {"root": "two", "images": "images", "splits": {"train": "*.csv"}},
}


def test_a_source_is_what_data_says_but_for_its_own_values(root: Path) -> None:
    data = settings(root, sources=SOURCES, follow_symlinks=True, sample={"rows": 5, "seed": 2})
    assert data.weights == {"one": 3.0, "web": 1.0}
    one = settings(root / "one", follow_symlinks=True, sample={"rows": 5, "seed": 2})
    assert data.parts["one"] == one
    assert plain(data.parts["web"]) == {
        **plain(one),
        "root": str(root / "two"),
        "images": "images",
        "splits": {"train": "*.csv"},
    }
    assert data.split_names == ["train", "test"]


def test_one_source_alone_is_what_it_was(root: Path) -> None:
    data = settings(root / "one")
    assert data.parts == {"table": data} and data.weights == {}
    assert [record.sample_id for record in read(data)] == ["train-0", "test-0"]


def test_splits_have_one_order_with_held_out_ones_last() -> None:
    splits = [{"train": "a", "test": "b"}, {"train": "a", "val": "b", "test": "c"}]
    sources = {f"s{n}": {"splits": own} for n, own in enumerate(splits)}
    assert settings(sources=sources).split_names == ["train", "val", "test"]


def test_the_example_of_the_documentation(project: Path) -> None:
    text = (project / "docs" / "how-to" / "your-data.md").read_text(encoding="utf-8")
    examples = re.findall(r"```yaml\n(data:\n.*?)```", text, re.DOTALL)
    (example,) = (each for each in examples if "sources:" in each)
    data = parse(DataSettings, yaml.safe_load(example)["data"], "data")
    assert data.weights == {"coco": 3, "photos": 1} and data.epoch_rows == 400_000
    roots = {name: str(part.root) for name, part in data.parts.items()}
    assert roots == {name: f"data/01_raw/mixed/{name}" for name in ("coco", "photos")}
    assert [part.format for part in data.parts.values()] == ["coco_captions", "table"]
    assert list(data.parts["coco"].splits) == ["train", "test"]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"sources": {"..": {}}}, "data.sources: '..' cannot name a source"),
        ({"sources": {"a": {"root": "../b"}}}, "data.sources.a.root: '../b' is no path below"),
        ({"sources": {"a": {"wieght": 1}}}, "data.sources.a.wieght: unknown key; did you mean"),
        (
            {"sources": {"a": {}, "b": {"splits": {"test": "x", "train": "y"}}}},
            "data.sources: train and test stand in contradicting orders",
        ),
        ({"epoch_rows": 5}, "data.epoch_rows: 5 rows are drawn from several sources"),
    ],
)
def test_settings_that_cannot_be_used(values: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingsError) as refused:
        settings(**values)
    assert refused.value.message.startswith(message), refused.value.message
    assert "\n" not in refused.value.message


def test_records_have_ids_and_paths_of_their_source(root: Path) -> None:
    data = settings(root, sources=SOURCES)
    good, outside, bad = records_of(data)["web"]
    assert good == RawCaption(
        *("web/train-0", "web/train-images/0.jpg", "two/images/0.jpg", ("A cup.",), (), "train"),
        source="web",
    )
    # It is below data.root, and not below the root of its source: a path that ingest refuses.
    assert isinstance(outside, RawCaption) and outside.image == "images/../../one/0.jpg"
    assert isinstance(bad, Rejected) and bad.sample_id == "web/train-2"


def test_all_sources_are_located(root: Path) -> None:
    data = settings(
        root, sources={**SOURCES, "one": {"splits": {"train": "a.csv", "test": "b.csv"}}}
    )
    found = locate(data)
    assert found["root"] == str(root)
    assert found["splits"] == {"train": ["one/a.csv", "two/rows.csv"], "test": ["one/b.csv"]}
