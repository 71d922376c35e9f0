"""Named variants: sets of parameters that `--params variant=<name>` stands for.

They are listed under the YAML key `variants`, by method or under `all`, with dotted keys.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from compo_pipeline.configuration.plugins import plugin_names
from compo_pipeline.configuration.settings import SettingsError, leaves, nearest, with_values

log = logging.getLogger(__name__)

KEY = "variants"
_NAMES = frozenset({"dataset", "method", "variant", "seed", "set", "subset"})
# Their tables are shared by all variants, or name where results lie.
_SHARED = _NAMES | {"data", "ingest", "validation", "paths", "tracking", KEY}
_SHARED |= {*plugin_names("compo_pipeline.data_generators")}


def applied(
    parameters: Mapping[str, Any], runtime: Mapping[str, Any], environment: str = "base"
) -> dict[str, Any]:
    """The parameters with the values of the named variant, where there is one of that name.

    Whether there are keys of these names is checked with all other values.

    Args:
        parameters: of the environment, with `--params`.
        runtime: `--params`, which override the variant's values.
        environment: its name is a label of its own values.

    Raises:
        SettingsError: the variant sets a key that it cannot set; or there is none of that name, a
            similar one exists, and `--params` give no other values.
    """
    name, method = str(parameters["variant"]), parameters["method"]
    values = named(parameters, method).get(name)
    if values is None:
        if name != environment and runtime.keys() <= _NAMES:
            _refuse_misspelt(name, parameters, method)
        return dict(parameters)
    explicit = {key for key, _ in leaves(runtime)}
    for key in values:
        if key.partition(".")[0] in _SHARED:
            raise SettingsError(
                f"{place_of(parameters)}'{key}' is shared by all variants of a dataset"
            )
    changes = {key: value for key, value in values.items() if key not in explicit}
    given = ", ".join(f"{key}={value}" for key, value in changes.items())
    log.info("Variant '%s' of %s: %s", name, method, given)
    return with_values(parameters, changes)


def place_of(parameters: Mapping[str, Any]) -> str:
    """Where the named variant is, for errors."""
    name, method = str(parameters["variant"]), parameters["method"]
    owner = method if name in parameters[KEY].get(method, {}) else "all"
    return f"{KEY}.{owner}.{name}: "


def named(parameters: Mapping[str, Any], method: str) -> dict[str, Mapping[str, Any]]:
    """The named variants of a method, by name."""
    variants = parameters[KEY]
    return {**variants["all"], **variants.get(method, {})}


def _refuse_misspelt(name: str, parameters: Mapping[str, Any], method: str) -> None:
    """Refuse a label that looks like a misspelt variant: the run would have the default values."""
    others = [known for known in parameters[KEY] if name in parameters[KEY][known]]
    if others:
        raise SettingsError(f"variant: '{name}' is one of {', '.join(others)}, not of {method}")
    known = named(parameters, method)
    if hint := nearest(name, known) if name != "default" else "":
        raise SettingsError(
            f"variant: there is no '{name}' of {method}{hint} (known: {', '.join(known)}; a label "
            "of your own goes with the values that it stands for)"
        )
