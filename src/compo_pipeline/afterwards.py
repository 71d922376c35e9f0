"""The last lines of a run: where its results are, and the commands that usually come next."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.text import Text

from compo_pipeline.command_line import kedro_run, options
from compo_pipeline.console import terminal

if TYPE_CHECKING:
    from kedro.io import CatalogProtocol
    from kedro.pipeline import Pipeline
    from rich.console import Console

# Catalog entries that a person opens: what they are called, and the page in their folder.
_RESULTS = {
    "report": ("Report", "*.html"),
    "tuning_report": ("Study", "*.html"),
    "wise_ft_report": ("WiSE-FT", "*.html"),
    "promotion_report": ("Decision", "promotion.*"),
    "export": ("Model", ""),
    "exported": ("Exports", ""),
    "base_model": ("Base model", ""),
    "views_preview": ("Training examples", "*.html"),
    "data_docs": ("Data Docs", "*.html"),
}


def show(
    pipeline: Pipeline,
    catalog: CatalogProtocol[Any, Any],
    parameters: Mapping[str, Any],
    console: Console | None = None,
) -> None:
    """Print what a finished pipeline has made, as far as it is there.

    Args:
        pipeline: what has run.
        catalog: Kedro's.
        parameters: the project's, with the `command` that was typed.
        console: where to; the terminal by default.
    """
    made = pipeline.all_outputs()
    rows = [
        (label, _opened(Path(catalog[entry]._describe()["filepath"]), page))
        for entry, (label, page) in _RESULTS.items()
        if entry in made and catalog.exists(entry)
    ]
    commands: list[tuple[str, str]] = []
    if "registered" in made:
        version = catalog.load("registered")
        rows.append(("Registered", f"{version['name']} version {version['version']}"))
        commands = _after_registration(version["alias"], parameters)
    elif "promotion_report" in made:
        commands = _after_promotion(parameters)
    if not rows:
        return
    console = terminal(console)
    width = max(len(label) for label, _ in rows) + 2
    lines = [Text(), *(Text.assemble((f"{label:<{width}}", "dim"), shown) for label, shown in rows)]
    if commands:
        lines += [Text(), Text("Next:", style="dim")]
        for typed, why in commands:
            lines += [Text(f"  # {why}", style="dim"), Text(f"  {typed}")]
    for line in lines:
        # Paths and commands are copied whole: only the terminal itself breaks them.
        console.print(line, soft_wrap=True)


def _opened(folder: Path, page: str) -> str:
    """The page of a result's folder, or the folder; Kedro makes paths absolute."""
    return os.path.relpath(next(folder.glob(page), folder) if page else folder)


def _after_registration(alias: str | None, parameters: Mapping[str, Any]) -> list[tuple[str, str]]:
    if alias is None:
        return _store(parameters["tracking"]["uri"])
    typed = options(**parameters["command"])
    promotion = kedro_run("promotion", **parameters["command"])
    needs = "" if find_spec("gradio") else ", needs pip install -e '.[ui]'"
    return [
        (promotion, "make it the champion if it passes the gate"),
        (f"compo-pipeline try --alias {alias}{typed}", f"base and model in a browser{needs}"),
        *_store(parameters["tracking"]["uri"]),
    ]


def _after_promotion(parameters: Mapping[str, Any]) -> list[tuple[str, str]]:
    if parameters["promotion"]["dry_run"] or parameters["promotion"]["action"] == "copy":
        return []
    typed = options(**parameters["command"])
    return [(f"compo-pipeline try{typed}", "base and champion in a browser")]


def _store(uri: str | None) -> list[tuple[str, str]]:
    """How runs are browsed where the store is a file; a server has a page of its own."""
    uri = uri or "sqlite:///mlruns/mlflow.db"
    if not uri.startswith("sqlite"):
        return []
    return [(f"mlflow ui --backend-store-uri {shlex.quote(uri)}", "runs and registered versions")]
