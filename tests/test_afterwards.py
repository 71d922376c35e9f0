"""A run ends with what it has made and with commands that work on it."""

import io
from pathlib import Path
from typing import Any

import pytest
from kedro.io import DataCatalog
from kedro.pipeline import Pipeline, node
from kedro_datasets.json import JSONDataset
from rich.console import Console

from compo_pipeline import afterwards
from compo_pipeline.datasets.folder import FolderDataset

TYPED = {"env": "smoke", "params": {"seed": 1}}
PARAMETERS = {"command": TYPED, "tracking": {"uri": None}, "promotion": {"dry_run": False}}


@pytest.fixture
def catalog(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> DataCatalog:
    """A finished run without Data Docs."""
    monkeypatch.chdir(tmp_path)
    for page in ("a/report/report.html", "a/export/README.md"):
        Path(page).parent.mkdir(parents=True)
        Path(page).write_text("")
    registered = JSONDataset(filepath="registered.json")
    registered.save({"name": "compo-clip", "version": 3, "alias": "challenger"})
    folders = {"report": "a/report", "export": "a/export", "data_docs": "a/data_docs"}
    places = {name: FolderDataset(filepath=str(tmp_path / path)) for name, path in folders.items()}
    return DataCatalog({**places, "registered": registered})


def printed(catalog: DataCatalog, parameters: dict[str, Any], *made: str) -> list[str]:
    nodes = [node(lambda: None, None, entry, name=entry) for entry in made]
    console = Console(file=io.StringIO())
    afterwards.show(Pipeline(nodes), catalog, parameters, console)
    return console.file.getvalue().split("\n")


def test_a_registered_run_names_its_pages_and_what_comes_next(catalog: DataCatalog) -> None:
    lines = printed(catalog, PARAMETERS, "report", "export", "data_docs", "registered")
    shown = [line.split(maxsplit=1) for line in lines if line and not line.startswith(" ")]
    assert shown[:-1] == [
        ["Report", "a/report/report.html"],
        ["Model", "a/export"],
        ["Registered", "compo-clip version 3"],
    ]
    assert "  kedro run --pipeline=promotion --env=smoke --params seed=1" in lines
    assert "  compo-pipeline try --alias challenger --env=smoke --params seed=1" in lines
    assert "  mlflow ui --backend-store-uri sqlite:///mlruns/mlflow.db" in lines


def test_a_server_needs_no_page_of_its_own(catalog: DataCatalog) -> None:
    parameters = {**PARAMETERS, "tracking": {"uri": "https://runs.example"}}
    assert "mlflow" not in "".join(printed(catalog, parameters, "registered"))


def test_what_made_nothing_to_open_ends_in_silence(catalog: DataCatalog) -> None:
    assert printed(catalog, PARAMETERS, "captions", "data_docs") == [""]
