"""Writers of counterfactual captions: one minimal edit that changes a caption's meaning, or keeps
it.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from compo_pipeline.configuration import SettingsError, nearest, parse
from compo_pipeline.counterfactuals.editors.contract import Writer
from compo_pipeline.counterfactuals.editors.endpoint import EndpointSettings, EndpointWriter
from compo_pipeline.counterfactuals.editors.local import LocalSettings, LocalWriter
from compo_pipeline.counterfactuals.editors.rules import RulesSettings, RulesWriter

NAMES = (RulesWriter.name, EndpointWriter.name, LocalWriter.name)


def open_writer(
    name: str, values: Mapping[str, Any], *, key: str, seed: int, folder: Path
) -> Writer:
    """The writer of a name, with settings of its own.

    Args:
        name: one of `NAMES`.
        values: its settings, as Kedro read them.
        key: the YAML key that they stand under.
        seed: of the run.
        folder: where writers that ask a model keep its answers, a file for each of them.

    Raises:
        SettingsError: unknown names or keys, or values that cannot be used.
    """
    cache = folder / f"{name}.sqlite"
    if name == RulesWriter.name:
        return RulesWriter(parse(RulesSettings, values, key), key=key, seed=seed)
    if name == EndpointWriter.name:
        settings = parse(EndpointSettings, values, key)
        return EndpointWriter(settings, key=key, seed=seed, cache=cache)
    if name == LocalWriter.name:
        return LocalWriter(parse(LocalSettings, values, key), key=key, seed=seed, cache=cache)
    raise SettingsError(
        f"{key}: there is no writer {name!r}{nearest(name, NAMES)} (known: {', '.join(NAMES)})"
    )
