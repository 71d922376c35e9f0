"""`compo-pipeline versions`: what is registered, newest first."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

from rich.console import Console

from compo_pipeline.console import table as plain_table
from compo_pipeline.console import terminal
from compo_pipeline.registry.decision import OUTCOME

if TYPE_CHECKING:
    from mlflow.entities.model_registry import ModelVersion

_TAGS = ("dataset", "method", "variant", "seed", "headline", OUTCOME)


def show(console: Console | None = None) -> None:
    """Print a table of the versions of every registered model of the store."""
    import mlflow

    client = mlflow.MlflowClient()
    console = terminal(console)
    models = client.search_registered_models()
    if not models:
        console.print("No model is registered. `kedro run --pipeline=train_eval` registers one.")
    for model in models:
        aliases: dict[int, list[str]] = {}
        for alias, number in sorted(model.aliases.items()):
            aliases.setdefault(int(number), []).append(alias)
        table = plain_table()
        headline = "headline (against base)"
        for column in ("version", "aliases", *_TAGS[:4], headline, "promotion", "registered"):
            table.add_column(column, no_wrap=column != headline)
        versions = client.search_model_versions(f"name = '{model.name}'")
        for version in sorted(versions, key=lambda each: -int(each.version)):
            table.add_row(*_cells(version, aliases.get(int(version.version), [])))
        console.print(f"\n{model.name}", markup=False)
        console.print(table)


def _cells(version: ModelVersion, aliases: list[str]) -> list[str]:
    made = datetime.fromtimestamp(version.creation_timestamp / 1000, UTC)
    told = [version.tags.get(tag, "") for tag in _TAGS]
    return [str(version.version), ", ".join(aliases), *told, f"{made:%Y-%m-%d}"]
