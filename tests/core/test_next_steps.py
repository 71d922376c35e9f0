"""A run ends with its results and with commands that work on them."""

import io
import shlex
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click import Context
from kedro.framework.cli.utils import _split_params
from kedro.io import DataCatalog
from kedro.pipeline import Pipeline, node
from kedro_datasets.json import JSONDataset
from rich.console import Console

from compo_pipeline import cli
from compo_pipeline.core import provenance
from compo_pipeline.core.provenance import CommandOptions
from compo_pipeline.data.catalog import FolderDataset, PageDataset
from compo_pipeline.project.hooks import show_results

TYPED = CommandOptions("smoke", {"seed": 1})
PROMOTION = SimpleNamespace(dry_run=False)


@pytest.fixture
def catalog(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> DataCatalog:
    """A finished run without Data Docs, and without items to review."""
    monkeypatch.chdir(tmp_path)
    for page in ("a/report/report.html", "a/report/promotion.md", "a/export/README.md"):
        Path(page).parent.mkdir(parents=True, exist_ok=True)
        Path(page).write_text("")
    Path("a/foils_review").mkdir()
    registered = JSONDataset(filepath="registered.json")
    registered.save({"name": "compo-clip", "version": 3, "alias": "challenger"})
    names = ("report", "data_docs")
    folders = {name: f"a/{name}" for name in names} | {"foils_review_page": "a/foils_review"}
    places = {
        name: PageDataset(filepath=str(tmp_path / path), page="report.html")
        for name, path in folders.items()
    }
    places["export"] = FolderDataset(filepath=str(tmp_path / "a/export"))
    return DataCatalog({**places, "registered": registered})


def printed(catalog: DataCatalog, typed: CommandOptions, *entries: str) -> list[str]:
    nodes = [node(lambda: None, None, entry, name=entry) for entry in entries]
    console = Console(file=io.StringIO())
    show_results(Pipeline(nodes), catalog, PROMOTION, typed, console)
    return console.file.getvalue().split("\n")


def test_a_registered_run_names_its_pages_and_what_comes_next(catalog: DataCatalog) -> None:
    entries = ("report", "export", "data_docs", "foils_review_page", "registered")
    lines = printed(catalog, TYPED, *entries)
    shown = [line.split(maxsplit=1) for line in lines[1:4]]
    assert sorted(shown[:2]) == [["Export", "a/export"], ["Report", "a/report/report.html"]]
    assert shown[2] == ["Registered", "compo-clip version 3"]
    assert "kedro run --pipeline=promotion --env=smoke --params seed=1" in lines
    assert "compo-pipeline try --alias challenger --env=smoke --params seed=1" in lines


def test_the_champion_is_served_without_what_promoted_it(catalog: DataCatalog) -> None:
    catalog["promotion_report"] = catalog["report"]
    typed = CommandOptions("smoke", {"seed": 1, "promotion": {"waive": ["retrieval"]}})
    lines = printed(catalog, typed, "promotion_report")
    assert "compo-pipeline serve --env=smoke --params seed=1" in lines


@pytest.mark.parametrize(
    ("env", "params", "shown"),
    [
        (None, {}, ""),
        ("smoke", {}, " --env=smoke"),
        (
            None,
            {"seed": 1, "model": {"pretrained": None}},
            " --params seed=1,model.pretrained=null",
        ),
        ("a b", {"data": {"root": "/my photos"}}, " --env='a b' --params 'data.root=/my photos'"),
        (None, {"variant": "1e3"}, """ --params 'variant="1e3"'"""),
        (None, {"data": {"images": "{key}.jpg"}}, """ --params 'data.images="{key}.jpg"'"""),
    ],
)
def test_options_are_as_they_were_typed(
    env: str | None, params: dict[str, Any], shown: str
) -> None:
    assert provenance.options(env, params) == shown
    if params:
        assert _split_params(None, None, shlex.split(shown)[-1]) == params


def test_values_that_are_no_yaml_are_texts() -> None:
    """Kedro's own parser ends in a traceback of PyYAML for each of them."""
    given = "data.columns.image={key:.5}/{key}.jpg,data.splits.train=*.tar,variant='{a}.b',seed=1"
    assert cli._split_params(Context(cli.cli), None, given) == {
        "data": {"columns": {"image": "{key:.5}/{key}.jpg"}, "splits": {"train": "*.tar"}},
        "variant": "{a}.b",
        "seed": 1,
    }
