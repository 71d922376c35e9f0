"""Kedro imports this module before it runs any command, which makes it the place to be quiet."""

from __future__ import annotations

import click

from compo_pipeline import quiet

quiet.apply()


@click.group(name="compo-pipeline")
def cli() -> None:
    """Commands of the project's own; Kedro's do everything so far."""
